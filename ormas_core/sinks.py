"""Where events go. A sink has two methods; a failing one never reaches training."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Protocol, runtime_checkable

from ormas_core.events import Event, RunEnd
from ormas_core.messages import describe
from ormas_core.run_events import SinkError
from ormas_core.terms import Severity, Status

_LEVELS: Final = {
    Severity.INFO: logging.INFO,
    Severity.WARNING: logging.WARNING,
    Severity.CRITICAL: logging.ERROR,
    Severity.PROOF: logging.WARNING,
    Severity.ACTION: logging.WARNING,
}
_ERROR_LIMIT: Final = 500


@runtime_checkable
class Sink(Protocol):
    """A destination of events.

    `write` must be quick: it runs in the training thread. Either method may raise; the sink is then
    reported once and dropped. After `close`, a `RunStart` may begin another run on the same sink.
    """

    def write(self, event: Event, /) -> None:
        """Take one event. Only rank 0 calls this."""

    def close(self) -> None:
        """Flush and release what is held. May be called more than once."""


class Fanout:
    """Stamps events with the time and hands them to every sink, dropping the ones that fail.

    Args:
        sinks: destinations, in order; the record comes first.
        clock: current unix time in nanoseconds.
    """

    def __init__(self, sinks: Iterable[Sink], clock: Callable[[], int] = time.time_ns) -> None:
        self._sinks = list(sinks)
        self._clock = clock

    def emit(self, event: Event) -> list[SinkError]:
        """Write `event` to every sink; return the failures, already written to the others."""
        return self._deliver(replace(event, time_ns=self._clock()))

    def close(self, step: int) -> list[SinkError]:
        """Close every sink, the first one last, so that it can hold what the others did wrong."""
        failures: list[SinkError] = []
        while self._sinks:
            sink = self._sinks[-1]
            try:
                sink.close()
            except Exception as error:  # noqa: BLE001 - no sink may reach training
                self._sinks.pop()
                failure = self._failure(sink, error, step)
                failures += [failure, *self._deliver(failure)]
            else:
                self._sinks.pop()
        return failures

    def _deliver(self, event: Event) -> list[SinkError]:
        failures: list[SinkError] = []
        for sink in tuple(self._sinks):
            try:
                sink.write(event)
            except Exception as error:  # noqa: BLE001 - no sink may reach training
                self._drop(sink)
                failures.append(self._failure(sink, error, event.step))
        # Each failure has shortened the list, so this ends.
        return failures + [again for failure in failures for again in self._deliver(failure)]

    def _drop(self, sink: Sink) -> None:
        self._sinks = [other for other in self._sinks if other is not sink]
        with contextlib.suppress(Exception):  # its failure is being reported already
            sink.close()

    def _failure(self, sink: Sink, error: Exception, step: int) -> SinkError:
        logging.getLogger("ormas").warning(
            "The sink %s failed and was dropped; training goes on: %s", type(sink).__name__, error
        )
        return SinkError(
            step=step,
            time_ns=self._clock(),
            sink=type(sink).__name__,
            error=f"{type(error).__name__}: {error}"[:_ERROR_LIMIT],
        )


class MemorySink:
    """Keeps events in a list, for tests and notebooks. It grows for as long as the run lasts."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.closed = False

    def write(self, event: Event, /) -> None:
        """Append `event`."""
        self.events.append(event)
        self.closed = False

    def close(self) -> None:
        """Note that the run is over."""
        self.closed = True


class LoggingSink:
    """Logs events to the standard logger `ormas`: warnings and worse are shown by default."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("ormas")

    def write(self, event: Event, /) -> None:
        """Log `event` at the level of its severity."""
        if isinstance(event, SinkError):
            return  # said by the fan-out, which also speaks where there is no LoggingSink
        level = _LEVELS[event.severity]
        if isinstance(event, RunEnd) and event.status is not Status.HEALTHY:
            level = logging.WARNING
        self._logger.log(level, "step %d: %s", event.step, describe(event))

    def close(self) -> None:
        """Nothing to release."""
