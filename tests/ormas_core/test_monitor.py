"""The monitor around a plain loop."""

import gc
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from support import ToyNet, loader, of, plain_loop, plant_explosion, sgd, weights
from torch import nn
from torch.nn.modules import module as module_globals

from ormas_core import (
    Alarm,
    ConfigError,
    Diagnosis,
    Measurement,
    MemorySink,
    Monitor,
    MonitorConfig,
    MonitorError,
    NoGradients,
    RecordExistsError,
    RecordGap,
    RunEnd,
    RunStart,
    SinkError,
    Status,
    describe,
    read_record,
    run_facts,
    verify_record,
)

Make = Callable[..., tuple[Monitor, MemorySink]]


def test_training_is_bit_identical_with_and_without_the_monitor(make: Make) -> None:
    """All weights after 40 steps with a check at every step equal those without a monitor."""
    bare = ToyNet()
    plain_loop(bare, lambda loss: None, list(loader()), sgd(bare))
    watched = ToyNet()
    optimizer = sgd(watched)
    monitor, _ = make(watched, optimizer)
    plain_loop(watched, monitor.step, list(loader()), optimizer)
    monitor.close()
    expected = weights(bare)
    assert all(torch.equal(expected[name], value) for name, value in weights(watched).items())


def test_dropout_sees_the_same_random_numbers(make: Make) -> None:
    """The monitor draws nothing from torch's generator."""
    states = []
    for watch in (False, True):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        monitor = make(net)[0] if watch else None
        net(torch.ones(2, 4)).sum().backward()
        if monitor is not None:
            monitor.step(torch.ones(()))
            monitor.close()
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_unsampled_steps_have_no_hook_and_read_nothing(make: Make) -> None:
    """Between checks there is no hook, global or on a module, and the loss is not touched."""

    class Untouchable:
        def __float__(self) -> float:
            raise AssertionError("the loss of an unsampled step was read")

    net = ToyNet()
    monitor, sink = make(net, check_every=5)
    batch = next(iter(loader()))
    hooked = []
    for step in range(11):
        hooked.append(bool(module_globals._global_forward_hooks))
        assert not any(m._forward_hooks or m._backward_hooks for m in net.modules())
        net.zero_grad()
        net(**batch)["loss"].backward()
        monitor.step(Untouchable() if step % 5 else 1.0)
    monitor.close()
    assert hooked == [step % 5 == 0 for step in range(11)]
    assert [m.attempt for m in of(sink, Measurement)] == [0, 5, 10]
    assert not of(sink, MonitorError)
    assert not module_globals._global_forward_hooks


def test_an_explosion_is_named_and_the_run_is_a_problem(make: Make) -> None:
    """The planted layer alarms at its step, the record verifies, and the verdict is not healthy."""
    net = ToyNet()
    plant_explosion(net, 20)
    optimizer = sgd(net)
    monitor, sink = make(net, optimizer)
    with monitor:
        plain_loop(net, monitor.step, list(loader()), optimizer)
    first = of(sink, Alarm)[0]
    assert (first.layer, first.diagnosis, first.step) == ("fc2", Diagnosis.EXPLODING, 20)
    assert of(sink, RunEnd)[0].status in (Status.PROBLEM, Status.WARNINGS)


def test_a_healthy_run_says_nothing_and_reads_healthy(make: Make) -> None:
    """No event of warning or worse, status healthy."""
    net = ToyNet()
    optimizer = sgd(net)
    monitor, sink = make(net, optimizer)
    with monitor:
        plain_loop(net, monitor.step, list(loader()), optimizer)
    assert {event.severity.value for event in sink.events} == {"info"}
    assert of(sink, RunEnd)[0].status is Status.HEALTHY
    assert monitor.facts.status is Status.HEALTHY


def test_replaying_the_recorded_measurements_gives_the_recorded_events(
    make: Make, tmp_path: Path
) -> None:
    """The rules over `metrics.jsonl` say what the live run said."""
    from ormas_core import AlarmEngine, read_metrics

    net = ToyNet()
    plant_explosion(net, 20)
    optimizer = sgd(net)
    monitor, _ = make(net, optimizer)
    with monitor:
        plain_loop(net, monitor.step, list(loader()), optimizer)
    recorded = [line.event for line in read_record(tmp_path / "run")]
    start = recorded[0]
    assert isinstance(start, RunStart)
    engine = AlarmEngine(start.config)
    replayed = [e for m in read_metrics(tmp_path / "run") for e in engine.update(m)]
    live = [e for e in recorded if e.kind in {r.kind for r in replayed} | {"alarm", "loss_spike"}]
    assert [(e.kind, e.step, getattr(e, "layer", "")) for e in replayed] == [
        (e.kind, e.step, getattr(e, "layer", "")) for e in live
    ]
    assert any(isinstance(e, Alarm) for e in replayed)


