"""Every event as a sentence for a person: what was found, where, and what to do about it."""

from typing import Final, assert_never

from ormas_core.across import ClipStarvation, ExpertsStarving, ExpertUsage, GradientSlope
from ormas_core.certificate_events import (
    Certificate,
    CertificateRefused,
    CertificateRevoked,
    Channels,
    ChannelsCleared,
    Repair,
)
from ormas_core.claims import CertificateClass, UnitKind
from ormas_core.events import (
    Alarm,
    AlarmCleared,
    Anchor,
    Event,
    LossRecovered,
    LossReduced,
    LossSpike,
    Manifest,
    Measurement,
    NoGradients,
    NonfiniteGradient,
    NonfiniteLoss,
    NotLearning,
    RunEnd,
    RunStart,
    SkippedStep,
)
from ormas_core.model_events import EvalMode, NonfiniteState, StatisticsAtOdds, SwitchedToEval
from ormas_core.record_events import CheckpointSaved, RecordGap, RunResumed
from ormas_core.run_events import MonitorError, SinkError, StopRequested
from ormas_core.terms import Diagnosis, ExpertShare, MechanismState, Signal, Trend

_MOST_UNITS: Final = 8
_PLURALS: Final = {
    UnitKind.CHANNEL: "channels",
    UnitKind.UNIT: "hidden units",
    UnitKind.HEAD: "heads",
    UnitKind.ADAPTER: "adapter ranks",
    UnitKind.BRANCH: "branch channels",
}
_PROMISES: Final = {
    CertificateClass.ABSORBING: "can never recover: their gradient is exactly zero for ever",
    CertificateClass.BOUNDED: "cannot recover while batch and input keep to the stated limits",
    CertificateClass.CLOSED_NOW: "have no gradient at the present weights, for any input",
}
_LIMITS: Final = ("m_max", "x_max", "input_max")
_WITHOUT_GAP: Final = (MechanismState.ACTIVE, MechanismState.UNUSED)


def describe(event: Event) -> str:
    """Return one sentence (or a few) for `event`, without time and step."""
    return f"[optimizer {event.lane}] {_sentence(event)}" if event.lane else _sentence(event)


def _sentence(event: Event) -> str:
    match event:
        case RunStart() | Manifest() | RunEnd() | Anchor() | Measurement():
            return _describe_frame(event)
        case Alarm():
            return describe_alarm(event)
        case AlarmCleared():
            return (
                f"{event.layer}: {event.diagnosis} since step {event.since_step} is over; "
                f"gradient norm {event.value:.3g}, normal {event.normal:.3g}."
            )
        case GradientSlope():
            return _describe_slope(event)
        case ExpertsStarving() | ExpertUsage():
            return _describe_experts(event)
        case NonfiniteGradient():
            return _describe_nonfinite(event)
        case NonfiniteLoss():
            return _describe_nonfinite_loss(event)
        case LossSpike():
            return (
                f"The loss is {event.value:.4g}; normal is {event.normal:.4g} "
                f"({event.sigma:.1f} standard deviations)."
            )
        case LossRecovered():
            return (
                f"The loss is back at {event.value:.4g} after the spike of step {event.since_step}."
            )
        case Certificate() | CertificateRefused() | CertificateRevoked():
            return _describe_proof(event)
        case Channels() | ChannelsCleared() | Repair():
            return _describe_channels(event)
        case SkippedStep() | NotLearning() | NoGradients() | LossReduced():
            return _describe_progress(event)
        case ClipStarvation():
            return (
                f"{event.layer} takes all that clipping leaves: its gradient norm is "
                f"{event.value:.3g}, so every gradient of this step is multiplied by "
                f"{event.factor:.2g}, and all other layers together keep {event.rest:.2g} of the "
                f"{event.clip_norm:g} that is clipped to."
            )
        case NonfiniteState() | EvalMode() | SwitchedToEval() | StatisticsAtOdds():
            return _describe_model(event)
        case StopRequested() | SinkError() | MonitorError():
            return _describe_run(event)
        case RunResumed() | RecordGap() | CheckpointSaved():
            return _describe_record(event)
        case _:
            assert_never(event)


def describe_alarm(alarm: Alarm) -> str:
    """Return the alarm as `layer: diagnosis, value against normal`."""
    text = f"{alarm.layer}: {alarm.diagnosis}, gradient norm {alarm.value:.3g}"
    if alarm.diagnosis is Diagnosis.NO_GRADIENT:
        text = f"{alarm.layer}: {alarm.diagnosis}, {alarm.detail}"
    return f"{text}; normal is {alarm.normal:.3g}."


