"""Going on with a training: in which record, from which step, with what memory."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from ormas_core import ranks
from ormas_core.config import MonitorConfig
from ormas_core.errors import RecordFormatError
from ormas_core.events import (
    RunStart,
)
from ormas_core.host import Host
from ormas_core.journal import Journal
from ormas_core.options import MonitorOptions
from ormas_core.record import RecordWriter, read_record
from ormas_core.record_events import RunResumed
from ormas_core.sinks import LoggingSink

STATE_VERSION: Final = 1
_DETAIL: Final = 200
_GENESIS: Final = "0" * 64


class Stateful(Protocol):
    """A part of the monitor that remembers."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return what it remembers, as plain values."""

    def load_state_dict(self, state: Any, /) -> None:
        """Continue from that, or raise and stay as it is."""


def open_journal(
    config: MonitorConfig, host: Host, options: MonitorOptions, clock: Callable[[], int]
) -> tuple[Journal, Host]:
    """Return the journal of a run, of a further segment of one, or of one that is resumed.

    The host comes back with the run and the segment of a record that is resumed. A checkpoint of
    the run whose record is in the folder continues that record without being asked to.

    Raises: as `RecordWriter`.
    """
    if not ranks.writes():
        return Journal(None, (), clock, config.anchor_every), host
    out, state = options["out"], host.state
    goes_on = state is not None and (host.segment > 0 or _is_of(out, state))
    record = RecordWriter(
        out,
        overwrite=options["overwrite"],
        append=host.segment > 0,
        resume=goes_on or (options["resume"] and host.segment == 0),
        lock_stale=config.lock_stale,
    )
    if record.earlier is not None:
        segment = record.earlier.segment + 1
        host = replace(host, run_id=record.earlier.run_id, segment=segment)
    logging_sink = (LoggingSink(),) if options["verbose"] else ()
    sinks = (record, *options["sinks"], *logging_sink)
    return Journal(record, sinks, clock, config.anchor_every), host


class Memory:
    """What a resumed run must not have forgotten: saved with a checkpoint, restored from it.

    Args:
        journal: takes the `RunResumed`, and remembers too.
        alarms: the alarm engine.
        scaling: what is known of the loss scaler.
        sightings: what the checks have shown.
        lanes: the counts of each optimizer, where there are several.
    """

    def __init__(
        self,
        journal: Journal,
        alarms: Stateful,
        scaling: Stateful,
        sightings: Stateful,
        lanes: Stateful | None = None,
    ) -> None:
        self._parts: dict[str, Stateful] = {
            "alarms": alarms,
            "scaling": scaling,
            "sightings": sightings,
            "facts": journal.facts,
        }
        self._lanes = lanes
        if lanes is not None:
            self._parts["lanes"] = lanes
        self._journal = journal
        self._writer = journal.record
        self._saved: tuple[int, Mapping[str, Any]] = (-1, {})
        self._due = self._writer is not None and self._writer.earlier is not None

    def save(self, attempt: int) -> dict[str, Any]:
        """Return everything, as plain values that any checkpoint format holds.

        Most of it changes at checks only, so that asking in between costs next to nothing.
        """
        checks = self._journal.facts.checks
        if self._saved[0] != checks:
            parts = {name: dict(part.state_dict()) for name, part in self._parts.items()}
            self._saved = checks, parts
        anchor = self._writer.anchor(0) if self._writer is not None else None
        return {
            "version": STATE_VERSION,
            "run_id": self._journal.run_id,
            "attempt": attempt,
            "head": anchor.head if anchor else "",
            "lines": anchor.lines if anchor else 0,
            "rows": anchor.metrics_rows if anchor else 0,
            **self._saved[1],
            **({"lanes": dict(self._lanes.state_dict())} if self._lanes is not None else {}),
        }

    def settle(self) -> None:
        """Say that a record is resumed, if it is and no state was loaded. Call it at a check."""
        if self._due:
            self._due = False
            self._journal.say(self._event(0, 0, detail="no state of a checkpoint was given"))

    def load(self, state: Any) -> int:
        """Restore everything, or nothing; say which, and return the attempt to go on with."""
        self._due = False
        self._saved = (-1, {})
        resumed = self._load(state)
        self._journal.say(resumed)
        return resumed.attempt

    def _load(self, state: Any) -> RunResumed:
        before = {name: part.state_dict() for name, part in self._parts.items()}
        try:
            if state["version"] != STATE_VERSION:
                raise ValueError(f"the state is of version {state['version']!r}")  # noqa: TRY301 - as the parts do
            attempt, skipped = int(state["attempt"]), int(state["scaling"]["skipped"])
            place = str(state["head"]), int(state["lines"]), int(state["rows"])
            for name, part in self._parts.items():
                part.load_state_dict(state[name])
        except Exception as error:  # noqa: BLE001 - a checkpoint of whatever origin stops no training
            for name, part in self._parts.items():
                part.load_state_dict(before[name])
            reason = f"the state cannot be used: {type(error).__name__}: {error}"[:_DETAIL]
            return self._event(0, 0, detail=reason if state else "the checkpoint holds no state")
        resumed = self._event(attempt - skipped, attempt)
        if self._writer is not None and self._writer.holds(place[1], place[0]):
            head, lines, rows = place
            resumed = replace(
                resumed, checkpoint_head=head, checkpoint_lines=lines, checkpoint_rows=rows
            )
        return replace(resumed, restored=True)

    def _event(self, step: int, attempt: int, detail: str = "") -> RunResumed:
        earlier = self._writer.earlier if self._writer is not None else None
        reached = earlier.reached if earlier else None
        return RunResumed(
            step=step,
            attempt=attempt,
            restored=False,
            head=earlier.head if earlier else _GENESIS,
            lines=earlier.lines if earlier else 0,
            metrics_rows=earlier.metrics_rows if earlier else 0,
            reached=reached,
            repeated=max(0, (reached or 0) - step),
            ended=earlier.ended if earlier else False,
            torn_record_bytes=earlier.torn_record_bytes if earlier else 0,
            torn_metrics_bytes=earlier.torn_metrics_bytes if earlier else 0,
            detail=detail,
        )


def _is_of(out: str | os.PathLike[str], state: Any) -> bool:
    """Whether a state is of the run whose record is in the folder."""
    try:
        first = next(read_record(out), None)
        run_id = state["run_id"]
    except (OSError, RecordFormatError, TypeError, KeyError):
        return False
    return first is not None and isinstance(first.event, RunStart) and first.event.run_id == run_id
