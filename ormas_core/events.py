"""The vocabulary: everything the monitor can say, as frozen values.

Where each is said, in a training loop::

    monitor = Monitor(model, optimizer)      # RunStart, Manifest, NonfiniteState
    monitor.load_state_dict(checkpoint)      # RunResumed, if the training goes on
    for batch in data:
        loss = model(batch)
        loss.backward()
        monitor.step(loss)                   # every `check_every` steps: a Measurement, and
                                             #   NoGradients, LossReduced, NonfiniteLoss,
                                             #   NonfiniteGradient, SkippedStep, NotLearning,
                                             #   Alarm, AlarmCleared, GradientSlope,
                                             #   ClipStarvation, ExpertsStarving, ExpertUsage,
                                             #   LossSpike, LossRecovered, Certificate,
                                             #   CertificateRefused, CertificateRevoked,
                                             #   Channels, ChannelsCleared, Repair,
                                             #   EvalMode, SwitchedToEval, StatisticsAtOdds,
                                             #   StopRequested;
                                             #   now and then an Anchor; at any time a
                                             #   SinkError, a MonitorError or a RecordGap
        optimizer.step()
    monitor.close(models=[...])              # CheckpointSaved, RunEnd, Anchor

`step` means one thing everywhere: optimizer updates completed before this one (first check: 0).
`seq`, `prev` and `hash` of a record line belong to the line, not to the event.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, get_args

from ormas_core.across import ClipStarvation, ExpertsStarving, ExpertUsage, GradientSlope
from ormas_core.certificate_events import (
    Certificate,
    CertificateRefused,
    CertificateRevoked,
    Channels,
    ChannelsCleared,
    Repair,
)
from ormas_core.config import MonitorConfig
from ormas_core.event_base import BaseEvent
from ormas_core.model_events import EvalMode, NonfiniteState, StatisticsAtOdds, SwitchedToEval
from ormas_core.record_events import CheckpointSaved, RecordGap, RunResumed
from ormas_core.run_events import MonitorError, SinkError, StopRequested
from ormas_core.terms import (
    ChannelSummary,
    Diagnosis,
    ExpertRows,
    Mechanism,
    NonfiniteCount,
    OutputGradient,
    Severity,
    Stage,
    Status,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart(BaseEvent):
    """A run, or a further segment of one, begins.

    Attributes:
        run_id: random identifier of the run (hexadecimal), the same in all its segments.
        framework: what drives the loop (`torch`, `lightning`, `transformers`).
        model: class name of the user's model.
        optimizer: class name of the optimizer, or None.
        layers: names of the watched layers, in the model's order.
        parameters: number of parameter elements in the model.
        trainable: how many of them require a gradient.
        world_size: number of processes.
        segment: 0 for the first; counts repeated `fit()`/`train()` calls on one record.
        schema: version of the record format.
        versions: versions of python, torch and this package.
        config: all settings of the run.
    """

    kind: ClassVar[str] = "run_start"
    run_id: str
    name: str | None
    framework: str
    model: str
    optimizer: str | None
    layers: tuple[str, ...]
    parameters: int
    trainable: int
    world_size: int
    segment: int
    schema: int
    versions: Mapping[str, str]
    config: MonitorConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(BaseEvent):
    """What is observed in this run and what is not, with the reason. The latest one counts."""

    kind: ClassVar[str] = "manifest"
    mechanisms: tuple[Mechanism, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(BaseEvent):
    """What one check read: a row of `metrics.jsonl` and the only input of the alarm rules.

    Attributes:
        attempt: calls of `step()` before this one; differs from `step` when a scaler skips updates.
        stage: the state the gradients were read in; norms are of unscaled gradients in every one.
        scale: loss scale in force, or None without a scaler.
        skipped_in_a_row: updates known to have been skipped by the scaler right before this one.
        loss: mean loss of the step, or None when none was given.
        loss_elements: elements of the loss tensor as given; more than 1 is an unreduced loss.
        loss_replaced: whether the loss is not finite and the host logs another value in its place.
        layers: watched layers that have trainable parameters, in backward order: the layer whose
            forward call finished last comes first.
        norms: Euclidean norm of each layer's gradients; None where no parameter has a `.grad`.
        nonfinite: layers with non-finite gradient elements, in backward order.
        outputs: in backward order, whether the gradient at each module's output was finite; filled
            only when `nonfinite` is not empty.
        output_peaks: largest absolute gradient at each layer's output, unscaled, in the order of
            `layers`; None where none was seen, and empty where that is so of all.
        gradient_type: the narrowest type of the gradients at outputs, or of the parameters' where
            those were not seen; empty where there were none.
        experts: how rows were spread over sibling modules of which each gets a part.
        channels: channel maxima of the layers whose outputs were seen.
        evaluating: outermost modules in evaluation mode, with all that is in them.
        drifting: batch norms whose statistics moved since the last check, and whose parameters
            never required a gradient and are as at the start.
        untouched: batch norms that have exactly the statistics they were built with.
        clip_norm: total norm to which the host clips after this check; None where it does not, or
            where that is not known.
        clip_factor: by what the clipping multiplies the gradients, 1 for nothing; None where the
            total norm is not known, such as where only some of the layers are watched.
        cost_ns: time the training thread spent on reading this check.
    """

    kind: ClassVar[str] = "measurement"
    attempt: int
    stage: Stage
    scale: float | None = None
    skipped_in_a_row: int = 0
    loss: float | None = None
    loss_elements: int = 1
    loss_replaced: bool = False
    layers: tuple[str, ...] = ()
    norms: tuple[float | None, ...] = ()
    nonfinite: tuple[NonfiniteCount, ...] = ()
    outputs: tuple[OutputGradient, ...] = ()
    output_peaks: tuple[float | None, ...] = ()
    gradient_type: str = ""
    experts: tuple[ExpertRows, ...] = ()
    channels: tuple[ChannelSummary, ...] = ()
    evaluating: tuple[str, ...] = ()
    drifting: tuple[str, ...] = ()
    untouched: tuple[str, ...] = ()
    clip_norm: float | None = None
    clip_factor: float | None = None
    cost_ns: int = 0

    @property
    def has_gradient(self) -> bool:
        """Whether any watched layer has a gradient that is present and not exactly zero."""
        return any(norm is not None and norm != 0.0 for norm in self.norms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm(BaseEvent):
    """A layer's gradient left its own baseline. One per episode; `AlarmCleared` ends it.

    Attributes:
        value: gradient norm found.
        normal: the baseline: ten to the running mean of log10(norm).
        sigma: how many standard deviations of log10(norm) the value is off; inf for exactly zero
            and where the baseline never varied.
        detail: what the number alone does not say.
    """

    kind: ClassVar[str] = "alarm"
    severity: ClassVar[Severity] = Severity.WARNING
    layer: str
    diagnosis: Diagnosis
    value: float
    normal: float
    sigma: float
    stage: Stage
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmCleared(BaseEvent):
    """A layer's gradient is back at its baseline."""

    kind: ClassVar[str] = "alarm_cleared"
    layer: str
    diagnosis: Diagnosis
    value: float
    normal: float
    since_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpike(BaseEvent):
    """The loss jumped above its baseline. `LossRecovered` ends the episode."""

    kind: ClassVar[str] = "loss_spike"
    severity: ClassVar[Severity] = Severity.WARNING
    value: float
    normal: float
    sigma: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRecovered(BaseEvent):
    """The loss is back at its baseline."""

    kind: ClassVar[str] = "loss_recovered"
    value: float
    normal: float
    since_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NonfiniteLoss(BaseEvent):
    """The loss is NaN or infinite. One per episode.

    Attributes:
        replaced: whether the host logs a substitute, such as a running average, in its place.
    """

    kind: ClassVar[str] = "nonfinite_loss"
    severity: ClassVar[Severity] = Severity.CRITICAL
    value: float
    replaced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NonfiniteGradient(BaseEvent):
    """Gradients are NaN or infinite. One per episode, and again when the first layer changes.

    Attributes:
        layer: the first affected layer in backward order; the others are its consequences.
        layers: every affected layer, in backward order.
        after: going backward, the last module whose output gradient was finite; None if unseen.
        before: the first module whose output gradient was not; None if unseen or there is none.
        output_finite: whether the gradient at the output of `layer` was finite, which puts the
            origin into that layer's own backward; None if unseen.
        loss: the loss of the step.
    """

    kind: ClassVar[str] = "nonfinite_gradient"
    severity: ClassVar[Severity] = Severity.CRITICAL
    layer: str
    layers: tuple[NonfiniteCount, ...]
    after: str | None
    before: str | None
    output_finite: bool | None
    loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedStep(BaseEvent):
    """A loss scaler will skip this update because gradients overflowed: normal now and then."""

    kind: ClassVar[str] = "skipped_step"
    layer: str
    scale: float
    in_a_row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotLearning(BaseEvent):
    """No update has been applied for a while: the loss scaler skips every one.

    Attributes:
        layer: first layer with non-finite gradients, in backward order; None if not seen.
        skipped: consecutive updates skipped, at least.
        scale_before: loss scale before the first of them, as far as seen.
        scale: loss scale now.
        since_step: the weights have not changed since this many updates were completed.
    """

    kind: ClassVar[str] = "not_learning"
    severity: ClassVar[Severity] = Severity.CRITICAL
    layer: str | None
    skipped: int
    scale_before: float
    scale: float
    since_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoGradients(BaseEvent):
    """A check saw no gradient anywhere. Said once; `counts` of the run end has the number.

    Attributes:
        absent: True where every `.grad` is None, False where all are exactly zero.
        layers: watched layers that have trainable parameters and can be read; 0 where everything
            is frozen or sharded.
    """

    kind: ClassVar[str] = "no_gradients"
    severity: ClassVar[Severity] = Severity.WARNING
    absent: bool
    layers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossReduced(BaseEvent):
    """The loss was given with several elements and its mean is recorded. Said once."""

    kind: ClassVar[str] = "loss_reduced"
    elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor(BaseEvent):
    """Pins both files at a moment, and goes to the sinks, so that a copy exists elsewhere.

    Attributes:
        head: hash of the record line before this one.
        lines: record lines before this one.
        metrics_head: hash of the last metrics row.
        metrics_rows: metrics rows so far.
        metrics_bytes: size of `metrics.jsonl` with exactly these rows; None in records of format
            version 1.
    """

    kind: ClassVar[str] = "anchor"
    head: str
    lines: int
    metrics_head: str
    metrics_rows: int
    metrics_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd(BaseEvent):
    """A run, or a segment of one, ends.

    Attributes:
        steps: optimizer updates completed.
        checks: checks made.
        counts: attempts, checks without gradients, and events by kind.
        status: the verdict.
        error: type name of the exception that ended the run, "unknown" where it did not come to its
            end for a reason unseen; the text of an exception may hold data and is not recorded.
    """

    kind: ClassVar[str] = "run_end"
    steps: int
    checks: int
    counts: Mapping[str, int]
    status: Status
    error: str | None = None


Event = (
    RunStart
    | RunResumed
    | Manifest
    | Measurement
    | Alarm
    | AlarmCleared
    | GradientSlope
    | ClipStarvation
    | NonfiniteState
    | EvalMode
    | SwitchedToEval
    | StatisticsAtOdds
    | ExpertsStarving
    | ExpertUsage
    | LossSpike
    | LossRecovered
    | NonfiniteLoss
    | NonfiniteGradient
    | SkippedStep
    | NotLearning
    | NoGradients
    | LossReduced
    | Certificate
    | CertificateRefused
    | CertificateRevoked
    | Channels
    | ChannelsCleared
    | Repair
    | StopRequested
    | SinkError
    | MonitorError
    | RecordGap
    | CheckpointSaved
    | Anchor
    | RunEnd
)

EVENT_TYPES: Final[Mapping[str, type[Event]]] = {cls.kind: cls for cls in get_args(Event)}
"""Kind -> class, of every member of the union."""
