"""What is said of a run and to whom, and how that ends, also where nobody ends it."""

import logging
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from ormas_core.events import (
    Event,
    RunEnd,
    RunStart,
)
from ormas_core.facts import FactsFold
from ormas_core.record import RecordWriter, model_files
from ormas_core.record_events import CheckpointSaved
from ormas_core.sinks import Fanout, Sink

UNKNOWN: Final = "unknown"
"""`RunEnd.error` of a run that did not come to its end for a reason unseen."""

Paths = Iterable[str | os.PathLike[str]]

_LOG: Final = logging.getLogger("ormas")


class Closable(Protocol):
    """A monitor, as far as its end is concerned."""

    def close(self, error: BaseException | None = None, *, completed: bool = True) -> None:
        """End the run."""


class Journal:
    """Hands the events of one run to the facts, the record and the sinks.

    Args:
        record: the record; None where this process writes none.
        sinks: every destination, the record first.
        clock: current unix time in nanoseconds.
        anchor_every: checks between two anchors.

    Attributes:
        facts: what is known of the run so far.
        run_id: the run, once it has begun.
    """

    def __init__(
        self,
        record: RecordWriter | None,
        sinks: Iterable[Sink],
        clock: Callable[[], int],
        anchor_every: int,
    ) -> None:
        self.record = record
        self.facts = FactsFold()
        self.run_id = ""
        self._anchor_every = anchor_every
        self._fanout = Fanout(sinks, clock)

    def say(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, RunStart):
            self.run_id = event.run_id
        self.facts.add(event)
        for failure in self._fanout.emit(event):
            self.facts.add(failure)

    def anchor(self, step: int) -> None:
        """Pin both files of the record, if there is one."""
        if self.record is not None:
            self.say(self.record.anchor(step))

    def anchor_if_due(self, step: int) -> None:
        """Do `anchor` after every so many checks."""
        if self.facts.checks % self._anchor_every == 0:
            self.anchor(step)

    def end(self, steps: int, attempts: int, error: str | None, models: Paths = ()) -> None:
        """Say that the run is over, and which model files came of it."""
        run = self.record.folder if self.record is not None else None
        for path in models if run is not None else ():
            try:
                files = model_files(path, run)
            except Exception as failure:  # noqa: BLE001 - the end is written whatever a path is
                _LOG.error(
                    "The model %s is not bound to the record: %s", _legible(path), _legible(failure)
                )
            else:
                self.say(CheckpointSaved(step=steps, path=os.fspath(path), files=files))
        self.say(
            RunEnd(
                step=steps,
                steps=steps,
                checks=self.facts.checks,
                counts={**self.facts.totals(), "attempts": attempts},
                status=self.facts.verdict(error=error),
                error=error,
            )
        )
        self.anchor(steps)

    def close(self, step: int) -> None:
        """Close the record and the sinks."""
        for failure in self._fanout.close(step):
            self.facts.add(failure)


def guard(monitor: Closable, release: Callable[[], None], journal: Journal) -> None:
    """End the run as interrupted when the monitor is dropped, or the process exits, unclosed.

    Not in a forked child, whose exit is not that of the training.

    Args:
        monitor: the monitor; it is not kept alive.
        release: lets go of the model.
        journal: ends the run where the monitor is gone.
    """
    had_error = hasattr(sys, "last_value")
    weakref.finalize(
        monitor, _leave, weakref.ref(monitor), release, journal, os.getpid(), had_error
    )


def _leave(
    monitor: Callable[[], Closable | None],
    release: Callable[[], None],
    journal: Journal,
    pid: int,
    had_error: bool,
) -> None:
    if os.getpid() != pid:
        return
    living = monitor()
    if living is not None:  # the interpreter exits; an exception that nobody caught is known by now
        error = None if had_error else getattr(sys, "last_value", None)
        living.close(error, completed=False)
        return
    release()
    facts = journal.facts
    if facts.end is None:
        journal.end(facts.steps, facts.attempts, UNKNOWN)
        journal.close(facts.steps)


def _legible(what: object) -> str:
    """Return a text that every log can take: a file's name need not be UTF-8."""
    return str(what).encode("utf-8", "backslashreplace").decode("utf-8")
