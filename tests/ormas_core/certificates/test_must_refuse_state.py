"""What is closed now but moved by its optimizer is refused, and the reason says how."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from certificate_support import (
    CHANNELS,
    IMAGES,
    Gated,
    certified,
    classes,
    closed_now,
    conv_net,
    found,
    plant_channels,
    refused,
    stays,
    zero_rows,
)
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer

from ormas_core import certify

DRAIN = "waiting for momentum to drain"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def trained(make: Callable[[Any], Optimizer], steps: int = 3) -> tuple[Gated, Optimizer]:
    """Return a network after some steps, with channels planted and their state left as it was."""
    net = Gated(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8))
    optimizer = make(net.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        classes(net, *IMAGES)().backward()
        optimizer.step()
    plant_channels(net)
    return net, optimizer


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), DRAIN, id="SGD"),
        pytest.param(torch.optim.Adam, DRAIN, id="Adam"),
        pytest.param(torch.optim.AdamW, DRAIN, id="AdamW"),
        pytest.param(torch.optim.NAdam, DRAIN, id="NAdam"),
        pytest.param(torch.optim.Adamax, DRAIN, id="Adamax"),
        pytest.param(lambda p: torch.optim.RMSprop(p, momentum=0.9), DRAIN, id="RMSprop"),
        pytest.param(
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-4),
            "momentum is outside the cone",
            id="SGD with decay",
        ),
    ],
)
def test_a_zero_weight_with_momentum_is_refused(
    make: Callable[[Any], Optimizer], reason: str
) -> None:
    """A channel zeroed under momentum is closed now, and the next step reopens it."""
    net, optimizer = trained(make)
    losses = classes(net, *IMAGES)
    reasons = closed_now(net, optimizer, losses)
    assert reasons["layer", 3] == f"layer.weight: {reason}"
    assert reasons["layer", 5] == f"norm.weight: {reason}"
    optimizer.zero_grad()
    losses().backward()
    optimizer.step()
    assert net.layer.weight[3].any()


@pytest.mark.parametrize(
    "make",
    [
        torch.optim.Adam,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.Adamax,
        torch.optim.Adagrad,
        torch.optim.RMSprop,
        torch.optim.Adadelta,
    ],
)
def test_coupled_decay_in_a_normalising_optimizer_is_refused(
    make: Callable[..., Optimizer],
) -> None:
    """Such a decay moves a nonzero shift by whole steps of the learning rate, across zero."""
    net = conv_net()
    reasons = closed_now(net, make(net.parameters(), weight_decay=1e-4), classes(net, *IMAGES))
    assert reasons["layer", 3].startswith("norm.bias: weight decay enters the normalised gradient")


def test_coupled_decay_leaves_a_zero_shift_alone() -> None:
    """A channel that is zero in weight, scale and shift has nothing to decay."""
    net = conv_net()
    nn.init.zeros_(net.norm.bias[5:6])
    optimizer = torch.optim.Adam(net.parameters(), weight_decay=1e-4)
    certificates = certify(net, optimizer, classes(net, *IMAGES)())
    assert found(certificates) == {
        ("layer", (3,), "closed_now", "channel"),
        ("layer", (5,), "absorbing", "channel"),
    }
    stays(net, optimizer, classes(net, *IMAGES), certificates)


def test_momentum_that_points_across_zero_is_outside_the_cone() -> None:
    """A buffer of the wrong sign carries a negative shift upwards; one inside the cone does not."""
    net = conv_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    state = optimizer.state[net.norm.bias]
    state["momentum_buffer"] = torch.full((8,), 1e-3)
    reasons = closed_now(net, optimizer, classes(net, *IMAGES))
    assert reasons["layer", 3] == "norm.bias: momentum is outside the cone"
    state["momentum_buffer"] = torch.full((8,), -1e-6)
    certified(net, optimizer, classes(net, *IMAGES), CHANNELS)


def test_a_learning_rate_without_a_stable_cone_is_refused() -> None:
    """Under strong decay, momentum and learning rate every nonzero shift may change its sign."""
    net = conv_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.2, momentum=0.9, weight_decay=0.1)
    reasons = closed_now(net, optimizer, classes(net, *IMAGES))
    assert "has no stable cone" in reasons["layer", 3]


def test_decay_that_may_pass_zero_in_one_step_is_refused() -> None:
    """The largest learning rate that is covered times the decay must stay below one."""
    net = conv_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.2, weight_decay=0.6)
    reasons = closed_now(net, optimizer, classes(net, *IMAGES))
    assert "one step may change signs" in reasons["layer", 3]
    certificates = certify(net, optimizer, classes(net, *IMAGES)(), lr_max=0.2)
    assert found(certificates) == CHANNELS


def test_an_unknown_optimizer_is_refused_by_name() -> None:
    """A subclass of a supported optimizer may do anything."""

    class Sgdish(torch.optim.SGD):
        pass

    net = conv_net()
    reasons = closed_now(net, Sgdish(net.parameters(), 0.1), classes(net, *IMAGES))
    assert reasons["layer", 3] == "layer.weight: Sgdish is not a supported optimizer"


@pytest.mark.parametrize(
    ("eps", "dtype", "name"), [(1e-50, torch.float32, "float32"), (1e-8, torch.float16, "float16")]
)
def test_an_eps_that_vanishes_in_the_dtype_is_refused(
    eps: float, dtype: torch.dtype, name: str
) -> None:
    """Zero gradient over zero root plus zero eps is NaN, so nothing rests."""
    net = Gated(nn.Linear(6, 8)).to(dtype)
    zero_rows(net.layer, 3, bias=-0.1)
    optimizer = torch.optim.Adam(net.parameters(), eps=eps)
    loss = functional.cross_entropy(net(torch.randn(4, 6, dtype=dtype)), torch.tensor([0, 1, 2, 0]))
    certificates = certify(net, optimizer, loss)
    assert found(certificates) == {("layer", (3,), "closed_now", "channel")}
    reason = f"eps = {eps} is zero in {name}: 0 / 0 is NaN"
    assert refused(certificates)["layer", 3].endswith(reason)


def test_muon_mixes_elements_and_is_refused() -> None:
    """Orthogonalisation moves elements whose own gradient is zero."""
    net = Gated(nn.Linear(6, 8))
    zero_rows(net.layer, 3, bias=-0.1)
    vectors = [net.layer.bias, net.head.bias]
    optimizers = [
        torch.optim.Muon([net.layer.weight, net.head.weight]),
        torch.optim.SGD(vectors, 0.1),
    ]
    certificates = certify(net, optimizers, classes(net, 4, 6)())
    assert found(certificates) == {("layer", (3,), "closed_now", "channel")}
    assert "Muon mixes the elements" in refused(certificates)["layer", 3]
