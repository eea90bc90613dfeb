"""Test doubles and contract checks for those who write sinks and rules."""

from collections.abc import Callable, Iterable

from ormas_core.alarms import Rule
from ormas_core.config import MonitorConfig
from ormas_core.events import Event, Measurement, RunEnd, RunStart
from ormas_core.sinks import Sink
from ormas_core.terms import Stage, Status
from ormas_core.version import RECORD_SCHEMA


class FakeClock:
    """A clock that starts at `now` and advances by `tick` nanoseconds at every reading."""

    def __init__(self, now: int = 1_700_000_000_000_000_000, tick: int = 1_000_000) -> None:
        self.now = now
        self.tick = tick

    def __call__(self) -> int:
        """Return the time and advance it."""
        self.now += self.tick
        return self.now


def measurement(
    step: int, norms: dict[str, float | None], *, loss: float | None = None
) -> Measurement:
    """Return a measurement of the given gradient norms, for feeding rules and sinks."""
    return Measurement(
        step=step,
        attempt=step,
        stage=Stage.UNSCALED,
        loss=loss,
        layers=tuple(norms),
        norms=tuple(norms.values()),
    )


def run_start(layers: Iterable[str] = ("layer",), segment: int = 0) -> RunStart:
    """Return the first event of a run."""
    return RunStart(
        step=0,
        run_id="0" * 32,
        name=None,
        framework="torch",
        model="Model",
        optimizer="SGD",
        layers=tuple(layers),
        parameters=1,
        trainable=1,
        world_size=1,
        segment=segment,
        schema=RECORD_SCHEMA,
        versions={},
        config=MonitorConfig(),
    )


def check_sink(make: Callable[[], Sink], events: Iterable[Event]) -> None:
    """Check the sink contract on a real sink.

    Closing without events, closing twice, and a second run after a close must all work.

    Args:
        make: returns a new sink.
        events: what a run of interest sends; it is wrapped in a start and an end.
    """
    make().close()
    sink = make()
    assert isinstance(sink, Sink)
    for segment in range(2):
        sink.write(run_start(segment=segment))
        for event in events:
            sink.write(event)
        sink.write(RunEnd(step=1, steps=1, checks=1, counts={}, status=Status.HEALTHY))
        sink.close()
        sink.close()


def check_rule(
    make: Callable[[MonitorConfig], Rule], measurements: Iterable[Measurement]
) -> list[Event]:
    """Check the rule contract and return the events.

    A rule that is saved and restored into a new one at any point goes on with the same events, and
    the same measurements give the same events again.
    """
    inputs = list(measurements)
    config = MonitorConfig()
    whole = make(config)
    expected = [list(whole.update(m)) for m in inputs]
    for cut in range(len(inputs) + 1):
        first, second = make(config), make(config)
        events = [list(first.update(m)) for m in inputs[:cut]]
        second.load_state_dict(first.state_dict())
        events += [list(second.update(m)) for m in inputs[cut:]]
        assert events == expected, f"restored after {cut} measurements, the rule goes another way"
    return [event for events in expected for event in events]
