"""Bounded claims against the kernels: the worst inputs within the stated limits open nothing.

Every attack is a channel of its own, so that one call of a kernel tries all of them.
"""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from certificate_support import sgd
from fuzz.within import attacks, worst
from torch import Tensor, nn
from torch.nn import functional

from ormas_core import certify
from ormas_core.claims import CertificateClass

MOST = 1024
"""Elements of a channel that are tried where the limit allows more."""


@pytest.fixture(autouse=True, params=[1, 3], ids="threads{}".format)
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(request.param)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


NORMS: dict[int, Any] = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


class Normed(nn.Module):
    """linear -> batch norm over inputs of some dimensions -> ReLU, every channel planted alike."""

    def __init__(self, dims: int, channels: int, scale: float, shift: float) -> None:
        super().__init__()
        self.layer = nn.Linear(2, channels, bias=False)
        self.norm = NORMS[dims](channels)
        with torch.no_grad():
            self.norm.weight.fill_(scale)
            self.norm.weight[channels // 2 :] *= -1
            self.norm.bias.fill_(shift)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.norm(self.layer(x).movedim(-1, 1))).float().square().sum()


def limits_of(net: nn.Module, loss: Tensor, channels: int) -> dict[str, float]:
    """Return the limits of the one claim, which is about all channels."""
    (claim,) = certify(net, sgd(net), loss)
    assert (claim.cls, len(claim.units)) == (CertificateClass.BOUNDED, channels)
    return {condition.name: condition.value for condition in claim.conditions}


