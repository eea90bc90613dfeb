"""The fan-out and its failure policy, and the two sinks that come with it."""

import logging
from collections.abc import Callable
from dataclasses import replace

import event_samples
import pytest

from ormas_core.events import EVENT_TYPES, Event, LossReduced
from ormas_core.messages import describe
from ormas_core.run_events import SinkError
from ormas_core.sinks import Fanout, LoggingSink, MemorySink
from ormas_core.terms import Status
from ormas_core.testing import FakeClock, run_start

REMARK = LossReduced(step=7, elements=2)


class FailingSink(MemorySink):
    """Raises from its `write` number `fails_at` on, or in `close`."""

    def __init__(self, fails_at: int = 0, *, at_close: bool = False) -> None:
        super().__init__()
        self.writes = self.closes = 0
        self._fails_at = fails_at
        self._at_close = at_close

    def write(self, event: Event, /) -> None:
        """Take the first events only."""
        self.writes += 1
        if not self._at_close and self.writes > self._fails_at:
            raise ConnectionError("no route to host")
        super().write(event)

    def close(self) -> None:
        """Raise if told so."""
        self.closes += 1
        if self._at_close:
            raise ConnectionError("no route to host")
        super().close()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="ormas")


def kinds(sink: MemorySink) -> list[str]:
    """Return what the sink was given."""
    return [event.kind for event in sink.events]


def test_events_reach_every_sink_in_order_with_the_time() -> None:
    """The same stamped event for all; the one handed in is left as it was."""
    first, second = MemorySink(), MemorySink()
    fanout = Fanout((first, second), FakeClock(now=100, tick=5))
    assert fanout.emit(REMARK) == fanout.emit(run_start()) == []
    assert (
        first.events
        == second.events
        == [
            replace(REMARK, time_ns=105),
            replace(run_start(), time_ns=110),
        ]
    )
    assert REMARK.time_ns == 0


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_failing_sink_is_reported_once_and_dropped(place: int) -> None:
    """Wherever it stands: the others get the event, one SinkError, and everything after it."""
    others = [MemorySink(), MemorySink()]
    bad = FailingSink(fails_at=1)
    sinks = [*others[:place], bad, *others[place:]]
    fanout = Fanout(sinks, FakeClock())
    assert fanout.emit(run_start()) == []
    failures = fanout.emit(REMARK)
    assert [(f.step, f.sink, f.error) for f in failures] == [
        (7, "FailingSink", "ConnectionError: no route to host")
    ]
    assert fanout.emit(REMARK) == []
    assert fanout.close(8) == []
    assert bad.writes == 2
    assert kinds(bad) == ["run_start"]
    for sink in others:
        assert kinds(sink) == ["run_start", "loss_reduced", "sink_error", "loss_reduced"]
        assert sink.events[2] == failures[0]
        assert sink.events[2].time_ns > sink.events[1].time_ns
        assert sink.closed


def test_a_dropped_sink_is_closed() -> None:
    """Its files and threads are let go at once, and a failure of that is not reported again."""
    bad, worse = FailingSink(), FailingSink()
    worse.close = _raise  # type: ignore[method-assign]
    fanout = Fanout((bad, worse))
    assert [failure.sink for failure in fanout.emit(REMARK)] == ["FailingSink", "FailingSink"]
    assert bad.closes == 1
    assert fanout.close(0) == []
    assert bad.closes == 1


def _raise() -> None:
    raise OSError("closing failed too")


def test_a_sink_that_fails_at_the_report_of_another_is_dropped_too() -> None:
    """Each failure is reported once to those that are left."""
    good = MemorySink()
    fanout = Fanout((FailingSink(fails_at=0), FailingSink(fails_at=1), good))
    assert len(fanout.emit(REMARK)) == 2
    assert kinds(good) == ["loss_reduced", "sink_error", "sink_error"]


def test_when_all_sinks_fail_nothing_is_raised() -> None:
    """Training goes on with nowhere to write to; later events are lost in silence."""
    sinks = [FailingSink() for _ in range(5)]
    fanout = Fanout(sinks)
    assert len(fanout.emit(REMARK)) == 5
    assert fanout.emit(REMARK) == []
    assert fanout.close(9) == []
    assert [sink.writes for sink in sinks] == [1] * 5


def test_two_sinks_that_compare_equal_are_told_apart() -> None:
    """The one that failed is dropped, not one that equals it."""

    class Equal(FailingSink):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

        __hash__ = None  # type: ignore[assignment]

    good, bad = Equal(fails_at=99), Equal(fails_at=0)
    fanout = Fanout((good, bad))
    assert len(fanout.emit(REMARK)) == 1
    assert fanout.emit(REMARK) == []
    assert kinds(good) == ["loss_reduced", "sink_error", "loss_reduced"]


