"""Recorded measurements through the rules again: the same settings give the recorded events."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import alarm_streams
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ormas_core.alarms import RULES, AlarmEngine
from ormas_core.cli.main import main
from ormas_core.config import MonitorConfig
from ormas_core.errors import ConfigError, RecordFormatError, UnknownOptionError
from ormas_core.events import (
    EVENT_TYPES,
    Measurement,
    RunEnd,
)
from ormas_core.record import RecordWriter
from ormas_core.record_events import RunResumed
from ormas_core.replay import RULE_EVENTS, parse_changes, replay_run
from ormas_core.terms import Status
from ormas_core.testing import FakeClock, run_start

WARM = alarm_streams.norms(*[1.0] * 8)
BROKEN = alarm_streams.norms(1e6, 1e6, 1.0, 0.02, 0.02, start=8)


class Live:
    """Writes a record as a monitor would: measurements, and what the engine says of them."""

    def __init__(
        self, folder: Path, config: MonitorConfig | None = None, **options: object
    ) -> None:
        self.writer = RecordWriter(folder, **options)  # type: ignore[arg-type]
        self.config = config or MonitorConfig()
        self.engine = AlarmEngine(self.config)
        self.clock = FakeClock()

    def put(self, event: object) -> None:
        self.writer.write(dataclasses.replace(event, time_ns=self.clock()))  # type: ignore[arg-type, type-var]

    def start(self, segment: int = 0) -> None:
        self.put(dataclasses.replace(run_start(segment=segment), config=self.config))

    def check(self, measurements: Sequence[Measurement]) -> None:
        for measurement in measurements:
            self.put(measurement)
            for event in self.engine.update(measurement):
                self.put(event)

    def end(self) -> None:
        self.put(RunEnd(step=0, steps=0, checks=0, counts={}, status=Status.HEALTHY))
        self.put(self.writer.anchor(0))
        self.writer.close()


@given(st.lists(alarm_streams.streams(), min_size=1, max_size=3))
def test_the_same_settings_give_the_recorded_events(
    tmp_path_factory: pytest.TempPathFactory, segments: list[list[Measurement]]
) -> None:
    """Any stream of measurements in any number of segments, each with new baselines."""
    folder = tmp_path_factory.mktemp("replay") / "run"
    for number, stream in enumerate(segments):
        live = Live(folder, append=number > 0)
        live.start(number)
        live.check(stream)
        live.end()
    found = replay_run(folder)
    assert found.same
    assert found.only_recorded == found.only_replayed == found.notes == ()
    assert found.changes == {}


def test_a_live_monitor_is_replayed_exactly(tmp_path: Path) -> None:
    """A real training with a planted explosion: the alarm, and that it is over, come again."""
    import support

    from ormas_core import Monitor

    net = support.ToyNet()
    support.plant_explosion(net, at_step=20)
    monitor = Monitor(net, out=tmp_path / "run", check_every=1, verbose=False)
    support.plain_loop(net, monitor.step, list(support.loader()), support.sgd(net))
    monitor.close()
    found = replay_run(tmp_path / "run")
    assert found.same
    assert "alarm" in {event.kind for event in found.recorded}


def write(folder: Path) -> None:
    """Write a run with an explosion of six decades and a fall of two."""
    live = Live(folder)
    live.start()
    live.check([*WARM, *BROKEN])
    live.end()


def test_other_settings_make_other_events(tmp_path: Path) -> None:
    """What is gone and what is new is told apart; the recorded settings are named."""
    write(tmp_path / "run")
    found = replay_run(tmp_path / "run", {"alarm_min_decades": 5.0})
    assert found.changes == {"alarm_min_decades": (1.0, 5.0)}
    assert [event.kind for event in found.only_recorded] == ["alarm"]
    assert found.only_replayed == ()
    assert not found.same
    stricter = replay_run(tmp_path / "run", {"warmup": 5, "alarm_confirmations": 1})
    assert stricter.only_replayed


@pytest.mark.parametrize("restored", [True, False])
def test_a_resumed_run_goes_on_from_the_restored_state(tmp_path: Path, restored: bool) -> None:
    """The state after the row at which it was saved, although the first process went further."""
    live = Live(tmp_path / "run")
    live.start()
    live.check(WARM)
    saved, lines, rows = live.engine.state_dict(), 1, len(WARM)
    live.check(alarm_streams.norms(1e6, start=8))
    live.writer.close()

    again = Live(tmp_path / "run", append=True)
    head, lines_now = again.writer.anchor(0).head, again.writer.anchor(0).lines
    again.start(1)
    if restored:
        again.engine.load_state_dict(saved)
    resumed = RunResumed(
        step=8,
        attempt=8,
        restored=restored,
        head=head,
        lines=lines_now,
        metrics_rows=rows + 1,
        reached=8,
        repeated=0,
        ended=False,
        checkpoint_head="0" * 64 if restored else None,
        checkpoint_lines=lines if restored else None,
        checkpoint_rows=rows if restored else None,
    )
    again.put(resumed)
    again.check(BROKEN)
    again.end()
    found = replay_run(tmp_path / "run")
    assert found.same
    assert len(found.recorded) == (4 if restored else 1)


def test_a_state_of_another_record_is_said(tmp_path: Path) -> None:
    """It cannot be known, so the replay begins anew and says why it may differ."""
    live = Live(tmp_path / "run")
    live.start()
    live.put(
        RunResumed(
            step=8,
            attempt=8,
            restored=True,
            head="0" * 64,
            lines=0,
            metrics_rows=0,
            reached=None,
            repeated=0,
            ended=False,
        )
    )
    live.engine.update(WARM[0])
    live.check([*WARM, *BROKEN])
    live.end()
    (note,) = replay_run(tmp_path / "run").notes
    assert "a state of another record" in note


def test_the_kinds_that_rules_make_are_known() -> None:
    """Whatever a rule can yield is compared, and nothing else is."""
    assert set(EVENT_TYPES) >= RULE_EVENTS
    yielded = set()
    for rule in RULES.values():
        import inspect
        import sys

        source = inspect.getsource(sys.modules[rule.__module__])  # type: ignore[attr-defined]
        made = {kind for kind, cls in EVENT_TYPES.items() if f"{cls.__name__}(" in source}
        # The rule of experts picks its class before it makes one.
        chosen = re.findall(r"kind = (\w+) if .* else (\w+)", source)
        names = {name for pair in chosen for name in pair}
        yielded |= made | {kind for kind, cls in EVENT_TYPES.items() if cls.__name__ in names}
    assert yielded == RULE_EVENTS


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ([], {}),
        (["sigma=3.0", "warmup=4"], {"sigma": 3.0, "warmup": 4}),
        (["sigma=3"], {"sigma": 3.0}),
    ],
)
def test_settings_are_read_by_their_types(texts: list[str], found: dict[str, object]) -> None:
    """A number for a number."""
    assert parse_changes(texts) == found


@pytest.mark.parametrize("text", ["sigma", "sigma=x", "warmup=1.5", "layers=a", "=3"])
def test_settings_that_cannot_be_read_are_refused(text: str) -> None:
    """With what was given."""
    with pytest.raises(ConfigError, match="--set"):
        parse_changes([text])


def test_settings_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    """With the names of those that do."""
    write(tmp_path / "run")
    with pytest.raises(UnknownOptionError, match="sigma"):
        replay_run(tmp_path / "run", parse_changes(["sigmoid=3"]))
    with pytest.raises(ConfigError, match="warmup"):
        replay_run(tmp_path / "run", {"warmup": 0})


def test_measurements_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    """A stranger's record may name more layers than it has norms for."""
    live = Live(tmp_path / "run")
    live.start()
    live.put(dataclasses.replace(WARM[0], norms=(1.0,)))
    live.end()
    with pytest.raises(RecordFormatError, match="do not fit together"):
        replay_run(tmp_path / "run")


def test_the_command_says_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0 if the record is reproduced or settings were changed, 1 if it is not."""
    write(tmp_path / "run")
    assert main(["replay", str(tmp_path / "run")]) == 0
    assert "gives the recorded events, in the same order" in capsys.readouterr().out
    assert main(["replay", str(tmp_path / "run"), "--set", "alarm_min_decades=5"]) == 0
    out = capsys.readouterr().out
    assert "setting   alarm_min_decades: 1.0 -> 5.0" in out
    assert "gone      step 12: alarm: head: vanishing" in out
    live = Live(tmp_path / "odd")
    live.start()
    live.put(alarm_streams.norms(1.0)[0])
    live.put(replay_run(tmp_path / "run").recorded[0])
    live.end()
    assert main(["replay", str(tmp_path / "odd")]) == 1
    assert main(["replay", str(tmp_path / "run"), "--set", "sigma"]) == 2
    assert main(["replay", str(tmp_path / "nothing")]) == 2
