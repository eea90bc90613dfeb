"""Report 27, retold: units that are proven dead, and units that were only silent so far.

Links: 27 github.com/keras-team/keras/issues/7057, github.com/keras-team/keras-contrib/pull/115,
github.com/matterport/Mask_RCNN/pull/306.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import of
from torch import Tensor, nn

from ormas_core import (
    Certificate,
    CertificateRevoked,
    Channels,
    MemorySink,
    Monitor,
    describe,
)

PROVEN = (1, 4, 7)
SILENT = (2, 9)
BATCHES, ROWS = 32, 128
"""4,096 samples in all."""


class Net(nn.Module):
    """A layer of sixteen units, a ReLU, a head."""

    def __init__(self, layer: Any, gate: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.layer, self.gate, self.head = layer, gate, nn.Linear(16, 3)
        with torch.no_grad():
            layer.bias[list(PROVEN)] = -50.0
            # They fire where all inputs are near 1 or -1 with the signs of the weights: never here.
            total = layer.weight[list(SILENT)].flatten(1).abs().sum(1)
            layer.bias[list(SILENT)] = -0.95 * total

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.gate(self.layer(x))
        return self.head(hidden.flatten(2).mean(2) if hidden.dim() > 2 else hidden)


def run(
    net: Net,
    shape: tuple[int, ...],
    folder: Path,
    optimizer: Callable[[Any], torch.optim.Optimizer],
    size: float = 1.0,
) -> MemorySink:
    """Train on uniform inputs in [-size, size]; return what was said."""
    sink, made = MemorySink(), optimizer(net.parameters())
    generator = torch.Generator().manual_seed(3)
    with Monitor(
        net, made, out=folder, check_every=1, patience=4, sinks=[sink], verbose=False
    ) as monitor:
        for _ in range(BATCHES):
            made.zero_grad()
            x = size * (2 * torch.rand((ROWS, *shape), generator=generator) - 1)
            target = torch.randint(0, 3, (ROWS,), generator=generator)
            loss = nn.functional.cross_entropy(net(x), target)
            loss.backward()
            monitor.step(loss)
            made.step()
    return sink


LAYERS = {
    "linear": (lambda: nn.Linear(12, 16), (12,)),
    "convolution": (lambda: nn.Conv2d(2, 16, 3, padding=1), (2, 4, 4)),
    "1d, strided": (lambda: nn.Conv1d(4, 16, 3, stride=2), (4, 9)),
    "grouped": (lambda: nn.Conv2d(4, 16, 3, groups=2), (4, 5, 5)),
}
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 1e-3),
    "momentum": lambda p: torch.optim.SGD(p, 1e-3, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-4),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("layer", LAYERS)
def test_case_27_dead_for_all_inputs_within_limits_or_silent_on_samples(
    layer: str, optimizer: str, tmp_path: Path
) -> None:
    """Three units are certified with the size of input that it holds for; two are only silent."""
    torch.manual_seed(0)
    made, shape = LAYERS[layer]
    net = Net(made())
    sink = run(net, shape, tmp_path / "run", OPTIMIZERS[optimizer])
    certificates = of(sink, Certificate)
    assert sorted(unit for event in certificates for unit in event.units) == list(PROVEN)
    for event in certificates:
        assert (event.cls, event.layer, event.initial) == ("bounded", "layer", True)
        (limit,) = [c for c in event.conditions if c.name == "input_max"]
        assert limit.layer == "layer"
        assert limit.value >= 2.0  # twice what is put in, since not every step is measured
        assert f"input_max {limit.value:.3g}" in describe(event)
        for unit in event.units:
            check_limit(net.layer, unit, limit.value)
    assert of(sink, CertificateRevoked) == []
    last = of(sink, Channels)[-1]
    assert (last.certified, last.silent, last.flat, last.decayed) == (3, 2, 0, 0)
    assert "3 certified, 2 silent" in describe(last)


@torch.no_grad()
def check_limit(layer: Any, unit: int, input_max: float) -> None:
    """Check that no input within the limit opens a unit, and one of ten times its size does.

    A row's worst input has the signs of its weights. Every sum of a convolution has one such place.
    """
    worst = layer.weight[unit].sign()[None]
    groups = getattr(layer, "groups", 1)
    if groups > 1:
        whole = torch.zeros(1, layer.in_channels, *worst.shape[2:])
        own = unit // (layer.out_channels // groups)
        whole[:, own * worst.shape[1] : (own + 1) * worst.shape[1]] = worst
        worst = whole
    assert layer(input_max * worst)[:, unit].max() <= 0
    assert layer(10 * input_max * worst)[:, unit].max() > 0


def test_case_27_the_silent_units_do_fire_on_some_input() -> None:
    """Within [-1, 1] there are inputs that open them: no proof could call them dead."""
    torch.manual_seed(0)
    net = Net(nn.Linear(12, 16))
    for unit in SILENT:
        assert net.layer(net.layer.weight[unit].detach().sign())[unit] > 0


def test_case_27_larger_inputs_cost_the_certificates(tmp_path: Path) -> None:
    """On inputs in [-60, 60] the same units are not certified: -50 is not far enough."""
    torch.manual_seed(0)
    sink = run(Net(nn.Linear(12, 16)), (12,), tmp_path / "run", OPTIMIZERS["SGD"], size=60.0)
    assert of(sink, Certificate) == []


@pytest.mark.parametrize("gate", [torch.tanh, nn.functional.gelu, nn.functional.leaky_relu])
def test_case_27_behind_a_gate_that_does_not_close_nothing_is_certified(
    gate: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    """A bias of -50 saturates or scales the gradient there; it is not proven zero."""
    torch.manual_seed(0)
    sink = run(Net(nn.Linear(12, 16), gate), (12,), tmp_path / "run", OPTIMIZERS["SGD"])
    assert of(sink, Certificate) == []


def test_case_27_dead_maps_next_to_an_enormous_scale_are_proven(tmp_path: Path) -> None:
    """A zero filter before a norm of scale 1000: dead for every input, not only for small ones."""
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Conv2d(2, 16, 3, bias=False), nn.BatchNorm2d(16))
    net = nn.Sequential(layer, nn.ReLU(), nn.Flatten(), nn.Linear(16 * 4, 3))
    with torch.no_grad():
        layer[0].weight[list(PROVEN)] = 0
        layer[1].weight[list(PROVEN)], layer[1].bias[list(PROVEN)] = 1000.0, -0.01
    sink = MemorySink()
    with Monitor(
        net,
        torch.optim.SGD(net.parameters(), 1e-3),
        out=tmp_path / "run",
        check_every=1,
        sinks=[sink],
        verbose=False,
    ) as monitor:
        loss = nn.functional.cross_entropy(net(torch.rand(8, 2, 4, 4)), torch.arange(8) % 3)
        loss.backward()
        monitor.step(loss)
    (event,) = of(sink, Certificate)
    assert (event.layer, event.units, event.cls) == ("0.0", PROVEN, "absorbing")
    assert "can never recover" in describe(event)
