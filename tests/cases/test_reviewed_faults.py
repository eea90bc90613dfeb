"""Faults that a review of the first version found, each with the right value now."""

import copy
import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from support import ToyNet, loader, plain_loop, sgd
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.modules import module as module_globals

from ormas_core import (
    Alarm,
    AlarmEngine,
    Diagnosis,
    Manifest,
    Measurement,
    MemorySink,
    Monitor,
    MonitorConfig,
    MonitorError,
    NonfiniteGradient,
    RunEnd,
    Status,
    read_run,
    run_facts,
)
from ormas_core.testing import measurement


def watch(net: nn.Module, folder: Path, **options: Any) -> tuple[Monitor, MemorySink]:
    sink = MemorySink()
    settings = {"out": folder / "run", "check_every": 1, "verbose": False, "sinks": [sink]}
    return Monitor(net, **{**settings, **options}), sink


def of(sink: MemorySink, kind: type) -> list[Any]:
    return [event for event in sink.events if isinstance(event, kind)]


def gaps(sink: MemorySink, state: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(m.name, m.layers) for m in of(sink, Manifest)[-1].mechanisms if m.state == state]


def alarms(norms: list[dict[str, float | None]], losses: list[float] | None = None) -> list[Alarm]:
    """Return the layer alarms over a stream of norms."""
    engine = AlarmEngine(MonitorConfig())
    events = []
    for step, row in enumerate(norms):
        events += engine.update(measurement(step, row, loss=losses[step] if losses else 1.0))
    return [event for event in events if isinstance(event, Alarm)]


def test_a_layer_frozen_at_every_check_is_not_called_healthy(tmp_path: Path) -> None:
    """As a GAN's other side: trainable at the start, without `requires_grad` when looked at."""
    net = ToyNet()
    monitor, sink = watch(net, tmp_path)
    for batch in loader(12):
        net.zero_grad()
        net.fc3.requires_grad_(False)
        net(**batch)["loss"].backward()
        monitor.step(1.0)
        net.fc3.requires_grad_(True)
    monitor.close()
    assert ("gradient_norms", ("fc3",)) in gaps(sink, "unobservable")
    assert of(sink, RunEnd)[0].status is Status.PARTLY_MONITORED


def test_a_layer_frozen_on_the_way_is_in_the_manifest(tmp_path: Path) -> None:
    """Frozen at step 12 of 20: a partial gap that names it, said when it happens."""
    net = ToyNet()
    optimizer = sgd(net)
    monitor, sink = watch(net, tmp_path)
    plain_loop(net, monitor.step, list(loader(12)), optimizer)
    net.fc1.requires_grad_(False)
    plain_loop(net, monitor.step, list(loader(8)), optimizer)
    monitor.close()
    assert ("gradient_norms", ("fc1",)) in gaps(sink, "partial")
    assert [m.step for m in of(sink, Manifest)] == [0, 7, 12]


def test_a_layer_that_dies_in_the_warm_up_alarms_later() -> None:
    """Without a baseline the gap must be three warm-ups long, and then it is an alarm."""
    rows: list[dict[str, float | None]] = [{"a": 1.0, "b": 1.0}] * 6
    rows += [{"a": None, "b": 1.0}] * 30
    (found,) = alarms(rows)
    assert (found.layer, found.diagnosis, found.step) == ("a", Diagnosis.NO_GRADIENT, 6 + 23)


def test_a_layer_that_is_dead_from_the_start_is_unobservable(tmp_path: Path) -> None:
    """A gradient that is present and exactly zero in every check is no observation."""
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    nn.init.constant_(net[0].bias, -100.0)
    monitor, sink = watch(net, tmp_path)
    for _ in range(12):
        net.zero_grad()
        net(torch.ones(1, 2)).sum().backward()
        monitor.step(1.0)
    monitor.close()
    assert ("gradient_norms", ("0",)) in gaps(sink, "unobservable")
    assert of(sink, RunEnd)[0].status is Status.PARTLY_MONITORED


