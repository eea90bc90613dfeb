"""What one check of the monitor reads, in a plain loop."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from support import ToyNet, loader, of, plain_loop, plant_explosion, sgd
from torch import Tensor, nn
from torch.nn.modules import module as module_globals

from ormas_core import (
    Alarm,
    LossReduced,
    Manifest,
    Measurement,
    MechanismState,
    MemorySink,
    Monitor,
    MonitorError,
    NonfiniteGradient,
    NonfiniteLoss,
    RunEnd,
    Status,
)

Make = Callable[..., tuple[Monitor, MemorySink]]


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
    """What is measured, a glance at parameters, and where that shows something, their signs."""
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
    assert 2 <= len(copies) <= 4


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