def _describe_frame(event: RunStart | Manifest | RunEnd | Anchor | Measurement) -> str:
    match event:
        case RunStart():
            return (
                f"Watching {len(event.layers)} layers of {event.model} ({event.framework}), "
                f"a check every {event.config.check_every} steps."
            )
        case Manifest():
            gaps = [m for m in event.mechanisms if m.state not in _WITHOUT_GAP]
            return "; ".join(f"{m.name} {m.state}: {m.reason}" for m in gaps) or "All is observed."
        case RunEnd():
            reason = f" ({event.error})" if event.error else ""
            return f"Run ended: {event.status}{reason}, {event.steps} steps, {event.checks} checks."
        case Anchor():
            return f"Anchor: {event.lines} lines, head {event.head[:12]}."
        case Measurement():
            loss = "none" if event.loss is None else f"{event.loss:.4g}"
            return f"Check of {len(event.layers)} layers, loss {loss}."
        case _:
            assert_never(event)


def _describe_slope(event: GradientSlope) -> str:
    signal = "at outputs" if event.signal is Signal.OUTPUTS else "of parameters"
    kind = event.gradient_type or "the type"
    limit = "overflow" if event.trend is Trend.GROWING else "underflow"
    text = (
        f"Gradients {signal} are {event.trend} within one backward pass: geometrically, "
        f"x{event.factor:.2g} per layer from {event.first} to {event.last} ({event.layers} layers, "
        f"{event.first_value:.1e} to {event.last_value:.1e})"
    )
    if event.beyond is not None:
        return f"{text}; {limit} of {kind} at {event.beyond}."
    if event.layers_left is None:
        return f"{text}."
    return f"{text}; {limit} of {kind} expected {event.layers_left:.0f} layers further down."


def _describe_experts(event: ExpertsStarving | ExpertUsage) -> str:
    parts = []
    if event.starving:
        since = ", ".join(_expert(share) for share in event.starving)
        parts.append(f"{len(event.starving)} of {event.experts} experts get no tokens: {since}")
    if event.rare:
        rare = ", ".join(
            f"{share.expert} ({share.share:.2%} of the tokens, in {share.seen:.0%} of the checks)"
            for share in event.rare
        )
        parts.append(f"{len(event.rare)} of {event.experts} are rare and not dead: {rare}")
    if not parts:
        parts.append(f"all of {event.experts} experts are in use")
    return f"{event.container}: {'; '.join(parts)}. Seen in samples: no proof."


def _expert(share: ExpertShare) -> str:
    since = "never any" if share.since_step is None else f"none since step {share.since_step}"
    return f"{share.expert} ({since})"


def _describe_record(event: RunResumed | RecordGap | CheckpointSaved) -> str:
    match event:
        case RunResumed():
            return _describe_resumed(event)
        case RecordGap():
            return (
                f"{event.events} events and {event.measurements} measurements are missing from the "
                f"record here: {event.error}."
            )
        case CheckpointSaved():
            return f"Model {event.path}: {len(event.files)} files."
        case _:
            assert_never(event)


def _describe_resumed(event: RunResumed) -> str:
    text = f"Resumed at step {event.step}"
    if event.lines:
        text += f" after line {event.lines} of the record, head {event.head[:12]}"
    else:
        text += " in a new record"
    text += ", with the baselines of the checkpoint" if event.restored else ", with new baselines"
    if event.detail:
        text += f" ({event.detail})"
    if event.repeated:
        text += f"; {event.repeated} steps up to {event.reached} are done again"
    if not event.ended and event.lines:
        text += "; what came before has no end"
    torn = int(event.torn_record_bytes) + int(event.torn_metrics_bytes)
    return text + (f"; {torn} bytes of a torn last line were cut off." if torn else ".")


def _describe_model(event: NonfiniteState | EvalMode | SwitchedToEval | StatisticsAtOdds) -> str:
    match event:
        case NonfiniteState():
            found = ", ".join(f"{c.layer} ({c.nan} NaN, {c.inf} Inf)" for c in event.layers)
            return (
                f"Not finite before the first step: {found}. Loading or initialisation has done "
                "that, not training."
            )
        case EvalMode():
            return f"In evaluation mode from the first check on: {', '.join(event.modules)}."
        case SwitchedToEval():
            return (
                f"Changed to evaluation mode after step {event.before} while training goes on: "
                f"{', '.join(event.modules)}. Call model.train() after a validation."
            )
        case StatisticsAtOdds():
            return _describe_statistics(event)
        case _:
            assert_never(event)


def _describe_statistics(event: StatisticsAtOdds) -> str:
    found = ["Batch norms are at odds with their running statistics."]
    if event.drifting:
        found.append(
            f"Those of {', '.join(event.drifting)} move, although all parameters are frozen: "
            "model.train() undoes eval() of a part; call it again after that."
        )
    if event.untouched:
        found.append(
            f"Those of {', '.join(event.untouched)} are as they were built, mean 0 and variance 1, "
            "although the parameters are trained: in evaluation mode from the start, or with a "
            "momentum of 0."
        )
    return " ".join(found)