def test_step_before_backward_is_not_monitored(make: Make) -> None:
    """A run whose checks see no gradient says so once, counts them and never reads healthy."""
    net = ToyNet()
    monitor, sink = make(net)
    for _ in range(3):
        monitor.step(1.0)
    monitor.close()
    assert [e.absent for e in of(sink, NoGradients)] == [True]
    end = of(sink, RunEnd)[0]
    assert end.counts["checks_without_gradients"] == 3
    assert end.status is Status.NOT_MONITORED


def test_a_frozen_model_is_not_told_to_call_backward(make: Make) -> None:
    """With nothing trainable to read, `no_gradients` says that and not where to put step()."""
    net = ToyNet()
    net.requires_grad_(False)
    monitor, sink = make(net)
    monitor.step(1.0)
    monitor.close()
    (found,) = of(sink, NoGradients)
    assert found.layers == 0
    assert "trainable" in describe(found)
    assert "backward" not in describe(found)
    assert of(sink, RunEnd)[0].status is Status.NOT_MONITORED


def test_some_checks_without_gradients_are_partly_monitored(make: Make) -> None:
    """One blind check among good ones is enough for PARTLY MONITORED."""
    net = ToyNet()
    monitor, sink = make(net)
    batch = next(iter(loader()))
    for blind in (False, True, False):
        net.zero_grad()
        if not blind:
            net(**batch)["loss"].backward()
        monitor.step(1.0)
    monitor.close()
    end = of(sink, RunEnd)[0]
    assert (end.status, end.counts["checks_without_gradients"]) == (Status.PARTLY_MONITORED, 1)


def test_a_run_without_checks_is_not_monitored(make: Make) -> None:
    """Closing at once is no healthy run."""
    monitor, sink = make(ToyNet())
    monitor.close()
    assert of(sink, RunEnd)[0].status is Status.NOT_MONITORED


def test_an_existing_record_is_refused_with_both_ways_out(make: Make, tmp_path: Path) -> None:
    """The error is a FileExistsError, names out= and overwrite=True, and nothing is lost."""
    make(ToyNet())[0].close()
    before = (tmp_path / "run" / "record.jsonl").read_bytes()
    with pytest.raises(FileExistsError, match=r"out=.*overwrite=True") as caught:
        make(ToyNet())
    assert isinstance(caught.value, RecordExistsError)
    assert (tmp_path / "run" / "record.jsonl").read_bytes() == before
    make(ToyNet(), overwrite=True)[0].close()
    assert verify_record(tmp_path / "run").complete


def test_an_exception_in_the_with_block_marks_the_run_interrupted(
    make: Make, tmp_path: Path
) -> None:
    """The user's exception comes through, its type is recorded and its text is not."""
    with pytest.raises(ZeroDivisionError), make(ToyNet())[0]:
        raise ZeroDivisionError("the patient's name")
    facts = run_facts(line.event for line in read_record(tmp_path / "run"))
    assert (facts.status, facts.error) == (Status.INTERRUPTED, "ZeroDivisionError")
    assert "patient" not in (tmp_path / "run" / "record.jsonl").read_text()


def test_close_in_a_finally_block_finds_the_exception(make: Make) -> None:
    """`close()` without arguments sees what is going up, and closing again changes nothing."""
    monitor, sink = make(ToyNet())

    def train() -> None:
        try:
            raise KeyError("x")
        finally:
            monitor.close()
            monitor.close()

    with pytest.raises(KeyError):
        train()
    assert [(e.status, e.error) for e in of(sink, RunEnd)] == [(Status.INTERRUPTED, "KeyError")]


def test_an_exception_handled_before_the_run_is_not_its_end(make: Make) -> None:
    """Training inside an `except` block of an earlier error is not interrupted by it."""
    net = ToyNet()
    try:
        raise ValueError("earlier")
    except ValueError:
        monitor, sink = make(net)
        net(**next(iter(loader())))["loss"].backward()
        monitor.step(1.0)
        monitor.close()
    assert of(sink, RunEnd)[0].error is None


def test_a_failing_sink_is_dropped_once_and_training_goes_on(make: Make, tmp_path: Path) -> None:
    """One sink_error in the record and the other sinks, though its close fails as well."""

    class Broken:
        calls = 0

        def write(self, event: object) -> None:
            Broken.calls += 1
            raise ConnectionError("no route")

        def close(self) -> None:
            raise ConnectionError("still no route")

    net = ToyNet()
    optimizer = sgd(net)
    monitor, sink = make(net, optimizer, sinks=[Broken()])
    with monitor:
        plain_loop(net, monitor.step, list(loader(12)), optimizer)
    assert Broken.calls == 1
    assert [(e.sink, "no route" in e.error) for e in of(sink, SinkError)] == [("Broken", True)]
    kinds = [line.event.kind for line in read_record(tmp_path / "run")]
    assert kinds.count("sink_error") == 1
    assert monitor.facts.status is Status.HEALTHY


