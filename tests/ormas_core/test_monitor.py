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
from support import ToyNet, loader, plain_loop, plant_explosion, sgd, weights
from torch import Tensor, nn
from torch.nn.modules import module as module_globals

from ormas_core import (
    Alarm,
    ConfigError,
    Diagnosis,
    LossReduced,
    Manifest,
    Measurement,
    MechanismState,
    MemorySink,
    Monitor,
    MonitorConfig,
    MonitorError,
    NoGradients,
    NonfiniteGradient,
    NonfiniteLoss,
    RecordExistsError,
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


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Make a quiet monitor with a memory sink; every step is a check unless told otherwise."""

    def build(
        model: nn.Module, optimizer: Any = None, **options: Any
    ) -> tuple[Monitor, MemorySink]:
        sink = MemorySink()
        settings = {"out": tmp_path / "run", "check_every": 1, "verbose": False, **options}
        settings["sinks"] = [*settings.get("sinks", ()), sink]
        return Monitor(model, optimizer, **settings), sink

    return build


def of(sink: MemorySink, kind: type) -> list[Any]:
    return [event for event in sink.events if isinstance(event, kind)]


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
        raise ZeroDivisionError("secret 4711")
    facts = run_facts(line.event for line in read_record(tmp_path / "run"))
    assert (facts.status, facts.error) == (Status.INTERRUPTED, "ZeroDivisionError")
    assert "4711" not in (tmp_path / "run" / "record.jsonl").read_text()


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


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (torch.tensor(2.0), 2.0),
        (torch.tensor([1.0, 3.0]), 2.0),
        (torch.tensor([[2.0]], dtype=torch.bfloat16), 2.0),
        (torch.tensor(2), 2.0),
        (2, 2.0),
        (None, None),
        (torch.empty(0), None),
        ({"loss": 2.0}, None),
        (torch.tensor(math.nan), math.nan),
    ],
    ids=["scalar", "vector", "bf16", "int", "number", "none", "empty", "mapping", "nan"],
)
def test_every_form_of_loss_is_handled(make: Make, loss: Any, expected: float | None) -> None:
    """Usable losses are recorded as their mean; unusable ones are none, and nothing raises."""
    net = ToyNet()
    monitor, sink = make(net)
    net(**next(iter(loader())))["loss"].backward()
    monitor.step(loss)
    monitor.close()
    assert not of(sink, MonitorError)
    (found,) = of(sink, Measurement)
    assert found.loss == pytest.approx(expected, nan_ok=True)


def test_an_unreduced_loss_is_said_once(make: Make) -> None:
    """`loss_reduced` has the number of elements and comes once."""
    net = ToyNet()
    monitor, sink = make(net)
    for _ in range(3):
        monitor.step(torch.ones(5))
    monitor.close()
    assert [e.elements for e in of(sink, LossReduced)] == [5]


def test_losses_noted_in_one_step_are_averaged_or_added(make: Make) -> None:
    """Means average, parts add up, and a fallback counts only by itself."""
    net = ToyNet()
    monitor, sink = make(net)
    monitor.note_loss(1.0)
    monitor.note_loss(3.0)
    monitor.note_loss(50.0, fallback=True)
    monitor.step()
    monitor.note_loss(1.0, reduction="sum")
    monitor.note_loss(3.0, reduction="sum")
    monitor.step()
    monitor.note_loss(7.0, fallback=True)
    monitor.step()
    monitor.close()
    assert [m.loss for m in of(sink, Measurement)] == [2.0, 4.0, 7.0]


def test_finite_gradients_never_read_as_non_finite_nor_tiny_ones_as_zero(make: Make) -> None:
    """1e30 and 1e-40 in float32, 1e200 and 1e-200 in float64 keep their norms."""
    net = nn.ParameterList(
        [
            nn.Parameter(torch.zeros(1)),
            nn.Parameter(torch.zeros(1)),
            nn.Parameter(torch.zeros(1, dtype=torch.float64)),
            nn.Parameter(torch.zeros(1, dtype=torch.float64)),
        ]
    )
    model = nn.ModuleDict({str(i): nn.ParameterList([p]) for i, p in enumerate(net)})
    for parameter, value in zip(net, [1e30, 1e-40, 1e200, 1e-200], strict=True):
        parameter.grad = torch.full_like(parameter, value)
    monitor, sink = make(model)
    monitor.step(1.0)
    monitor.close()
    (found,) = of(sink, Measurement)
    norms = dict(zip(found.layers, found.norms, strict=True))
    assert norms == {
        "0": pytest.approx(1e30),
        "1": pytest.approx(1e-40, rel=1e-4),
        "2": pytest.approx(1e200),
        "3": pytest.approx(1e-200),
    }
    assert not found.nonfinite


def test_sparse_gradients_and_empty_batches_are_measured(make: Make) -> None:
    """A sparse embedding has a norm; an empty batch gives zero gradients and no error."""
    net = nn.ModuleDict({"table": nn.Embedding(5, 2, sparse=True), "head": nn.Linear(2, 1)})
    monitor, sink = make(net)
    net["head"](net["table"](torch.tensor([1, 1]))).sum().backward()
    monitor.step(1.0)
    net.zero_grad()
    net["head"](torch.ones(0, 2)).sum().backward()
    monitor.step(1.0)
    monitor.close()
    assert not of(sink, MonitorError)
    first, second = of(sink, Measurement)
    expected = net["head"].weight.detach().norm().item() * 2
    assert dict(zip(first.layers, first.norms, strict=True))["table"] == pytest.approx(expected)
    assert dict(zip(second.layers, second.norms, strict=True)) == {"head": 0.0, "table": None}


def test_no_value_is_fetched_one_by_one(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check copies once per device: no item(), one cpu()."""
    net = ToyNet()
    monitor, sink = make(net)
    loss = net(**next(iter(loader())))["loss"]
    loss.backward()
    copies = []
    real = Tensor.cpu
    monkeypatch.setattr(Tensor, "cpu", lambda self: copies.append(1) or real(self))
    for name in ("item", "tolist", "__float__", "__bool__", "__int__"):
        monkeypatch.setattr(Tensor, name, lambda self, name=name: pytest.fail(f"{name}() syncs"))
    monitor.step(loss)
    monkeypatch.undo()
    monitor.close()
    assert not of(sink, MonitorError)
    assert len(of(sink, Measurement)) == 1
    assert len(copies) == 1


def test_layers_frozen_and_thawed_later_are_followed(make: Make) -> None:
    """A frozen layer is not measured and no finding; thawed, it gets a baseline of its own."""
    net = ToyNet()
    net.fc1.requires_grad_(False)
    optimizer = sgd(net)
    monitor, sink = make(net, optimizer)
    plain_loop(net, monitor.step, list(loader(12)), optimizer)
    net.fc2.requires_grad_(False)
    net.fc1.requires_grad_(True)
    plain_loop(net, monitor.step, list(loader(12)), optimizer)
    monitor.close()
    assert not of(sink, Alarm)
    seen = of(sink, Measurement)
    assert set(seen[5].layers) == {"fc2", "fc3"}
    assert set(seen[-1].layers) == {"fc1", "fc3"}
    assert of(sink, RunEnd)[0].status is Status.HEALTHY


def test_a_layer_that_never_has_a_gradient_is_named_in_the_manifest(make: Make) -> None:
    """After the warm-up the unused layer is unobservable, and the run not healthy."""
    net = ToyNet()
    net.spare = nn.Linear(2, 2)
    optimizer = sgd(net)
    monitor, sink = make(net, optimizer)
    with monitor:
        plain_loop(net, monitor.step, list(loader(12)), optimizer)
    unseen = [
        line.layers
        for line in of(sink, Manifest)[-1].mechanisms
        if line.state is MechanismState.UNOBSERVABLE
    ]
    assert unseen == [("spare",)]
    assert of(sink, RunEnd)[0].status is Status.PARTLY_MONITORED


@pytest.mark.parametrize(("checks", "status"), [(8, "partly_monitored"), (9, "healthy")])
def test_a_run_too_short_for_a_baseline_is_not_called_healthy(
    make: Make, checks: int, status: str
) -> None:
    """Until a check can alarm, the last manifest says so and the verdict is partly monitored."""
    net = ToyNet()
    optimizer = sgd(net)
    monitor, sink = make(net, optimizer, warmup=8)
    with monitor:
        plain_loop(net, monitor.step, list(loader(checks)), optimizer)
    unseen = [m.name for m in of(sink, Manifest)[-1].mechanisms if m.state == "unobservable"]
    assert unseen == (["alarms"] if status == "partly_monitored" else [])
    assert of(sink, RunEnd)[0].status == status


def test_compiled_models_are_watched_by_their_parameters_only(make: Make) -> None:
    """No hook is armed for a compiled model, the manifest says why, and explosions are named."""
    net = ToyNet()
    plant_explosion(net, 20)
    compiled = torch.compile(net, backend="eager")
    optimizer = sgd(net)
    monitor, sink = make(compiled, optimizer)
    assert not module_globals._global_forward_hooks
    with monitor:
        plain_loop(compiled, monitor.step, list(loader()), optimizer)
    states = {m.name: m.state for m in of(sink, Manifest)[0].mechanisms}
    assert states["channel_maxima"] is MechanismState.UNOBSERVABLE
    assert of(sink, Alarm)[0].layer == "fc2"
    assert of(sink, Measurement)[0].channels == ()


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_layers_keep_their_place_in_backward(make: Make, reentrant: bool) -> None:
    """Checkpointed layers are listed between those around them, last first."""
    net = nn.Sequential(*[nn.Linear(3, 3) for _ in range(5)])
    monitor, sink = make(net)
    x = net[0](torch.ones(2, 3))
    for block in (net[1:3], net[3:4]):
        x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=reentrant)
    net[4](x).sum().backward()
    monitor.step(1.0)
    monitor.close()
    assert of(sink, Measurement)[0].layers == ("4", "3", "2", "1", "0")


