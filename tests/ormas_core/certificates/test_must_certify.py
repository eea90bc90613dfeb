"""Channels that are planted dead are certified by name and index, and their near misses are not."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from certificate_support import (
    CHANNELS,
    IMAGES,
    Gated,
    absorbing,
    certified,
    classes,
    conv_net,
    found,
    plant_channels,
    refused,
    sgd,
    stays,
    zero_rows,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from ormas_core import certify

OPEN = "norm.bias is positive there"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    "gate",
    [
        pytest.param(nn.ReLU(), id="module"),
        pytest.param(nn.ReLU(inplace=True), id="in-place module"),
        pytest.param(functional.relu, id="functional"),
        pytest.param(torch.relu_, id="in-place"),
        pytest.param(functional.relu6, id="relu6"),
        pytest.param(lambda x: functional.hardtanh(x, 0.0, 2.0), id="hardtanh"),
        pytest.param(lambda x: functional.threshold(x, 0.5, 7.0), id="threshold"),
        pytest.param(lambda x: functional.relu(x) ** 2, id="squared"),
        pytest.param(lambda x: functional.dropout(functional.relu(x), 0.5), id="dropout"),
        pytest.param(
            lambda x: checkpoint(functional.relu, x, use_reentrant=False), id="checkpointed"
        ),
    ],
)
def test_a_constant_channel_behind_a_closed_gate_is_certified(
    gate: Callable[[Tensor], Tensor],
) -> None:
    """Whatever form the gate has, both planted channels are certified and both near misses not."""
    net = conv_net(gate)
    certificates = certified(net, sgd(net), classes(net, *IMAGES), CHANNELS)
    assert set(refused(certificates)) == {("layer", 2), ("layer", 6)}
    assert all(OPEN in reason for reason in refused(certificates).values())


@pytest.mark.parametrize(
    "gate",
    [
        pytest.param(functional.leaky_relu, id="leaky relu"),
        pytest.param(functional.gelu, id="gelu"),
        pytest.param(functional.hardtanh, id="hardtanh from -1"),
        pytest.param(functional.softplus, id="softplus"),
        pytest.param(lambda x: x.clamp(min=0), id="clamp, open at 0"),
    ],
)
def test_a_gate_that_stays_open_certifies_nothing(gate: Callable[[Tensor], Tensor]) -> None:
    """A gate through which a negative constant passes a gradient closes no channel."""
    net = conv_net(gate)
    certificates = certify(net, sgd(net), classes(net, *IMAGES)())
    assert found(certificates) == set()
    assert {("layer", 3), ("layer", 5)} <= set(refused(certificates))


def test_a_gate_on_the_negative_closes_at_positive_shifts() -> None:
    """relu(-x) is closed by a constant of 1e-9 and open at -0.1: the near misses swap places."""
    net = conv_net(lambda x: functional.relu(-x))
    expected = absorbing("channel", layer=(2,)) | absorbing("channel", layer=(6,))
    certified(net, sgd(net), classes(net, *IMAGES), expected)


@pytest.mark.parametrize(
    ("layer", "norm", "shape"),
    [
        pytest.param(
            nn.Conv2d(4, 8, 3, groups=4, bias=False), nn.BatchNorm2d(8), (2, 4, 6, 6), id="grouped"
        ),
        pytest.param(nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8), (2, 8, 6, 6), id="depthwise"),
        pytest.param(
            nn.Conv2d(4, 8, 3, 2, 1, 2), nn.BatchNorm2d(8), (2, 4, 9, 9), id="strided, dilated"
        ),
        pytest.param(
            nn.Conv2d(4, 8, 3, padding="same"), nn.BatchNorm2d(8), (2, 4, 5, 5), id="same"
        ),
        pytest.param(
            nn.Conv2d(4, 8, 3, padding=1, padding_mode="circular"),
            nn.BatchNorm2d(8),
            (2, 4, 5, 5),
            id="circular",
        ),
        pytest.param(nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8), (2, 4, 9), id="1d"),
        pytest.param(nn.Conv3d(4, 8, 3, bias=False), nn.BatchNorm3d(8), (2, 4, 4, 4, 4), id="3d"),
        pytest.param(nn.Linear(6, 8), nn.BatchNorm1d(8), (4, 6), id="linear (N, C)"),
    ],
)
def test_every_form_of_layer_is_certified(
    layer: nn.Module, norm: nn.Module, shape: tuple[int, ...]
) -> None:
    """Convolutions of any dimension, group and stride, and linear layers, are all recognised."""
    net = Gated(layer, norm)
    plant_channels(net)
    certificates = certified(net, sgd(net), classes(net, *shape), CHANNELS)
    assert set(refused(certificates)) == {("layer", 2), ("layer", 6)}


def test_a_linear_layer_before_batch_norm_over_positions_is_certified() -> None:
    """Features that a transposition moves to the norm's channel axis are followed there."""
    net = Gated(nn.Linear(6, 8), nn.BatchNorm1d(8), lay=lambda x: x.transpose(1, 2))
    plant_channels(net)
    certificates = certified(net, sgd(net), classes(net, 4, 5, 6), CHANNELS)
    assert OPEN in refused(certificates)["layer", 2]


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        pytest.param(nn.Linear(6, 8), (4, 6), id="linear"),
        pytest.param(nn.Conv2d(3, 8, 3), IMAGES, id="convolution"),
    ],
)
def test_a_zero_filter_without_norm_is_certified_by_its_bias(
    layer: Any, shape: tuple[int, ...]
) -> None:
    """Without batch norm the bias is the constant: zero or negative closes, 1e-9 does not."""
    net = Gated(layer)
    zero_rows(layer, 2, bias=1e-9)
    zero_rows(layer, 3, bias=-0.1)
    zero_rows(layer, 4)
    certificates = certified(
        net, sgd(net), classes(net, *shape), absorbing("channel", layer=(3, 4))
    )
    assert refused(certificates) == {("layer", 2): "nothing on the way to the loss closes it"}


