"""Reports of training failures, retold as tiny reproductions; numbers are those of the catalogue.

Links: 2 github.com/TensorAuto/OpenTau/issues/300, 13 github.com/deepspeedai/DeepSpeed/issues/697,
34 github.com/Lightning-AI/pytorch-lightning/issues/4151,
53 github.com/meta-pytorch/opacus/issues/176.
"""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ToyNet, loader, plain_loop, sgd, weights
from torch import Tensor, nn
from torch.amp import GradScaler

from ormas_core import (
    Alarm,
    Measurement,
    MemorySink,
    Monitor,
    NonfiniteGradient,
    NonfiniteLoss,
    NotLearning,
    RunEnd,
    SkippedStep,
    Stage,
    Status,
    describe,
    read_metrics,
)


class InfInBackward(torch.autograd.Function):
    """The identity, whose backward emits one Inf."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.clone()
        grad.view(-1)[0] = float("inf")
        return grad


class Block(nn.Module):
    """Linear -> tanh, with the faulty function where told."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        x = InfInBackward.apply(x) if self.fault == "input" else x
        x = self.linear(x)
        x = InfInBackward.apply(x) if self.fault == "output" else x
        return torch.tanh(x)


def six_blocks(fault: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[Block(fault if i == 4 else "") for i in range(6)])


def check_once(net: nn.Module, folder: Path) -> list[Any]:
    sink = MemorySink()
    with Monitor(net, out=folder, check_every=1, sinks=[sink], verbose=False) as monitor:
        loss = net(torch.ones(2, 4)).sum()
        loss.backward()
        monitor.step(loss)
    return sink.events


def test_case_2_the_origin_of_a_nan_cascade_is_named(tmp_path: Path) -> None:
    """Block 4 is the origin, the blocks below are consequences, NaN and Inf are counted apart."""
    events = check_once(six_blocks("output"), tmp_path / "run")
    (found,) = [e for e in events if isinstance(e, NonfiniteGradient)]
    assert found.layer == "4.linear"
    assert (found.after, found.before) == ("4", "4.linear")
    assert [count.layer for count in found.layers] == [f"{i}.linear" for i in (4, 3, 2, 1, 0)]
    first, *rest = found.layers
    assert (first.nan, first.inf) == (0, 5)  # one bias element and its row of four weights
    assert any(count.nan for count in rest)  # Inf times zero further down
    assert not [e for e in events if isinstance(e, NonfiniteLoss)]
    text = describe(found)
    assert "output of 4 was finite" in text
    assert "4 further layers are consequences" in text


def test_case_2_a_fault_in_front_of_the_layer_is_placed_between_two_modules(tmp_path: Path) -> None:
    """Emitted below block 4's layer, Inf first shows in block 3, and block 4 was still finite."""
    (found,) = [
        e
        for e in check_once(six_blocks("input"), tmp_path / "run")
        if isinstance(e, NonfiniteGradient)
    ]
    assert found.layer == "3.linear"
    assert (found.after, found.before) == ("4.linear", "3")


def test_case_2_a_layer_that_overflows_itself_is_said_to(tmp_path: Path) -> None:
    """With a finite gradient at its own output, the layer's own backward is the origin."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False))
    sink = MemorySink()
    with Monitor(net, out=tmp_path / "run", check_every=1, sinks=[sink], verbose=False) as monitor:
        (net(torch.tensor([[3e38]])) * 10).sum().backward()
        monitor.step(1.0)
    (found,) = [e for e in sink.events if isinstance(e, NonfiniteGradient)]
    assert (found.layer, found.output_finite) == ("0", True)
    assert "arose in this layer" in describe(found)


def scaled_run(
    folder: Path, bad: range, steps: int, check_every: int = 1
) -> tuple[MemorySink, dict[str, Tensor], dict[str, Tensor]]:
    """Train with a real CPU scaler; overflow fc2's gradient in the attempts of `bad`.

    Return the events, the weights before the first bad attempt and those at the end.
    """
    net, sink = ToyNet(), MemorySink()
    optimizer, scaler = sgd(net), GradScaler("cpu", init_scale=65536.0)
    assert scaler.is_enabled()
    before = weights(net)
    with Monitor(
        net,
        optimizer,
        out=folder,
        check_every=check_every,
        scaler=scaler,
        sinks=[sink],
        verbose=False,
    ) as monitor:
        for attempt, batch in enumerate(loader(steps)):
            if attempt == bad.start:
                before = weights(net)
            optimizer.zero_grad()
            loss = net(**batch)["loss"]
            scaler.scale(loss).backward()
            if attempt in bad:
                assert net.fc2.weight.grad is not None
                net.fc2.weight.grad[0, 0] = float("inf")
            monitor.step(loss)
            scaler.step(optimizer)
            scaler.update()
    return sink, before, weights(net)


@pytest.mark.parametrize("check_every", [1, 4])
def test_case_13_a_collapsing_loss_scale_is_not_learning(check_every: int, tmp_path: Path) -> None:
    """25 skipped updates in a row are critical, with scales, layer and the last update's step."""
    sink, before, after = scaled_run(tmp_path / "run", range(3, 60), 40, check_every)
    (found,) = [e for e in sink.events if isinstance(e, NotLearning)]
    assert (found.layer, found.since_step, found.scale_before) == ("fc2", 3, 65536.0)
    assert 25 <= found.skipped < 25 + check_every
    assert found.scale == 65536.0 / 2**found.skipped
    assert all(torch.equal(before[name], after[name]) for name in before)
    if check_every == 1:
        assert "25 consecutive optimizer steps skipped, scale 65536 -> 0.002" in describe(found)
        assert "no update since step 3" in describe(found)
    end = sink.events[-2]
    assert isinstance(end, RunEnd)
    assert (end.status, end.counts["attempts"], end.steps) == (Status.PROBLEM, 40, 3)
    assert [e.step for e in sink.events if isinstance(e, Measurement)][-1] == 3


