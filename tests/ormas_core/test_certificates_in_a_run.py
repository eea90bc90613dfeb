"""Certificates in a run: when they are issued, refused and withdrawn, and what the record has."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from repair_support import CERTIFIED, Channels, losses, plant_certified, plant_flat, sgd, train
from run_support import Batches, FarBias, Make, Run, started
from torch import Tensor, nn
from torch.optim import Optimizer

from ormas_core import (
    Certificate,
    CertificateRefused,
    Manifest,
    MechanismState,
    describe,
    read_record,
)
from ormas_core.certificates import check_claim
from ormas_core.claims import Claim, Condition


@torch.no_grad()
def close(net: Channels, *channels: int) -> None:
    """Close channels by a zero filter and a negative shift."""
    rows = list(channels)
    net.conv.weight[rows], net.conv.bias[rows], net.norm.bias[rows] = 0, 0, -0.1


def refusals(run: Run) -> list[tuple[tuple[int, ...], str]]:
    """Return the news of refusals: units and reason."""
    return [(e.units, e.reason) for e in run.news() if isinstance(e, CertificateRefused)]


def test_what_the_starting_weights_bring_is_said_to_be_there_at_the_first_check(make: Make) -> None:
    """Once, at step 0; the live channels beside them get nothing."""
    net = plant_certified(Channels())
    run = Run(make, net, sgd(net))
    run.steps(5)
    events = [event for event in run.news() if isinstance(event, Certificate)]
    assert [(e.step, e.layer, e.units, e.initial) for e in events] == [
        (0, "conv", (3,), True),
        (0, "conv", (5,), True),
    ]
    assert all("; present at the first check" in describe(event) for event in events)


def test_what_dies_later_is_not_said_to_have_been_there(make: Make) -> None:
    """A channel that is closed after three steps is certified by itself at the next check."""
    run = started(make)
    run.step()
    close(run.net, 1)
    run.steps(3)
    events = [event for event in run.news() if isinstance(event, Certificate)]
    assert [(e.step, e.units, e.initial) for e in events] == [(3, (1,), False)]
    assert "present at the first check" not in describe(events[0])


def test_a_healthy_network_is_told_nothing(make: Make) -> None:
    """No certificate, no refusal, and no channel out of use."""
    net = Channels()
    run = Run(make, net, sgd(net), patience=2)
    run.steps(5)
    assert run.proofs() == []


def test_a_channel_that_is_constant_and_open_is_refused_once(make: Make) -> None:
    """Its shift is positive; its gradient is not zero, so only the count of channels names it."""
    net = plant_flat(Channels())
    run = Run(make, net, torch.optim.SGD(net.parameters(), lr=0.0))
    run.steps(3)
    assert [event.kind for event in run.proofs()] == ["channels"]


def test_an_event_holds_the_whole_claim(make: Make) -> None:
    """Conditions with what was seen, and a proof that the independent checker accepts."""
    net = plant_certified(Channels())
    run = Run(make, net, torch.optim.SGD(net.parameters(), 0.05, weight_decay=1e-3))
    run.step()
    events = [event for event in run.news() if isinstance(event, Certificate)]
    assert len(events) == 2
    for event in events:
        assert event.optimizer == "SGD"
        assert {(c.name, c.value, c.seen) for c in event.conditions} == {
            ("lr_max", 0.5, 0.05),
            ("decay_max", 0.001, 0.001),
        }
        fields = {
            name: getattr(event, name) for name in Claim.__dataclass_fields__ if name != "kind"
        }
        assert check_claim(Claim(kind=event.unit_kind, **fields)) is None


def test_limits_of_the_starting_weights_are_known_at_the_first_check(make: Make) -> None:
    """The inputs are measured before there is anything to prove; later only where it is needed."""
    net = FarBias()
    run = Run(make, net, sgd(net, lr=1e-3), Batches(net))
    run.steps(3)
    events = [event for event in run.news() if isinstance(event, Certificate)]
    assert [(e.step, e.units, e.cls.value, e.initial) for e in events] == [
        (0, (7,), "bounded", True),
        (0, (1, 4), "bounded", True),
    ]
    limits = [c for e in events for c in e.conditions if c.name == "input_max"]
    assert all(isinstance(limit, Condition) and limit.layer == "fc" for limit in limits)
    assert len(limits) == 2


def test_the_record_has_what_was_said(make: Make, tmp_path: Any) -> None:
    """Every event about certificates and channels comes back equal from the file."""
    net = plant_certified(Channels())
    run = Run(make, net, torch.optim.Adam(net.parameters(), 1e-3))
    run.steps(2)
    with torch.no_grad():
        net.conv.weight[5] += 1.0
    close(net, 2)
    run.steps(2)
    said = run.proofs()
    assert {event.kind for event in said} == {
        "certificate",
        "certificate_refused",
        "certificate_revoked",
        "channels",
    }
    run.close()
    kinds = {event.kind for event in said}
    lines = [line.event for line in read_record(tmp_path / "run")]
    assert [event for event in lines if event.kind in kinds] == said


class Custom(torch.autograd.Function):
    """The identity, as a user may write it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Opaque(Channels):
    """The same network with an operation before its gate that cannot be looked into."""

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.relu(Custom.apply(self.norm(self.conv(x))))
        return self.head(nn.functional.relu(self.after(x)).mean((2, 3)))