def test_a_failure_of_the_monitor_itself_stops_it_and_not_training(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One monitor_error, hooks gone, and the run reads partly monitored."""
    net = ToyNet()
    optimizer = sgd(net)
    monitor, sink = make(net, optimizer)
    plain_loop(net, monitor.step, list(loader(2)), optimizer)

    def broken(*args: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("ormas_core.hooks.statistics.norms", broken)
    plain_loop(net, monitor.step, list(loader(3)), optimizer)
    assert not module_globals._global_forward_hooks
    monitor.close()
    assert len(of(sink, MonitorError)) == 1
    assert of(sink, RunEnd)[0].status is Status.PARTLY_MONITORED


def test_sinks_are_closed_even_if_the_end_cannot_be_written(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure while ending the run is logged, and every sink is closed all the same."""
    monitor, sink = make(ToyNet())

    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("ormas_core.facts.FactsFold.verdict", broken)
    monitor.close()
    assert sink.closed


def test_the_model_is_free_after_close(make: Make) -> None:
    """A closed monitor that is still held keeps neither model nor optimizer alive."""
    net = ToyNet()
    optimizer = sgd(net)
    monitor, _ = make(net, optimizer)
    plain_loop(net, monitor.step, list(loader(2)), optimizer)
    monitor.close()
    alive = weakref.ref(net), weakref.ref(optimizer)
    del net, optimizer
    gc.collect()
    assert [ref() for ref in alive] == [None, None]
    monitor.step(1.0)
    monitor.note_loss(1.0)
    monitor.prepare()


@pytest.mark.parametrize(
    "options",
    [
        {"check_every": 0},
        {"sigma": math.nan},
        {"repair": "some"},
        {"sinks": [object()]},
        {"sinks": [MemorySink]},
        {"config": {"sigma": 1}},
        {"out": ""},
        {"layers": []},
    ],
    ids=lambda options: next(iter(options)),
)
def test_wrong_options_fail_at_construction_and_write_nothing(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """A ValueError that names the option; no folder is made."""
    with pytest.raises(ConfigError) as caught:
        Monitor(ToyNet(), **{"out": tmp_path / "run", **options})
    assert caught.value.subject in options
    assert not (tmp_path / "run").exists()


def test_the_config_and_patterns_are_in_the_record(make: Make, tmp_path: Path) -> None:
    """`run_start.config` holds every setting, the layer patterns included."""
    config = MonitorConfig(baseline_memory=10)
    make(ToyNet(), layers=["fc[12]"], sigma=3.0, config=config)[0].close()
    start = next(iter(read_record(tmp_path / "run"))).event
    assert isinstance(start, RunStart)
    assert start.config == MonitorConfig(
        baseline_memory=10, layers=("fc[12]",), sigma=3.0, check_every=1
    )
    assert start.layers == ("fc1", "fc2")


def test_a_record_without_room_is_kept_and_said_once(
    make: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The writer goes on when there is room again, and the verdict is that of the training."""
    net = ToyNet()
    optimizer = sgd(net)
    monitor, sink = make(net, optimizer)
    plain_loop(net, monitor.step, list(loader(2)), optimizer)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("ormas_core.record.writer.chain.seal", full)
        plain_loop(net, monitor.step, list(loader(10)), optimizer)
    plain_loop(net, monitor.step, list(loader(20)), optimizer)
    monitor.close()
    assert not of(sink, SinkError)
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    (gap,) = [e.event for e in read_record(tmp_path / "run") if isinstance(e.event, RecordGap)]
    assert gap.measurements == 10
    assert of(sink, RunEnd)[0].status is Status.HEALTHY
    assert not verify_record(tmp_path / "run").failed


def test_a_disk_that_fails_costs_the_record_and_not_the_run(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer is dropped like any sink, the others are told, and what was written verifies."""
    net = ToyNet()
    optimizer = sgd(net)
    monitor, sink = make(net, optimizer)
    plain_loop(net, monitor.step, list(loader(2)), optimizer)

    def full(*args: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("ormas_core.record.writer.chain.seal", full)
    plain_loop(net, monitor.step, list(loader(2)), optimizer)
    monitor.close()
    assert [e.sink for e in of(sink, SinkError)] == ["RecordWriter"]
    assert of(sink, RunEnd)
    assert not verify_record(tmp_path / "run").failed