def test_case_13_the_start_up_search_for_a_scale_is_no_alarm(tmp_path: Path) -> None:
    """Three overflows at the start are information, and the run reads healthy."""
    sink, _, _ = scaled_run(tmp_path / "run", range(3), 20)
    skipped = [e for e in sink.events if isinstance(e, SkippedStep)]
    assert [(e.layer, e.in_a_row) for e in skipped] == [("fc2", 1), ("fc2", 2), ("fc2", 3)]
    assert {event.severity.value for event in sink.events} == {"info"}
    end = sink.events[-2]
    assert isinstance(end, RunEnd)
    assert (end.status, end.steps) == (Status.HEALTHY, 17)


@pytest.mark.parametrize(
    ("fused", "unscale"),
    # A fused optimizer unscales inside its step(), so nobody calls unscale_() for it.
    [(False, False), (False, True), (True, False)],
    ids=["plain-scaled", "plain-unscaled", "fused-scaled"],
)
def test_case_34_norms_are_those_of_unscaled_gradients(
    fused: bool, unscale: bool, tmp_path: Path
) -> None:
    """Read scaled or not, under a plain or fused optimizer, norms equal the fp32 run's."""
    found = []
    for scaler in (None, GradScaler("cpu", init_scale=65536.0)):
        net, sink = ToyNet(), MemorySink()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=fused)
        folder = tmp_path / ("scaled" if scaler else "plain")
        with Monitor(
            net, optimizer, out=folder, check_every=1, scaler=scaler, sinks=[sink], verbose=False
        ) as monitor:
            for batch in loader(20):
                optimizer.zero_grad()
                loss = net(**batch)["loss"]
                if scaler is None:
                    loss.backward()
                    monitor.step(loss)
                    optimizer.step()
                    continue
                scaler.scale(loss).backward()
                if unscale:
                    scaler.unscale_(optimizer)
                monitor.step(loss)
                scaler.step(optimizer)
                scaler.update()
        assert not [e for e in sink.events if isinstance(e, Alarm)]
        found.append([e for e in sink.events if isinstance(e, Measurement)])
    plain, scaled = found
    assert {m.stage for m in scaled} == {Stage.UNSCALED if unscale else Stage.SCALED}
    assert {m.scale for m in scaled} == {65536.0}
    for expected, seen in zip(plain, scaled, strict=True):
        assert seen.norms == pytest.approx(expected.norms, rel=1e-4)


def test_case_53_nothing_is_kept_over_300_steps_and_the_model_can_go(tmp_path: Path) -> None:
    """The number of live tensors is flat, the cost is recorded, a closed monitor holds no model."""
    net = ToyNet()
    optimizer = sgd(net)
    batches = list(loader(1))
    monitor = Monitor(net, optimizer, out=tmp_path / "run", check_every=1, verbose=False)

    def live_tensors() -> int:
        gc.collect()
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    plain_loop(net, monitor.step, batches * 100, optimizer)
    at_100 = live_tensors()
    plain_loop(net, monitor.step, batches * 200, optimizer)
    assert live_tensors() == at_100
    monitor.close()
    assert all(row.cost_ns > 0 for row in read_metrics(tmp_path / "run"))
    ref = weakref.ref(net)
    del net, optimizer
    gc.collect()
    assert ref() is None