def _describe_run(event: StopRequested | SinkError | MonitorError) -> str:
    match event:
        case StopRequested():
            where = f" on rank {', '.join(map(str, event.ranks))}" if any(event.ranks) else ""
            return f"The training is to stop (stop_on): {', '.join(event.reasons)}{where}."
        case SinkError():
            return f"The sink {event.sink} failed and was dropped; training goes on: {event.error}"
        case MonitorError():
            return f"The monitor failed and stopped watching; training goes on: {event.error}"
        case _:
            assert_never(event)


def _describe_nonfinite_loss(event: NonfiniteLoss) -> str:
    text = f"The loss is {event.value}. The weights may be lost: stop before saving them."
    if event.replaced:
        text += (
            " The loss that the framework logs here is a substitute: an average of earlier ones."
        )
    return text


def _describe_nonfinite(event: NonfiniteGradient) -> str:
    own = [count for count in event.layers if count.layer == event.layer]
    found = f"has {own[0].nan} NaN and {own[0].inf} Inf" if own else "is not finite"
    text = f"{event.layer}: gradient {found}"
    if event.loss is not None:
        text += f" at loss {event.loss:.4g}"
    text += ". Going backward it is the first affected layer"
    if event.output_finite:
        text += "; the gradient at its own output was finite, so it arose in this layer"
    elif event.after and event.before:
        text += (
            f"; the gradient at the output of {event.after} was finite, at the output of "
            f"{event.before} it was not"
        )
    others = len(event.layers) - len(own)
    return text + (f". {others} further layers are consequences." if others else ".")


def _describe_progress(event: SkippedStep | NotLearning | NoGradients | LossReduced) -> str:
    match event:
        case SkippedStep():
            return (
                f"The loss scaler skips this update: overflow at scale {event.scale:g}, "
                f"first in {event.layer} ({event.in_a_row} in a row)."
            )
        case NotLearning():
            where = f"; the overflow is in {event.layer}" if event.layer else ""
            return (
                f"{event.skipped} consecutive optimizer steps skipped, scale "
                f"{event.scale_before:g} -> {event.scale:.1g}, no update since step "
                f"{event.since_step}{where}."
            )
        case NoGradients() if event.layers == 0:
            return (
                "No watched layer has a trainable parameter that can be read here (frozen, or "
                "sharded over processes): the manifest says why. Nothing is monitored."
            )
        case NoGradients():
            if event.absent:
                cause = (
                    "every .grad is None. Nothing went backward in this step, or zero_grad() ran "
                    "since; in a plain loop, call step() after backward() and before zero_grad()"
                )
            else:
                cause = (
                    "every one is exactly zero. The loss does not depend on the weights any more "
                    "(it is saturated, or constant), or zero_grad() ran before step()"
                )
            return (
                f"No gradient in any watched layer: {cause}; this check says nothing about single "
                "layers."
            )
        case LossReduced():
            return f"The loss has {event.elements} elements; their mean is recorded."
        case _:
            assert_never(event)


def _units(units: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, units[:_MOST_UNITS]))
    more = len(units) - _MOST_UNITS
    return f"{shown} and {more} more" if more > 0 else shown


def _describe_proof(event: Certificate | CertificateRefused | CertificateRevoked) -> str:
    match event:
        case Certificate():
            text = f"{event.layer}: {_PLURALS[event.unit_kind]} {_units(event.units)} "
            promise = _PROMISES[event.cls] + "".join(
                f", {c.name} {c.value:.3g} ({c.layer})"
                for c in event.conditions
                if c.name in _LIMITS
            )
            text += f"{promise} (certificate, {len(event.trace)} lines of proof)"
            return text + ("; present at the first check." if event.initial else ".")
        case CertificateRefused():
            return (
                f"{event.layer}: {_units(event.units)} look stuck, not certified: {event.reason}."
            )
        case CertificateRevoked():
            return (
                f"{event.layer}: the {event.cls} certificate of {_units(event.units)} is revoked: "
                f"{event.reason}."
            )
        case _:
            assert_never(event)


def _describe_channels(event: Channels | ChannelsCleared | Repair) -> str:
    match event:
        case Channels():
            kinds = ("certified", "flat", "decayed", "silent")
            counts = ", ".join(f"{getattr(event, k)} {k}" for k in kinds if getattr(event, k))
            text = f"{event.layer}: {event.level} of {event.n} channels are out of use: {counts}"
            return text + ("; present at the first check." if event.initial else ".")
        case ChannelsCleared():
            return f"{event.layer}: all {event.n} channels are in use again."
        case Repair() if event.refused:
            return (
                f"{event.layer}: {event.cause} rows {_units(event.units)} were not repaired: "
                f"{event.refused}."
            )
        case Repair():
            return (
                f"{event.layer}: {event.cause} rows {_units(event.units)} were re-initialised; "
                f"{', '.join(event.changed)} changed by {event.delta:.3g} together "
                f"({event.relative:.0%} of their norm)."
            )
        case _:
            assert_never(event)