class Residual(nn.Module):
    """A basic block, plain functions for its gates."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return self.head(torch.relu(x + branch).mean((2, 3)))


def test_a_residual_channel_of_zero_filter_and_zero_scale_is_certified() -> None:
    """Filter and scale both zero hold each other; either alone is alive, whatever the shift."""
    net = Residual()
    zero_rows(net.conv2, 2, 3)
    nn.init.constant_(net.bn2.bias, 0.5)
    with torch.no_grad():
        net.bn2.weight[[3, 4]] = 0
    certificates = certified(
        net, sgd(net), classes(net, 2, 8, 5, 5), absorbing("branch", conv2=(3,))
    )
    assert set(refused(certificates)) == {("conv2", 2), ("conv2", 4)}


def test_a_zero_initialised_residual_branch_is_healthy() -> None:
    """A scale that is zero throughout with live filters is an initialisation, not a finding."""
    net = Residual()
    nn.init.zeros_(net.bn2.weight)
    certificates = certify(net, sgd(net), classes(net, 2, 8, 5, 5)())
    assert (certificates.claims, certificates.refused) == ((), ())


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_a_small_scale_with_a_negative_shift_is_bounded(decay: float) -> None:
    """A decayed channel is closed within stated batch and input sizes, and only `bounded`."""
    net = Gated(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8))
    with torch.no_grad():
        net.norm.weight[[3, 4]] = torch.tensor([1e-3, 0.5])
        net.norm.bias[[3, 4]] = -0.5
    optimizer = torch.optim.SGD(net.parameters(), 0.01, weight_decay=decay)
    (claim,) = certified(
        net, optimizer, classes(net, *IMAGES), {("layer", (3,), "bounded", "channel")}
    )
    limits = {condition.name: condition for condition in claim.conditions}
    margin = 4 if decay else 1
    assert limits["m_max"].seen == 2 * 6 * 6
    assert limits["m_max"].layer == limits["x_max"].layer == "norm"
    m_max, room = limits["m_max"].value, 0.5 / margin
    assert 2 * 6 * 6 <= m_max <= (room / 1e-3) ** 2 + 1
    slack = room - 1e-3 * math.sqrt(m_max - 1) * (1 + 2**-6)
    assert 0 < limits["x_max"].value <= slack * math.sqrt(1e-5) / (8 * 2**-24 * 1e-3)


class Stacked(nn.Module):
    """Two linear layers with a chosen function between, and a ReLU."""

    def __init__(self, producer: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fc1, self.fc2, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.producer = producer
        with torch.no_grad():
            self.fc2.weight[[2, 3, 4]] = -self.fc2.weight[[2, 3, 4]].abs()
            self.fc2.bias[[2, 3, 4]] = torch.tensor([-0.1, -0.1, 1e-9])
            self.fc2.weight[2, 1] = 1e-9

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.fc2(self.producer(self.fc1(x)))))


@pytest.mark.parametrize("optimizer", [sgd, lambda net: torch.optim.AdamW(net.parameters())])
@pytest.mark.parametrize("producer", [torch.relu, torch.sigmoid, torch.square])
def test_nonpositive_weights_behind_a_nonnegative_producer_are_certified(
    producer: Callable[[Tensor], Tensor], optimizer: Callable[[nn.Module], Optimizer]
) -> None:
    """A dying ReLU needs no zero: one weight or a bias of 1e-9 beside it keeps it alive."""
    net = Stacked(producer)
    certified(net, optimizer(net), classes(net, 4, 6), absorbing("channel", fc2=(3,)))


def test_nonpositive_weights_behind_a_producer_of_any_sign_are_not_certified() -> None:
    """The same weights behind a leaky ReLU may see negative inputs."""
    net = Stacked(functional.leaky_relu)
    assert found(certify(net, sgd(net), classes(net, 4, 6)())) == set()


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "SGD, decay": lambda p: torch.optim.SGD(p, 0.1, weight_decay=1e-3),
    "SGD, momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "SGD, cone": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-4),
    "SGD, Nesterov cone": lambda p: torch.optim.SGD(
        p, 0.05, momentum=0.9, weight_decay=1e-4, nesterov=True
    ),
    "Adam": torch.optim.Adam,
    "Adam, amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "AdamW": torch.optim.AdamW,
    "AdamW, fused": lambda p: torch.optim.AdamW(p, fused=True),
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Adamax": torch.optim.Adamax,
    "Adagrad": torch.optim.Adagrad,
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.5),
    "Adadelta": torch.optim.Adadelta,
    "Adafactor": torch.optim.Adafactor,
    "ASGD": torch.optim.ASGD,
    "Rprop": torch.optim.Rprop,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_classical_pattern_is_certified_under_every_supported_optimizer(name: str) -> None:
    """Convolution, batch norm and ReLU modules: what the known system proves is proven."""
    net = conv_net(nn.ReLU())
    optimizer = OPTIMIZERS[name](net.parameters())
    certificates = certified(net, optimizer, classes(net, *IMAGES), CHANNELS)
    assert {claim.optimizer for claim in certificates} == {type(optimizer).__name__}
    assert all("lr_max" in {c.name for c in claim.conditions} for claim in certificates)


@pytest.mark.parametrize("name", ["SGD, momentum", "SGD, cone", "Adam", "AdamW", "NAdam"])
def test_a_channel_that_dies_in_training_is_certified(name: str) -> None:
    """State from earlier steps is allowed for: at a zero weight it is zero, at a shift bounded."""
    net = Gated(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8))
    optimizer = OPTIMIZERS[name](net.parameters())
    losses = classes(net, *IMAGES)
    for _ in range(3):
        optimizer.zero_grad()
        losses().backward()
        optimizer.step()
    zero_rows(net.layer, 3)
    with torch.no_grad():
        net.norm.bias[3] = -2.0
        for key in ("momentum_buffer", "exp_avg"):
            for parameter in (net.layer.weight, net.norm.bias):
                state = optimizer.state[parameter]
                if key in state:
                    # At rest for the filter; for the shift within the cone, and small for Adam.
                    state[key][3] *= 0 if parameter is net.layer.weight else 1e-3
        if name == "SGD, cone":
            optimizer.state[net.norm.bias]["momentum_buffer"][3] = -1e-3
    certified(net, optimizer, losses, absorbing("channel", layer=(3,)))


def test_the_graph_is_read_alike_before_and_after_backward() -> None:
    """Saved tensors are gone after backward; what the rules read is not."""
    net = conv_net(functional.relu6)
    loss = classes(net, *IMAGES)()
    before = certify(net, sgd(net), loss)
    loss.backward()
    assert found(before) == CHANNELS
    assert certify(net, sgd(net), loss) == before


def test_an_asserted_optimizer_is_taken_at_its_word() -> None:
    """A user may vouch for an optimizer by its class name."""

    class Mine(torch.optim.SGD):
        pass

    net = conv_net()
    optimizer = Mine(net.parameters(), 0.1)
    certificates = certified(
        net, optimizer, classes(net, *IMAGES), CHANNELS, certify_optimizers=["Mine"]
    )
    assert {claim.optimizer for claim in certificates} == {"Mine"}


def test_micro_batches_of_different_size_are_proven_together() -> None:
    """Two losses of one optimizer step, over batches of unlike sizes, certify the same channels."""
    net = conv_net()
    losses = [classes(net, 2, 3, 8, 8)(), classes(net, 3, 3, 6, 7)()]
    certificates = certify(net, sgd(net), losses)
    assert found(certificates) == CHANNELS
    stays(net, sgd(net), classes(net, *IMAGES), certificates)


def test_a_layer_used_twice_is_certified_where_both_uses_are_closed() -> None:
    """Shared weights are dead where every use is: here before the same norm, twice."""
    net = conv_net()
    net.register_forward_hook(lambda module, args, out: out + module.forward(-args[0]))
    certified(net, sgd(net), classes(net, *IMAGES), CHANNELS)