def test_a_layer_seen_too_rarely_for_a_baseline_is_said_at_the_end(tmp_path: Path) -> None:
    """Five gradients in twenty checks make no baseline; no alarm was possible for it."""
    net = ToyNet()
    monitor, sink = watch(net, tmp_path)
    for step, batch in enumerate(loader(20)):
        net.zero_grad()
        net(**batch)["loss"].backward()
        if step % 4:
            net.fc1.zero_grad()
        monitor.step(1.0)
    monitor.close()
    assert ("alarms", ("fc1",)) in gaps(sink, "unobservable")


def test_layer_drop_is_learnt_after_one_alarm() -> None:
    """Idle in every seventh check: the first gap alarms, the later ones of its kind do not."""
    rows: list[dict[str, float | None]] = [
        {"a": None if step > 8 and step % 7 == 0 else 1.0, "b": 1.0} for step in range(100)
    ]
    assert [(a.layer, a.step) for a in alarms(rows)] == [("a", 14)]


def test_gradients_that_fall_with_their_loss_are_no_alarm() -> None:
    """Three decades down together with the loss is a fitted model; alone it is vanishing."""
    norms: list[dict[str, float | None]] = [{"a": 1.0 + 0.1 * (i % 3)} for i in range(30)]
    norms += [{"a": 1e-3}] * 10
    loss = [1.0 + 0.1 * (i % 3) for i in range(30)]
    assert not alarms(norms, loss + [1e-3] * 10)
    (found,) = alarms(norms, loss + [1.0] * 10)
    assert found.diagnosis is Diagnosis.VANISHING


def test_names_stay_distinct_where_the_class_and_a_child_share_one(tmp_path: Path) -> None:
    """The model's own parameters do not merge with those of a child of its name."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.Net = nn.Linear(2, 1, bias=False)
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return self.Net(x) * self.scale

    net = Net()
    monitor, sink = watch(net, tmp_path)
    net(torch.ones(1, 2)).sum().backward()
    monitor.step(1.0)
    monitor.close()
    (found,) = of(sink, Measurement)
    assert sorted(found.layers) == ["Net", "Net'"]


def test_an_output_that_cannot_be_read_costs_that_layer_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Monitoring goes on, the layer's activations are unobservable, NaN elsewhere is seen."""
    from ormas_core.hooks import attach

    real = attach.channel_maxima

    def picky(module: nn.Module, output: Tensor) -> Tensor | None:
        if output.shape[-1] == 2:
            raise NotImplementedError("aten::amax")
        return real(module, output)

    monkeypatch.setattr(attach, "channel_maxima", picky)
    net = ToyNet()
    monitor, sink = watch(net, tmp_path)
    for batch in loader(12):
        net.zero_grad()
        loss = net(**batch)["loss"]
        loss.backward()
        monitor.step(loss)
    net.fc1.weight.grad.fill_(float("nan"))
    monitor.step(1.0)
    monitor.close()
    assert not of(sink, MonitorError)
    assert ("channel_maxima", ("fc3",)) in gaps(sink, "unobservable")
    assert of(sink, NonfiniteGradient)[0].layer == "fc1"


@pytest.mark.parametrize("loss", [torch.eye(2).to_sparse(), 10**400, object()], ids=type)
def test_no_loss_ends_the_monitoring(loss: Any, tmp_path: Path) -> None:
    """A sparse loss has its mean; what is no number is no loss; gradients are judged on."""
    net = ToyNet()
    monitor, sink = watch(net, tmp_path)
    net(**next(iter(loader())))["loss"].backward()
    monitor.step(loss)
    monitor.close()
    assert not of(sink, MonitorError)
    expected = 0.5 if isinstance(loss, Tensor) else None
    assert of(sink, Measurement)[0].loss == expected


def compile_function(net: nn.Module) -> Callable[..., Tensor]:
    return torch.compile(lambda x, y: net(x, y)["loss"], backend="eager", fullgraph=True)


def compile_module(net: nn.Module) -> Callable[..., Tensor]:
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    return lambda x, y: compiled(x, y)["loss"]