class OddSgd(torch.optim.SGD):
    """An optimizer that nobody has vouched for."""


def mine(net: nn.Module) -> Optimizer:
    """Return an optimizer of a class that is not supported."""
    return OddSgd(net.parameters(), 0.05)


@pytest.mark.parametrize(
    ("kind", "optimizer", "reason", "lasting"),
    [
        pytest.param(
            Opaque, sgd, "the operation custom CustomBackward is opaque", set(), id="node"
        ),
        pytest.param(Channels, mine, "OddSgd is not a supported optimizer", set(), id="optimizer"),
        pytest.param(
            Channels,
            lambda net: torch.optim.SGD(net.norm.parameters(), 0.05),
            "conv.weight: it is in no optimizer",
            {(5,)},
            id="no optimizer",
        ),
    ],
)
def test_the_failing_condition_is_named_once(
    kind: type[Channels],
    optimizer: Callable[[nn.Module], Optimizer],
    reason: str,
    lasting: set[tuple[int, ...]],
    make: Make,
) -> None:
    """Over many checks each refused unit is named once; only what does not depend on it lasts."""
    net = plant_certified(kind())
    run = Run(make, net, optimizer(net))
    run.steps(4)
    events = run.proofs()
    found = [event for event in events if isinstance(event, CertificateRefused)]
    assert any(reason in event.reason for event in found)
    named = [(unit, event.reason) for event in found for unit in event.units]
    assert len(named) == len(set(named))
    issued = [event for event in events if isinstance(event, Certificate)]
    assert {event.units for event in issued if event.cls == "absorbing"} == lasting


def test_a_channel_under_momentum_is_closed_now_and_refused(make: Make) -> None:
    """It waits for momentum to drain, is withdrawn when that moves it, and is said once."""
    net = Channels()
    run = Run(make, net, torch.optim.Adam(net.parameters(), 1e-3))
    run.steps(3)
    run.news()
    close(net, 3)
    run.step()
    events = run.proofs()
    assert [e.kind for e in events if e.kind != "channels"] == [
        "certificate",
        "certificate_refused",
    ]
    assert (events[0].cls, events[0].units) == ("closed_now", (3,))
    assert events[1].reason == "conv.weight: waiting for momentum to drain"
    run.step()
    assert set(run.revoked()) == {(3,)}
    run.steps(3)
    assert refusals(run) == []


def test_a_channel_whose_momentum_is_gone_is_certified(make: Make) -> None:
    """The near miss: the same channel with the state of its elements at rest."""
    net = Channels()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    run = Run(make, net, optimizer)
    run.steps(3)
    run.news()
    close(net, 3)
    for parameter in (net.conv.weight, net.conv.bias, net.norm.bias):
        for key in ("exp_avg", "exp_avg_sq"):
            optimizer.state[parameter][key][3] = 0
    run.step()
    assert run.certified() == [((3,), "absorbing", False)]


def test_micro_batches_of_which_one_is_open_are_refused(make: Make) -> None:
    """A certificate needs the graphs of all; where they differ the units are refused, once."""

    class Gate(Channels):
        open = False

        def forward(self, x: Tensor) -> Tensor:
            gate = nn.functional.leaky_relu if self.open else nn.functional.relu
            x = gate(self.norm(self.conv(x)))
            return self.head(nn.functional.relu(self.after(x)).mean((2, 3)))

    net = plant_certified(Gate())
    source = losses(net)

    def alternating() -> Iterator[Tensor]:
        while True:
            net.open = not net.open
            yield next(source)

    run = Run(make, net, torch.optim.SGD(net.parameters(), lr=0.0), alternating())
    for _ in range(3):
        run.accumulate(note=(True, True))
    assert run.certified() == []
    for _ in range(2):
        next(run.source)  # the order of open and shut does not matter
        run.accumulate(note=(True, True))
    assert run.certified() == []


def test_only_sampled_steps_are_proven(make: Make) -> None:
    """With a check at every third step, certificates come at these steps."""
    net = plant_certified(Channels())
    run = Run(make, net, sgd(net), check_every=3)
    run.steps(2)
    close(net, 1)
    run.steps(5)
    events = [event for event in run.news() if isinstance(event, Certificate)]
    assert [(event.step, event.units) for event in events] == [(0, (3,)), (0, (5,)), (3, (1,))]


@pytest.mark.parametrize(
    ("give", "state"),
    [
        (lambda loss: loss, MechanismState.ACTIVE),
        (lambda loss: float(loss.detach()), MechanismState.UNOBSERVABLE),
        (lambda loss: loss.detach(), MechanismState.UNOBSERVABLE),
    ],
)
def test_without_a_graph_nothing_is_claimed_and_that_is_said(
    give: Callable[[Tensor], Any], state: MechanismState, make: Make
) -> None:
    """A number instead of the loss tensor: certificates are unobservable, not absent."""
    net = plant_certified(Channels())
    monitor, sink = make(net, sgd(net))
    train(net, sgd(net), lambda loss: monitor.step(give(loss)), 9)
    monitor.close()
    manifests = [event for event in sink.events if isinstance(event, Manifest)]
    (line,) = [each for each in manifests[-1].mechanisms if each.name == "certificates"]
    assert line.state is state
    certified = {event.units for event in sink.events if isinstance(event, Certificate)}
    assert certified == ({(unit,) for unit in CERTIFIED} if line.reason == "" else set())
