"""Two runs side by side: are both records sound, and what differs between them?"""

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ormas_core.audit import verify_run
from ormas_core.errors import RecordFormatError
from ormas_core.events import Alarm, RunStart
from ormas_core.facts import FactsFold, LossFacts, RunFacts, loss_facts
from ormas_core.record import Verification, read_metrics, read_record

_FRAME: Final = frozenset(
    {"run_start", "run_resumed", "manifest", "anchor", "run_end", "measurement", "alarm"}
)
"""Kinds of event that are compared elsewhere, or whose number says nothing."""


_NONE: Final = "none"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs.

    Attributes:
        topic: `integrity`, `config`, `model`, `alarms`, `events`, `loss` or `verdict`.
        what: what is compared, such as the name of a setting or of a layer.
        first: what the first run has.
        second: what the second run has.
    """

    topic: str
    what: str
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class RunDiff:
    """Two runs compared.

    Attributes:
        verifications: what `verify` says of each; look at it first.
        differences: in the order of `TOPICS`; of integrity only, where a check fails: what a broken
            record says is not compared.
    """

    verifications: tuple[Verification, Verification]
    differences: tuple[Difference, ...]

    @property
    def sound(self) -> bool:
        """Whether no check of either run fails."""
        return not any(verification.failed for verification in self.verifications)


def diff_runs(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> RunDiff:
    """Compare two run folders.

    Raises:
        FileNotFoundError: one of them has no record.
        RecordFormatError: one of them cannot be read.
        RecordChangedError: a file was changed while it was being read.
    """
    verifications = (verify_run(first), verify_run(second))
    integrity = tuple(
        Difference("integrity", one.name, one.outcome.value, other.outcome.value)
        for one, other in zip(*(v.checks for v in verifications), strict=True)
        if one.outcome is not other.outcome
    )
    if any(verification.failed for verification in verifications):
        return RunDiff(verifications, integrity)
    runs = (_read(first), _read(second))
    found = [
        difference
        for topic, entries in TOPICS.items()
        for difference in _differences(topic, entries(runs[0]), entries(runs[1]))
    ]
    return RunDiff(verifications, (*integrity, *found))


def _differences(
    topic: str, first: Mapping[str, str], second: Mapping[str, str]
) -> Iterator[Difference]:
    for what in dict.fromkeys((*first, *second)):
        pair = first.get(what, _NONE), second.get(what, _NONE)
        if pair[0] != pair[1]:
            yield Difference(topic, what, *pair)


@dataclass(slots=True)
class _Run:
    """What is compared of one run."""

    facts: RunFacts
    start: RunStart
    kinds: Counter[str]
    loss: LossFacts


def _read(folder: str | os.PathLike[str]) -> _Run:
    fold, kinds = FactsFold(), Counter[str]()
    for line in read_record(folder):
        fold.add(line.event)
        kinds[line.event.kind] += 1
    facts = fold.facts(finished=True)
    if facts.start is None:
        raise RecordFormatError(str(folder), f"{folder} holds no start of a run: no comparison.")
    return _Run(facts, facts.start, kinds, loss_facts(read_metrics(folder)))


def _config(run: _Run) -> dict[str, str]:
    config = dataclasses.asdict(run.start.config)
    return {name: str(value) for name, value in config.items()}


def _model(run: _Run) -> dict[str, str]:
    start = run.start
    found = {
        "class": start.model,
        "parameters": str(start.parameters),
        "trainable": str(start.trainable),
        "optimizer": str(start.optimizer),
        "framework": start.framework,
        "processes": str(start.world_size),
    }
    found |= {f"version of {name}": version for name, version in start.versions.items()}
    return found | {f"layer {name}": "watched" for name in start.layers}


def _alarms(run: _Run) -> dict[str, str]:
    found: dict[str, list[Alarm]] = {}
    for alarm in run.facts.alarms:
        if isinstance(alarm, Alarm):
            found.setdefault(f"{alarm.layer}: {alarm.diagnosis}", []).append(alarm)
    return {
        what: f"{len(alarms)}, first at step {alarms[0].step}" for what, alarms in found.items()
    }


def _events(run: _Run) -> dict[str, str]:
    return {kind: str(n) for kind, n in sorted(run.kinds.items()) if kind not in _FRAME}


def _loss(run: _Run) -> dict[str, str]:
    loss = run.loss
    if not loss.count:
        return {}
    return {
        "first": f"{loss.first:.6g}",
        "last": f"{loss.last:.6g}",
        "least": f"{loss.least:.6g}",
        "checks with a loss": str(loss.count),
    }


def _verdict(run: _Run) -> dict[str, str]:
    facts = run.facts
    return {
        "status": facts.status.value,
        "steps": str(facts.steps),
        "checks": str(facts.checks),
        "segments": str(facts.segments),
        "error": str(facts.error),
    }


TOPICS: Final[Mapping[str, Callable[[_Run], dict[str, str]]]] = {
    "config": _config,
    "model": _model,
    "alarms": _alarms,
    "events": _events,
    "loss": _loss,
    "verdict": _verdict,
}
"""What is compared beside the integrity, in the order in which it is shown."""