def test_gradient_accumulation_sees_the_whole_step(make: Make) -> None:
    """Channel maxima and loss cover all micro-batches of the step."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False))
    net[0].weight.data.fill_(1.0)
    monitor, sink = make(net)
    for value in (1.0, 5.0, 3.0):
        loss = net(torch.tensor([[value]])).sum()
        monitor.note_loss(loss)
        loss.backward()
    monitor.step()
    monitor.close()
    (found,) = of(sink, Measurement)
    assert (found.loss, found.channels[0].peak, found.norms) == (3.0, 5.0, (9.0,))


def test_non_finite_loss_and_gradient_are_critical_once_per_episode(make: Make) -> None:
    """Two bad checks in a row are one episode, a later one is another."""
    net = nn.Linear(1, 1, bias=False)
    monitor, sink = make(net)
    for value in (1.0, math.nan, math.nan, 1.0, math.inf):
        net.zero_grad()
        loss = net(torch.full((1, 1), value)).sum()
        loss.backward()
        monitor.step(loss)
    monitor.close()
    assert [e.step for e in of(sink, NonfiniteLoss)] == [1, 4]
    counts = [(e.step, e.layers[0].nan, e.layers[0].inf) for e in of(sink, NonfiniteGradient)]
    assert counts == [(1, 1, 0), (4, 0, 1)]
    assert of(sink, RunEnd)[0].status is Status.PROBLEM


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
        {"repair": True},
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


def test_lazy_layers_and_models_without_parameters_are_no_error(make: Make) -> None:
    """Uninitialised parameters are counted once they exist; nothing to watch is not healthy."""
    lazy = nn.Sequential(nn.LazyLinear(2))
    monitor, sink = make(lazy)
    lazy(torch.ones(1, 3)).sum().backward()
    monitor.step(1.0)
    monitor.close()
    assert of(sink, Measurement)[0].has_gradient
    monitor, sink = make(nn.ReLU(), overwrite=True)
    monitor.step(1.0)
    monitor.close()
    assert of(sink, RunEnd)[0].status is Status.NOT_MONITORED


def test_a_disk_that_fails_costs_the_record_and_not_the_run(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer is dropped like any sink, the others are told, and what was written verifies."""
    net = ToyNet()
    optimizer = sgd(net)
    monitor, sink = make(net, optimizer)
    plain_loop(net, monitor.step, list(loader(2)), optimizer)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ormas_core.record.writer.chain.seal", full)
    plain_loop(net, monitor.step, list(loader(2)), optimizer)
    monitor.close()
    assert [e.sink for e in of(sink, SinkError)] == ["RecordWriter"]
    assert of(sink, RunEnd)
    assert not verify_record(tmp_path / "run").failed
