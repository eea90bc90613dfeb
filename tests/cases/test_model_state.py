"""Reports about the state that a model is in, rather than its gradients."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from support import of
from torch import nn

from ormas_core import (
    EvalMode,
    MemorySink,
    Monitor,
    NonfiniteState,
    RunEnd,
    StatisticsAtOdds,
    Status,
    SwitchedToEval,
)


class Net(nn.Module):
    """A stem with a batch norm, and a head with dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one number for each row."""
        return self.head(self.drop(self.stem(x)))  # type: ignore[no-any-return]


def train(
    folder: Path, net: nn.Module, between: Any = lambda step: None, *, check_every: int = 10
) -> MemorySink:
    """Train sixty steps, with a check every so many; `between` is called before each step."""
    sink = MemorySink()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    x = torch.randn(16, 8)
    with Monitor(
        net, optimizer, out=folder, check_every=check_every, sinks=[sink], verbose=False
    ) as monitor:
        for step in range(60):
            between(step)
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            monitor.step(loss)
            optimizer.step()
    return sink


def test_case_20_a_validation_that_leaves_the_model_in_eval_mode(tmp_path: Path) -> None:
    """At the first check after it, once, and with the step before which it was well."""
    net = Net()
    sink = train(tmp_path, net, lambda step: net.eval() if step == 35 else None)
    (found,) = of(sink, SwitchedToEval)
    assert (found.step, found.before, found.modules) == (40, 30, ("Net",))
    assert not of(sink, EvalMode)


def test_case_20_a_validation_that_is_undone_is_nothing(tmp_path: Path) -> None:
    """Between two steps the model may be in eval mode; a second slip is a second episode."""
    net = Net()

    def validate(step: int) -> None:
        net.train(step not in (30, 50))

    sink = train(tmp_path, net, validate)
    assert [(e.step, e.modules) for e in of(sink, SwitchedToEval)] == [
        (30, ("Net",)),
        (50, ("Net",)),
    ]
    quiet = train(tmp_path / "quiet", Net(), lambda step: None)
    assert not of(quiet, SwitchedToEval)


def test_case_20_a_batch_norm_frozen_from_the_start_is_information(tmp_path: Path) -> None:
    """Said once; and a slip of the whole model and back is told from it."""
    net = Net()
    net.stem[1].eval()

    def slip(step: int) -> None:
        net.train(step != 30)
        net.stem[1].eval()

    sink = train(tmp_path, net, slip)
    (first,) = of(sink, EvalMode)
    assert (first.step, first.modules) == (0, ("stem.1",))
    assert [(e.step, e.modules) for e in of(sink, SwitchedToEval)] == [(30, ("Net",))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_case_31_a_fresh_head_is_nan_before_the_first_step(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    """Said before any check, by layer, as a matter of loading; buffers count too."""
    net = Net().to(dtype)
    with torch.no_grad():
        net.head.weight[0, :3] = float("nan")
        net.stem[1].running_var[0] = float("inf")
    sink = MemorySink()
    Monitor(net, out=tmp_path, sinks=[sink], verbose=False).close()
    (found,) = of(sink, NonfiniteState)
    assert {(c.layer, c.nan, c.inf) for c in found.layers} == {("stem.1", 0, 1), ("head", 3, 0)}
    assert [e.kind for e in sink.events][:3] == ["run_start", "manifest", "nonfinite_state"]
    assert of(sink, RunEnd)[0].checks == 0


def test_case_31_large_values_and_empty_ones_are_no_finding(tmp_path: Path) -> None:
    """Not finite is not the same as a sum of squares that overflows."""
    net = Net()
    with torch.no_grad():
        net.head.weight.fill_(3e38)
    net.empty = nn.Parameter(torch.empty(0))
    net.later = nn.Parameter(torch.empty(3, device="meta"))
    sink = MemorySink()
    Monitor(net, out=tmp_path, sinks=[sink], verbose=False).close()
    assert not of(sink, NonfiniteState)


def freeze(net: nn.Module) -> None:
    """Freeze the stem as users do: once, its batch norm in evaluation mode."""
    for parameter in net.stem.parameters():
        parameter.requires_grad_(False)
    net.stem.eval()


def test_case_21_a_frozen_batch_norm_that_thaws_is_named(tmp_path: Path) -> None:
    """`model.train()` undoes the freezing: said once, after the warm-up, by the layer's name."""
    net = Net()
    freeze(net)
    before = net.stem[1].running_mean.clone()
    sink = train(tmp_path, net, lambda step: net.train(), check_every=5)
    assert not torch.equal(before, net.stem[1].running_mean)
    (found,) = of(sink, StatisticsAtOdds)
    assert (found.step, found.drifting, found.untouched) == (35, ("stem.1",), ())
    assert of(sink, RunEnd)[0].status is Status.WARNINGS


def test_case_21_a_batch_norm_that_stays_frozen_is_not(tmp_path: Path) -> None:
    """Neither is one that is trained."""
    net = Net()
    train(tmp_path / "before", net)
    freeze(net)
    sink = train(tmp_path, net, check_every=5)
    assert not of(sink, StatisticsAtOdds)
    assert not of(train(tmp_path / "trained", Net(), check_every=5), StatisticsAtOdds)


def test_case_21_the_copy_of_a_momentum_encoder_is_not(tmp_path: Path) -> None:
    """It requires no gradient, trains its statistics, and follows the other network."""
    net = Net()
    net.teacher = copy.deepcopy(net.stem).requires_grad_(False)

    def follow(step: int) -> None:
        with torch.no_grad():
            net.teacher(torch.randn(16, 8))
            for own, other in zip(net.teacher.parameters(), net.stem.parameters(), strict=True):
                own.lerp_(other, 0.01)

    sink = train(tmp_path, net, follow, check_every=1)
    assert net.teacher[1].training
    assert not of(sink, StatisticsAtOdds)


def test_case_21_an_optimizer_that_toggles_gradients_freezes_nothing(tmp_path: Path) -> None:
    """What required a gradient once is not frozen: adversarial networks take turns."""
    net = Net()
    sink = train(
        tmp_path,
        net,
        lambda step: net.stem.requires_grad_(step < 3 or step % 10 == 0),
        check_every=1,
    )
    assert not of(sink, StatisticsAtOdds)


@pytest.mark.parametrize("how", ["momentum", "eval"])
def test_case_23_statistics_that_never_left_their_start_are_named(tmp_path: Path, how: str) -> None:
    """At the first check after an update; with a momentum of 0, or never in training mode."""
    net = Net()
    net.stem[1].momentum = 0.0 if how == "momentum" else 0.1
    net.stem[1].train(how == "momentum")
    sink = train(tmp_path, net, check_every=5)
    (found,) = of(sink, StatisticsAtOdds)
    assert (found.step, found.drifting, found.untouched) == (5, (), ("stem.1",))
    assert of(sink, RunEnd)[0].status is Status.WARNINGS
