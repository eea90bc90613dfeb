"""What every sink and every rule must do, checked by what `ormas_core.testing` ships."""

from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

import event_samples
import pytest
from alarm_streams import norms

from ormas_core.alarms import State
from ormas_core.config import MonitorConfig
from ormas_core.events import (
    Anchor,
    Event,
    Measurement,
    NoGradients,
    RunEnd,
    RunStart,
)
from ormas_core.record import RecordWriter, read_run, verify_record
from ormas_core.record_events import RunResumed
from ormas_core.sinks import LoggingSink, MemorySink, Sink
from ormas_core.testing import check_rule, check_sink

SINKS = {
    "memory": lambda folder: MemorySink(),
    "logging": lambda folder: LoggingSink(),
    "record": RecordWriter,
}
EVERY_EVENT = list(event_samples.sample_events().values())


def _in(folder: Path, make: Callable[[Path], Sink]) -> Callable[[], Sink]:
    number = count()
    return lambda: make(folder / str(next(number)))


@pytest.mark.parametrize("name", SINKS)
def test_every_core_sink_keeps_the_contract(name: str, tmp_path: Path) -> None:
    """Closed unused, closed twice, used again after closing, given every kind of event."""
    check_sink(_in(tmp_path, SINKS[name]), EVERY_EVENT)


def test_a_record_of_the_contract_run_holds_everything(tmp_path: Path) -> None:
    """Both segments are one chain, with every event in it but those that name a place in it."""
    frame = RunStart | RunEnd | Anchor | RunResumed
    middle = [event for event in EVERY_EVENT if not isinstance(event, frame)]
    check_sink(_in(tmp_path, RecordWriter), middle)
    written = tmp_path / "1"
    kinds = [event.kind for event in read_run(written)]
    assert len(kinds) == 2 * (len(middle) + 2)
    checks = {check.name: check.outcome.value for check in verify_record(written).checks}
    assert {checks[name] for name in ("chain", "metrics", "schema")} == {"pass"}


class _ClosesOnce(MemorySink):
    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed twice")
        super().close()


class _RunsOnce(MemorySink):
    def write(self, event: Event, /) -> None:
        if self.closed:
            raise RuntimeError("closed")
        super().write(event)


class _NeedsAStart(MemorySink):
    def close(self) -> None:
        assert isinstance(self.events[0], RunStart)
        super().close()


class _Picky(MemorySink):
    def write(self, event: Event, /) -> None:
        if isinstance(event, NoGradients):
            raise TypeError("unknown event")
        super().write(event)


@pytest.mark.parametrize("make", [_ClosesOnce, _RunsOnce, _NeedsAStart, _Picky])
def test_the_contract_refuses_a_sink_that_breaks_it(make: Callable[[], Sink]) -> None:
    """Each of these breaks one clause, so the check above can fail."""
    with pytest.raises((RuntimeError, IndexError, TypeError)):
        check_sink(make, EVERY_EVENT)


def test_the_contract_refuses_what_has_no_close() -> None:
    """Both methods are needed from the start."""

    class Half:
        def write(self, event: Event, /) -> None:
            """Take it."""

    with pytest.raises(AttributeError, match="close"):
        check_sink(Half, [])  # type: ignore[arg-type]


class _Forgetful:
    """Says something at the third check it sees, and forgets the count when saved."""

    def __init__(self, config: MonitorConfig) -> None:
        self._seen = 0

    def update(self, found: Measurement, /) -> Iterable[Event]:
        self._seen += 1
        if self._seen == 3:
            yield NoGradients(step=found.step, absent=True, layers=2)

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State, /) -> None:
        pass


def test_the_contract_refuses_a_rule_that_forgets() -> None:
    """`check_rule` names the point from which the restored rule goes another way."""
    with pytest.raises(AssertionError, match="restored after 1 measurements"):
        check_rule(_Forgetful, norms(1.0, 1.0, 1.0))
    assert check_rule(_Forgetful, norms(1.0, 1.0)) == []