def test_a_sink_that_fails_at_close_is_reported_to_those_still_open() -> None:
    """The first sink, the record, is closed last and so holds what went wrong."""
    record, last = MemorySink(), MemorySink()
    fanout = Fanout((record, FailingSink(at_close=True), last))
    (failure,) = fanout.close(12)
    assert (failure.step, failure.sink) == (12, "FailingSink")
    assert record.events == [failure]
    assert record.closed
    assert last.closed
    assert last.events == []


def test_a_record_that_fails_at_close_is_reported_to_nobody_and_does_not_raise() -> None:
    """Everything else is closed by then; the caller still learns of it."""
    record, other = FailingSink(at_close=True), MemorySink()
    fanout = Fanout((record, other))
    assert [failure.sink for failure in fanout.close(0)] == ["FailingSink"]
    assert other.closed
    assert other.events == []


def test_a_sink_that_fails_at_the_report_of_a_failed_close_is_dropped() -> None:
    """Both failures come back, and closing goes on."""
    record, bad, worse = MemorySink(), FailingSink(), FailingSink(at_close=True)
    failures = Fanout((record, bad, worse)).close(3)
    assert len(failures) == 2
    assert record.events == failures
    assert record.closed


def test_closing_twice_closes_each_sink_once() -> None:
    """The second time there is nothing left."""
    sink = FailingSink(fails_at=99)
    fanout = Fanout((sink,))
    assert fanout.close(0) == fanout.close(0) == []
    assert sink.closes == 1


def test_a_long_error_is_cut() -> None:
    """A server's error page does not go into the record whole."""

    class Verbose(MemorySink):
        def write(self, event: Event, /) -> None:
            raise ValueError("x" * 10_000)

    (failure,) = Fanout((Verbose(),)).emit(REMARK)
    assert failure.error == "ValueError: " + "x" * 488


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_stops_the_process_is_not_swallowed(error: type[BaseException]) -> None:
    """Ctrl-C in a sink is the user's, not the sink's failure."""

    class Interrupted(MemorySink):
        def write(self, event: Event, /) -> None:
            raise error

    with pytest.raises(error):
        Fanout((Interrupted(),)).emit(REMARK)


def test_a_failure_is_logged_once_as_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """By the fan-out; a LoggingSink beside it does not repeat it."""
    fanout = Fanout((FailingSink(), LoggingSink()))
    fanout.emit(run_start())
    logged = [record.getMessage() for record in caplog.records if "failed" in record.getMessage()]
    assert logged == [
        "The sink FailingSink failed and was dropped; training goes on: no route to host"
    ]
    assert {r.levelname for r in caplog.records if "failed" in r.getMessage()} == {"WARNING"}


LEVELS = {
    "info": logging.INFO,
    "warning": logging.WARNING,
    "critical": logging.ERROR,
    "proof": logging.WARNING,
    "action": logging.WARNING,
}


@pytest.mark.parametrize("kind", sorted(set(EVENT_TYPES) - {"sink_error", "run_end"}))
def test_events_are_logged_at_the_level_of_their_severity(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Warnings and worse are shown by Python's default, information is not."""
    event = event_samples.sample_events()[kind]
    LoggingSink().write(event)
    (record,) = caplog.records
    assert record.levelno == LEVELS[event.severity]
    assert record.name == "ormas"
    assert record.getMessage() == f"step {event.step}: {describe(event)}"


@pytest.mark.parametrize("status", Status)
def test_only_a_healthy_verdict_stays_quiet(
    status: Status, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of a run is shown unless it is healthy."""
    LoggingSink().write(event_samples.run_end(status=status))
    expected = logging.INFO if status is Status.HEALTHY else logging.WARNING
    assert [record.levelno for record in caplog.records] == [expected]


def test_sink_errors_are_left_to_the_fan_out(caplog: pytest.LogCaptureFixture) -> None:
    """It speaks where there is no LoggingSink as well."""
    LoggingSink().write(SinkError(step=0, sink="s", error="e"))
    assert caplog.records == []


def test_another_logger_can_be_given(caplog: pytest.LogCaptureFixture) -> None:
    """For those who have their own tree of loggers."""
    with caplog.at_level(logging.DEBUG, logger="mine"):
        LoggingSink(logging.getLogger("mine")).write(REMARK)
    assert [record.name for record in caplog.records] == ["mine"]


@pytest.mark.parametrize("make", [MemorySink, LoggingSink])
def test_closing_a_sink_is_quiet(
    make: Callable[[], MemorySink | LoggingSink], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is written at close."""
    make().close()
    assert caplog.records == []


def test_a_memory_sink_knows_whether_it_is_closed() -> None:
    """A second run on it opens it again."""
    sink = MemorySink()
    assert not sink.closed
    sink.close()
    assert sink.closed
    sink.write(REMARK)
    assert not sink.closed
    assert sink.events == [REMARK]
