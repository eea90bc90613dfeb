"""From events to the facts a person reads. The only place where such numbers are derived."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ormas_core.across import ClipStarvation, ExpertsStarving, GradientSlope
from ormas_core.certificate_events import Channels, ChannelsCleared, Repair
from ormas_core.events import (
    Alarm,
    AlarmCleared,
    Anchor,
    Event,
    LossRecovered,
    LossSpike,
    Manifest,
    Measurement,
    NonfiniteGradient,
    NonfiniteLoss,
    NotLearning,
    RunEnd,
    RunStart,
)
from ormas_core.model_events import NonfiniteState, StatisticsAtOdds, SwitchedToEval
from ormas_core.record import decode, encode
from ormas_core.record_events import RunResumed
from ormas_core.run_events import SinkError, StopRequested
from ormas_core.terms import (
    ALARMS,
    GRADIENT_NORMS,
    OPTIMIZERS,
    Mechanism,
    MechanismState,
    Severity,
    Status,
)

TROUBLE: Final = (
    Alarm,
    GradientSlope,
    ClipStarvation,
    NonfiniteState,
    SwitchedToEval,
    StatisticsAtOdds,
    ExpertsStarving,
    LossSpike,
    NonfiniteLoss,
    NonfiniteGradient,
    NotLearning,
)
"""The kinds of event that count as alarms of a run."""

GAPS: Final = (MechanismState.OFF, MechanismState.PARTIAL, MechanismState.UNOBSERVABLE)
"""Manifest states in which something that is there is not fully observed."""

Trouble = (
    Alarm
    | GradientSlope
    | ClipStarvation
    | NonfiniteState
    | SwitchedToEval
    | StatisticsAtOdds
    | ExpertsStarving
    | LossSpike
    | NonfiniteLoss
    | NonfiniteGradient
    | NotLearning
)

_BLIND: Final = "checks_without_gradients"

_WORST_FIRST: Final = (
    Status.PROBLEM,
    Status.INTERRUPTED,
    Status.NOT_MONITORED,
    Status.PARTLY_MONITORED,
    Status.WARNINGS,
    Status.REPAIRED,
    Status.UNKNOWN,
    Status.RUNNING,
    Status.HEALTHY,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is known of a run.

    Attributes:
        status: the worst verdict of its segments; `interrupted` where the last one has no end.
        segments: how often the loop was started on this record.
        steps: optimizer updates completed in the last segment.
        checks: checks made in the last segment.
        blind_checks: how many of them saw no gradient.
        alarms: everything that counts as an alarm, in order, over all segments.
        cleared: place of an alarm in `alarms` -> step at which its episode ended.
        open_layers: layers whose alarm has not cleared -> that alarm.
        stuck: layers with certified, flat or decayed channels -> what was last said of them.
        repaired: repairs that changed something.
        gaps: what the latest manifest says is not fully observed.
        counts: events by kind, over all segments.
        head: the head of the last anchor, or None.
        error: type name of the exception that ended the last segment.
        stopped: what ended the last segment early, if `stop_on` did.
    """

    status: Status
    start: RunStart | None
    segments: int
    steps: int
    checks: int
    blind_checks: int
    alarms: tuple[Trouble, ...]
    cleared: Mapping[int, int]
    open_layers: Mapping[str, Alarm]
    stuck: Mapping[str, Channels]
    repaired: int
    gaps: tuple[Mechanism, ...]
    counts: Mapping[str, int]
    head: str | None
    error: str | None
    stopped: StopRequested | None


def run_facts(events: Iterable[Event]) -> RunFacts:
    """Return the facts of a recorded run. A run without an end reads `interrupted`."""
    fold = FactsFold()
    for event in events:
        fold.add(event)
    return fold.facts(finished=True)