def layouts(columns: Tensor, dims: int) -> Iterator[Tensor]:
    """Yield the inputs as batches of a number of dimensions, split and stored in several ways."""
    m, channels = columns.shape
    part = next(k for k in range(math.isqrt(m), 0, -1) if m % k == 0)
    for batch in sorted({1, part, m}):
        shape = (batch, *(1,) * (dims - 3), m // batch) if dims > 2 else (m,)
        if dims == 2 and batch != 1:
            continue
        plain = columns.view(*shape, channels).movedim(-1, 1)
        yield plain.contiguous()
        if dims > 3:
            form = torch.channels_last if dims == 4 else torch.channels_last_3d
            yield plain.contiguous(memory_format=form)
        elif dims == 3:
            yield plain  # channels last, by strides


def opened(norm: nn.Module, batch: Tensor) -> bool:
    """Whether an output is positive; a gradient that is not zero must not be without that."""
    norm.zero_grad()
    batch = batch.clone().requires_grad_()
    y = norm(batch)
    functional.relu(y).sum().backward()
    touched = any(bool(t.grad.any()) for t in (*norm.parameters(), batch))
    positive = bool((y > 0).any())
    assert positive or not touched
    return positive


TYPES = {
    "float32": (torch.float32, torch.float32),
    "float64": (torch.float64, torch.float64),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "float16": (torch.float16, torch.float16),
    "bfloat16 autocast": (torch.float32, torch.bfloat16),
}
"""Name -> type of the parameters, type of what flows."""
SIZES = {
    "half the room": (0.05, -0.5, 20),
    "hardly any room": (1.0, -4.72, 20),
    "three elements": (1.0, -2.2, 3),
    "many elements": (0.02, -0.5, 64),
}


@pytest.mark.parametrize("dims", NORMS)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("size", SIZES)
def test_no_batch_within_its_limits_opens_a_bounded_norm(size: str, types: str, dims: int) -> None:
    """Spikes, offsets and near constants of up to x_max, in batches of just m_max elements.

    Far outside they do open it: a spike in a batch of many more elements.
    """
    parameters, flow = TYPES[types]
    scale, shift, m = SIZES[size]
    channels = attacks(3, 1.0, flow).shape[1]
    net = Normed(dims, channels, scale, shift).to(parameters)
    x = torch.randn((m, *(1,) * (dims - 2), 2), dtype=parameters)
    with torch.autocast("cpu", torch.bfloat16, enabled=parameters is not flow):
        limits = limits_of(net, net(x), channels)
    for elements in {min(int(limits["m_max"]), MOST), m, 2}:
        columns = attacks(elements, limits["x_max"], flow)
        for batch in layouts(columns, dims):
            assert not opened(net.norm, batch), (tuple(batch.shape), batch.stride())
    far = 4 * int((shift / scale) ** 2 + 1)
    spike = torch.zeros(far, channels, dtype=flow)
    spike[0] = 1.0
    assert all(opened(net.norm, batch) for batch in layouts(spike, dims))


@pytest.mark.parametrize(
    ("types", "shift", "m", "others", "one"),
    [
        ("bfloat16", -1.6, 3, 196.0, 195.0),
        ("bfloat16", -4.45, 20, 8.375, 7.75),
        ("float16", -1.6, 3, 500.0, 499.75),
        ("float16", -4.45, 20, 500.0, 499.5),
    ],
)
def test_a_mean_in_half_precision_needs_more_room(
    types: str, shift: float, m: int, others: float, one: float
) -> None:
    """Room for sqrt(m - 1) is too little where the mean is rounded: this batch opens the norm."""
    dtype = TYPES[types][0]
    net = Normed(4, 1, 1.0, shift).to(dtype)  # of one channel, whose scale is thereby negative
    certificates = certify(net, sgd(net), net(torch.randn((m, 1, 1, 2), dtype=dtype)))
    assert list(certificates) == []
    x = torch.full((m, 1, 1, 1), others, dtype=dtype)
    x[0] = one
    assert opened(net.norm, x)


def test_inputs_far_above_x_max_open_a_bounded_norm() -> None:
    """That limit is needed as well: rounding of a large mean opens what m_max alone would allow."""
    scale, shift, m = SIZES["half the room"]
    channels = attacks(m, 1.0, torch.float32).shape[1]
    net = Normed(2, channels, scale, shift)
    limits = limits_of(net, net(torch.randn(m, 2)), channels)
    columns = attacks(25, 1e4 * limits["x_max"], torch.float32)
    assert all(opened(net.norm, batch) for batch in layouts(columns, 2))


class Summed(nn.Module):
    """A layer with biases far below zero, and a ReLU."""

    def __init__(self, layer: Any, bias: float = -50.0) -> None:
        super().__init__()
        self.layer = layer
        nn.init.constant_(layer.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.layer(x)).float().square().sum()


SUMS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(32, 6), (32,)),
    "1d": (lambda: nn.Conv1d(4, 6, 3), (4, 3)),
    "2d": (lambda: nn.Conv2d(4, 6, 3), (4, 3, 3)),
    "2d, padded": (lambda: nn.Conv2d(4, 6, 3, padding=1), (4, 9, 9)),
    "2d, strided": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), (4, 9, 9)),
    "2d, grouped": (lambda: nn.Conv2d(6, 6, 3, groups=3), (6, 3, 3)),
    "2d, depthwise": (lambda: nn.Conv2d(6, 6, 5, groups=6), (6, 5, 5)),
    "2d, pointwise": (lambda: nn.Conv2d(16, 6, 1), (16, 4, 4)),
    "2d, wide": (lambda: nn.Conv2d(16, 6, 3, padding=1), (16, 24, 24)),
    "3d": (lambda: nn.Conv3d(2, 6, 3), (2, 3, 3, 3)),
}


@pytest.mark.parametrize("mkldnn", [True, False], ids=["mkldnn", "native"])
@pytest.mark.parametrize("types", ["float32", "float64", "bfloat16 autocast"])
@pytest.mark.parametrize("name", SUMS)
def test_no_input_within_its_limit_opens_a_bounded_sum(
    name: str, types: str, mkldnn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs of +-input_max with the signs of the weights, whatever algorithm the kernel takes.

    Under autocast only a linear layer has limits; ten times the limit opens a channel.
    """
    parameters, flow = TYPES[types]
    made, shape = SUMS[name]
    net = Summed(made().to(parameters))
    layer = net.layer
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=parameters is not flow)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", mkldnn)
    with autocast:
        loss = net(torch.randn((2, *shape), dtype=parameters))
        claims = list(certify(net, sgd(net), loss))
        if parameters is not flow and name != "linear":
            assert claims == []
            return
        assert sorted(unit for claim in claims for unit in claim.units) == list(range(6))
        for claim in claims:
            (limit,) = [c.value for c in claim.conditions if c.name == "input_max"]
            x = worst(layer, limit, shape).to(parameters)
            net.zero_grad()
            y = layer(x)[:, list(claim.units)]
            functional.relu(y).float().sum().backward()
            assert bool((y <= 0).all()), float(y.max())
            assert not layer.weight.grad.any()
            assert not layer.bias.grad.any()
            assert bool((layer(10 * x)[:, list(claim.units)] > 0).any())
