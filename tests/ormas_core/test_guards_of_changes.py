"""A changed graph, optimizer or loop revokes certificates for its own reason, and only then."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from repair_support import CERTIFIED, Channels, plant_certified, sgd
from run_support import Batches, FarBias, Make, Run, started, write_gradient
from torch import Tensor, nn
from torch.optim import Optimizer

from ormas_core import CertificateRefused

Reasons = dict[tuple[int, ...], str]


class Wired(Channels):
    """The same network, with its wiring and an offset of the norm's output to be chosen."""

    wiring = "plain"
    put_out: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        y = self.norm(h)
        gate = nn.functional.relu6 if self.wiring == "relu6" else nn.functional.relu
        y = self.after(gate(-y if self.wiring == "minus" else y))
        y = nn.functional.relu(y).mean((2, 3))
        return self.head(y + h.mean((1, 2, 3))[:, None] if self.wiring == "elsewhere" else y)


@pytest.mark.parametrize(
    ("wiring", "expected"),
    [
        ("elsewhere", {(3,), (5,)}),
        ("minus", {CERTIFIED}),
        ("relu6", set()),
        ("plain", set()),
    ],
)
def test_a_graph_that_does_not_close_revokes(
    wiring: str, expected: set[tuple[int, ...]], make: Make
) -> None:
    """The wiring is read at every check: a new one is proven anew, and some close as well."""
    run = started(make, Wired())
    with torch.no_grad():
        # Neither channel's gradient shows it: all weights behind the open gate are zero.
        run.net.after.weight[:, list(CERTIFIED)] *= wiring != "minus"
    run.net.wiring = wiring
    run.step()
    assert set(run.revoked()) == expected


def test_a_norm_in_evaluation_mode_revokes(make: Make) -> None:
    """Its output is of unknown value for a constant; behind a scale of zero it is the shift."""
    run = started(make)
    run.net.norm.eval()
    run.step()
    reason = "batch norm runs in evaluation mode, so its output is of unknown value"
    assert run.revoked() == {(3,): reason}


class PutsOut(nn.BatchNorm2d):
    """A batch norm that writes to its own output behind the graph's back."""

    channel: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.channel is not None:
            y.data[:, self.channel] += 1
        return y


@pytest.mark.parametrize(("channel", "revoked"), [(3, True), (1, False)])
def test_a_closed_channel_that_puts_something_out_revokes(
    channel: int, revoked: bool, make: Make
) -> None:
    """The output that was seen is compared with what the proof says of it."""
    net = Channels()
    net.norm = PutsOut(8)
    run = started(make, net)
    with torch.no_grad():
        net.after.weight[:, [1, 3]] = 0  # so that no gradient shows it
    net.norm.channel = channel
    run.step()
    reason = "norm put out 0.9 in a closed channel"
    assert run.revoked() == ({(3,): reason} if revoked else {})


def adamw(net: nn.Module) -> Optimizer:
    """Return AdamW."""
    return torch.optim.AdamW(net.parameters(), lr=1e-3)


def without(group: dict[str, Any], parameter: Tensor) -> None:
    """Take a parameter out of a group."""
    group["params"] = [p for p in group["params"] if p is not parameter]


def spoil_state(optimizer: Optimizer, parameter: Tensor, row: int) -> None:
    """Load a state that pushes one row of a parameter."""
    optimizer.state[parameter]["exp_avg"][row] = 1e-3


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(
            lambda run: without(run.optimizer.param_groups[0], run.net.conv.weight),
            {(3,): "conv.weight: it is in no optimizer"},
            id="taken out",
        ),
        pytest.param(
            lambda run: without(run.optimizer.param_groups[0], run.net.head.weight), {}, id="other"
        ),
        pytest.param(
            lambda run: run.optimizer.param_groups.append(
                {**run.optimizer.param_groups[0], "params": [run.net.norm.bias]}
            ),
            {CERTIFIED: "norm.bias: it is in more than one optimizer or group"},
            id="in two groups",
        ),
        pytest.param(
            lambda run: spoil_state(run.optimizer, run.net.conv.weight, 3),
            {(3,): "conv.weight: waiting for momentum to drain"},
            id="state",
        ),
        pytest.param(
            lambda run: spoil_state(run.optimizer, run.net.conv.weight, 2), {}, id="other state"
        ),
    ],
)
def test_an_optimizer_that_is_changed_revokes(
    change: Callable[[Run], None], expected: Reasons, make: Make
) -> None:
    """Groups and states are read at every check."""
    run = started(make, optimizer=adamw)
    change(run)
    run.step()
    assert {unit: reason for units, reason in run.revoked().items() for unit in [units]} == expected


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_suspends_and_revokes_nothing(bad: float, make: Make) -> None:
    """Nothing is said at that step, whatever else is wrong with it; later all is as before."""
    net = Channels()
    run = started(make, net, optimizer=lambda n: torch.optim.SGD(n.parameters(), lr=0.0))
    run.step(lambda: write_gradient(net, "conv.weight", 5), factor=bad)
    run.steps(2)
    assert run.proofs() == []


def test_a_step_without_a_loss_suspends_and_revokes_nothing(make: Make) -> None:
    """Without a graph nothing can be proven or disproven."""
    run = started(make)
    run.accumulate(note=(False,))
    run.steps(2)
    assert run.proofs() == []


def test_a_weight_that_is_frozen_between_checks_does_no_harm(make: Make) -> None:
    """Its certificate is revoked, and the loop goes on: frozen tensors take no hook."""
    net = plant_certified(Channels())
    run = Run(make, net, sgd(net), check_every=2)
    run.step()
    net.conv.weight.requires_grad_(requires_grad=False)
    run.steps(4)
    events = run.proofs()
    assert {event.units for event in events if event.kind == "certificate_revoked"} == {(3, 5)}
    assert not [event for event in events if isinstance(event, CertificateRefused)]


def test_a_revoked_certificate_may_be_issued_again(make: Make) -> None:
    """When the condition holds again; it is not one of the start then."""
    run = started(make)
    run.net.norm.eval()
    run.step()
    assert set(run.revoked()) == {(3,)}
    run.net.norm.train()
    run.step()
    assert run.certified() == [((3,), "absorbing", False)]


def test_a_layer_that_is_called_under_a_transform_does_no_harm(make: Make) -> None:
    """The size of an input inside vmap cannot be read: nothing is claimed that rests on it."""

    class Mapped(FarBias):
        def forward(self, x: Tensor) -> Tensor:
            return torch.func.vmap(lambda row: self.head(torch.relu(self.fc(row))))(x)

    net = Mapped()
    run = Run(make, net, sgd(net), Batches(net))
    run.steps(3)
    assert run.certified() == []


def test_a_batch_of_no_samples_does_no_harm(make: Make) -> None:
    """It proves nothing, so the claim is withdrawn; it is back once an input has been measured."""
    net = FarBias()
    sizes = iter((20, 20, 0, 20, 20))
    source = (net(torch.ones(rows, 6)).square().sum() for rows in sizes)
    run = Run(make, net, sgd(net, lr=1e-3), source)
    run.steps(2)
    assert len(run.certified()) == 2
    run.step()
    assert set(run.revoked()) == {(1, 4, 7)}
    run.steps(2)
    assert len(run.certified()) == 2