@dataclass(slots=True)
class FactsFold:
    """Takes events one at a time; keeps alarms, not measurements."""

    start: RunStart | None = None
    segments: int = 0
    steps: int = 0
    checks: int = 0
    blind_checks: int = 0
    alarms: list[Trouble] = field(default_factory=list)
    cleared: dict[int, int] = field(default_factory=dict)
    open_layers: dict[str, Alarm] = field(default_factory=dict)
    stuck: dict[str, Channels] = field(default_factory=dict)
    repaired: int = 0
    spikes: dict[str, LossSpike] = field(default_factory=dict)
    mechanisms: tuple[Mechanism, ...] = ()
    counts: Counter[str] = field(default_factory=Counter)
    severities: Counter[Severity] = field(default_factory=Counter)
    head: str | None = None
    attempts: int = 0
    end: RunEnd | None = None
    stopped: StopRequested | None = None
    _earlier: list[Status] = field(default_factory=list)
    _open_before: "_Open | None" = None

    def add(self, event: Event) -> None:
        """Take the next event."""
        if isinstance(event, RunStart):
            self._begin(event)
        if isinstance(event, TROUBLE):
            self.alarms.append(event)
        if not isinstance(event, SinkError):
            # A tracker that fails says nothing about the training.
            self.severities[event.severity] += 1
        match event:
            case Alarm():
                self.open_layers[_place(event)] = event
            case AlarmCleared():
                self._clear(self.open_layers.pop(_place(event), None), event.step)
            case Channels():
                self._count(event)
            case ChannelsCleared():
                self.stuck.pop(event.layer, None)
            case Repair():
                self.repaired += not event.refused
            case LossSpike():
                self.spikes[event.lane] = event
            case LossRecovered():
                self._clear(self.spikes.pop(event.lane, None), event.step)
            case RunResumed():
                self._resume(event)
            case Manifest():
                self.mechanisms = event.mechanisms
            case Measurement():
                self.checks += 1
                self.steps, self.attempts = event.step, event.attempt + 1
                self.blind_checks += not event.has_gradient
            case StopRequested():
                self.stopped = event
            case Anchor():
                self.head = event.head
            case RunEnd():
                self.end, self.steps, self.checks = event, event.steps, event.checks
                self.blind_checks = event.counts.get(_BLIND, self.blind_checks)
            case _:
                pass
        self.counts[event.kind] += 1

    def facts(self, *, finished: bool) -> RunFacts:
        """Return the facts so far.

        Args:
            finished: no more events will come; a run without an end is then `interrupted`.
        """
        last = Status.INTERRUPTED if finished else Status.RUNNING
        if self.start is None:
            last = Status.UNKNOWN
        elif self.end is not None:
            last = self.end.status
        return RunFacts(
            status=min([*self._earlier, last], key=_WORST_FIRST.index),
            start=self.start,
            segments=self.segments,
            steps=self.steps,
            checks=self.checks,
            blind_checks=self.blind_checks,
            alarms=tuple(self.alarms),
            cleared=dict(self.cleared),
            open_layers=dict(self.open_layers),
            stuck=dict(self.stuck),
            repaired=self.repaired,
            gaps=tuple(m for m in self.mechanisms if m.state in GAPS),
            counts=dict(self.counts),
            head=self.head,
            error=self.end.error if self.end else None,
            stopped=self.stopped,
        )

    def verdict(self, *, error: str | None) -> Status:
        """Return the status of the segment that ends now, for its `RunEnd`."""
        if error is not None:
            return Status.INTERRUPTED
        if self.checks == self.blind_checks:
            return Status.NOT_MONITORED
        if self.severities[Severity.CRITICAL] or self.open_layers or self.spikes:
            return Status.PROBLEM
        if self.blind_checks or self.counts["monitor_error"] or self._unobserved():
            return Status.PARTLY_MONITORED
        if self.severities[Severity.WARNING] or self.stuck:
            return Status.WARNINGS
        return Status.REPAIRED if self.repaired else Status.HEALTHY

    def state_dict(self) -> dict[str, Any]:
        """Return what the verdict on a resumed run must not forget, as plain JSON values."""
        return {
            "severities": {severity.value: n for severity, n in self.severities.items()},
            "open_layers": [encode(alarm) for alarm in self.open_layers.values()],
            "spikes": [encode(spike) for spike in self.spikes.values()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state_dict` returned, or leave everything as it is."""
        alarms = [decode(members) for members in state["open_layers"]]
        spikes = [decode(members) for members in state["spikes"]]
        counts = {Severity(name): int(n) for name, n in state["severities"].items()}
        self.spikes = {s.lane: s for s in spikes if isinstance(s, LossSpike)}
        self.severities = Counter(counts)
        self.open_layers = {_place(a): a for a in alarms if isinstance(a, Alarm)}

    def totals(self) -> dict[str, int]:
        """Return the counts so far for a `RunEnd`; a monitor folds one segment only."""
        return {**self.counts, _BLIND: self.blind_checks}

    def _unobserved(self) -> bool:
        return any(
            m.name in (ALARMS, GRADIENT_NORMS, OPTIMIZERS)
            and m.state is MechanismState.UNOBSERVABLE
            for m in self.mechanisms
        )

    def _count(self, event: Channels) -> None:
        # Silent channels alone are an observation, not a finding.
        if event.certified or event.flat or event.decayed:
            self.stuck[event.layer] = event
        else:
            self.stuck.pop(event.layer, None)

    def _clear(self, alarm: Trouble | None, step: int) -> None:
        for place in reversed(range(len(self.alarms))):
            if self.alarms[place] is alarm:
                self.cleared[place] = step
                return

    def _resume(self, event: RunResumed) -> None:
        """Take back what is not over: the run that was interrupted goes on.

        Alarms of steps that are done again were of weights that are gone, so they are over.
        """
        self._earlier = [status for status in self._earlier if status is not Status.INTERRUPTED]
        if any(alarm.step >= event.step for alarm in self.alarms):
            self._earlier.append(Status.WARNINGS)
        if event.restored and self._open_before is not None:
            before = self._open_before
            self.open_layers.update({n: a for n, a in before.layers.items() if a.step < event.step})
            self.spikes.update({n: s for n, s in before.spikes.items() if s.step < event.step})

    def _begin(self, event: RunStart) -> None:
        if self.start is not None:
            status = self.end.status if self.end else Status.INTERRUPTED
            # A segment that was given up before its first step (a batch size that did not fit)
            # has nothing to say.
            if self.end is None or self.end.counts.get("attempts") != 0:
                self._earlier.append(status)
        self._open_before = _Open(self.open_layers, self.spikes)
        self.start, self.end, self.stopped = event, None, None
        self.segments += 1
        self.steps = self.attempts = self.checks = self.blind_checks = 0
        self.open_layers, self.spikes, self.mechanisms = {}, {}, ()
        self.stuck, self.repaired = {}, 0
        self.severities = Counter()


@dataclass(frozen=True, slots=True)
class _Open:
    """The episodes that were open when a segment ended."""

    layers: Mapping[str, Alarm]
    spikes: Mapping[str, LossSpike]


def _place(event: Alarm | AlarmCleared) -> str:
    """Return the layer, and the optimizer where several that step apart judge it."""
    return f"{event.layer} ({event.lane})" if event.lane else event.layer


@dataclass(frozen=True, slots=True)
class LossFacts:
    """The losses of a run at its checks, those that are not finite left out.

    Attributes:
        count: checks with a loss.
        first: the first of them; NaN where there is none, like the others.
        last: the last.
        least: the smallest.
    """

    count: int = 0
    first: float = math.nan
    last: float = math.nan
    least: float = math.nan


def loss_facts(measurements: Iterable[Measurement]) -> LossFacts:
    """Return what the losses of some measurements come to."""
    found = LossFacts()
    for measurement in measurements:
        loss = measurement.loss
        if loss is None or not math.isfinite(loss):
            continue
        if found.count == 0:
            found = LossFacts(1, loss, loss, loss)
        else:
            least = min(found.least, loss)
            found = LossFacts(found.count + 1, found.first, loss, least)
    return found