def compile_in_place(net: nn.Module) -> Callable[..., Tensor]:
    net.compile(backend="eager", fullgraph=True)
    return lambda x, y: net(x, y)["loss"]


@pytest.mark.filterwarnings("ignore:Using `torch.compile.module.` when there are global hooks")
@pytest.mark.parametrize("how", [compile_function, compile_module, compile_in_place])
def test_compiling_after_the_monitor_was_made_works(
    how: Callable[[nn.Module], Callable[..., Tensor]], tmp_path: Path
) -> None:
    """Code compiled as one graph meets no hook of ours, and gradients are measured."""
    torch._dynamo.reset()
    net = ToyNet()
    monitor, sink = watch(net, tmp_path)
    loss_of = how(net)
    for batch in loader(4):
        net.zero_grad()
        loss = loss_of(batch["x"], batch["labels"])
        loss.backward()
        monitor.step(loss)
    monitor.close()
    torch._dynamo.reset()
    assert not of(sink, MonitorError)
    assert [m.has_gradient for m in of(sink, Measurement)] == [True] * 4


def test_a_dropped_monitor_takes_its_hook_along(tmp_path: Path) -> None:
    """A crashed notebook cell leaves no process-wide hook, and outputs carry none."""
    net = ToyNet()
    monitor, _ = watch(net, tmp_path, sinks=())
    assert module_globals._global_forward_hooks
    del monitor
    gc.collect()
    assert not module_globals._global_forward_hooks
    assert run_facts(read_run(tmp_path / "run")).error == "unknown"


def test_a_kept_graph_keeps_no_hooks(tmp_path: Path) -> None:
    """Hooks on output tensors go when the check is made."""
    net = nn.Sequential(nn.Linear(2, 1))
    monitor, _ = watch(net, tmp_path)
    output = net(torch.ones(1, 2))
    output.sum().backward(retain_graph=True)
    monitor.step(1.0)
    monitor.close()
    assert not output._backward_hooks


def test_any_object_as_optimizer_comes_to_an_end(tmp_path: Path) -> None:
    """A mock whose `.optimizer` never ends is no torch optimizer."""
    monitor, sink = watch(ToyNet(), tmp_path, optimizer=MagicMock())
    monitor.close()
    states = {m.name: m.state for m in of(sink, Manifest)[0].mechanisms}
    assert states["optimizer"] == "off"


def test_an_unscaled_gradient_is_seen_without_the_optimizer(tmp_path: Path) -> None:
    """Not knowing the optimizer, any that has been unscaled counts."""
    net = ToyNet()
    optimizer, scaler = sgd(net), GradScaler("cpu")
    monitor, sink = watch(net, tmp_path, scaler=scaler)
    loss = net(**next(iter(loader())))["loss"]
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    monitor.step(loss)
    monitor.close()
    found = of(sink, Measurement)[0]
    assert found.norms[0] == pytest.approx(_norm(net.fc3))


def _norm(layer: nn.Module) -> float:
    return (
        sum(float(p.grad.square().sum()) for p in layer.parameters() if p.grad is not None) ** 0.5
    )


@pytest.mark.parametrize("package", ["ormas_lightning", "ormas_hf"])
def test_a_used_callback_can_be_copied_and_pickled(package: str, tmp_path: Path) -> None:
    """A copy has the settings and watches nothing."""
    if package == "ormas_hf":
        from support import hf_arguments

        from ormas_hf import HFMonitorCallback

        callback: Any = HFMonitorCallback(out=tmp_path / "run", verbose=False)
        arguments = hf_arguments(tmp_path / "hf")
        callback.on_train_begin(arguments, None, None, model=ToyNet(), optimizer=None)
    else:
        from support import lightning_net, lightning_trainer

        from ormas_lightning import LightningMonitorCallback

        callback = LightningMonitorCallback(out=tmp_path / "run", verbose=False)
        callback.on_fit_start(lightning_trainer(tmp_path), lightning_net())
    for again in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):  # noqa: S301 - ours
        assert again.monitor is None
        assert again._options["out"] == tmp_path / "run"
    callback.monitor.close()
