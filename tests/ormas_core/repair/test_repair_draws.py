"""The numbers a repair draws, and where it writes none."""

from collections.abc import Callable

import pytest
import torch
from repair_support import (
    Channels,
    changed,
    plant_certified,
    plant_decayed,
    repairs,
    sgd,
    snapshot,
    train,
)
from torch import Tensor, nn

from ormas_core import MemorySink, Monitor
from ormas_core.repair import Part, Site, digest, draw, obstacle

Make = Callable[..., tuple[Monitor, MemorySink]]

OF_A_CHANNEL = {
    "conv.weight",
    "conv.bias",
    "norm.weight",
    "norm.bias",
    "norm.running_mean",
    "norm.running_var",
}
PATIENCE = 3


def drawn(seed: int, step: int, layer: str) -> bytes:
    """Return a hash of what would be written for a layer."""
    part = Part("w", nn.Parameter(torch.zeros(6, 4)), 0, (1, 3), None, {})
    site = Site(layer, "flat", (1, 3), (part,))
    values = draw([site], seed=seed, step=step)
    return values[0][0].numpy().tobytes()


def test_the_numbers_follow_from_seed_step_and_layer() -> None:
    """The same three give the same bits; another one of any of them gives others."""
    assert drawn(0, 5, "conv") == drawn(0, 5, "conv")
    others = {drawn(1, 5, "conv"), drawn(0, 6, "conv"), drawn(0, 5, "conv2"), drawn(0, 5, "conv")}
    assert len(others) == 4


def test_the_digest_covers_places_and_bits() -> None:
    """Ranks that would write other elements, or other numbers, disagree."""

    def of(rows: tuple[int, ...], seed: int, name: str = "w") -> bytes:
        part = Part(name, nn.Parameter(torch.zeros(6, 4)), 0, rows, None, {})
        site = Site("conv", "flat", rows, (part,))
        return digest([site], draw([site], seed=seed, step=0))

    assert of((1,), 0) == of((1,), 0)
    assert len({of((1,), 0), of((2,), 0), of((1,), 1), of((1,), 0, "v"), digest([], [])}) == 5


def test_torchs_own_random_state_is_not_touched(make: Make) -> None:
    """So that data order and dropout are those of a run that repairs nothing."""
    net = plant_certified(Channels())
    monitor, sink = make(net, sgd(net), repair=True)
    states = []

    def step(loss: Tensor) -> None:
        before = torch.get_rng_state()
        monitor.step(loss)
        states.append(torch.equal(before, torch.get_rng_state()))

    train(net, sgd(net), step, 4)
    assert len(repairs(sink)) == 1
    assert all(states)


def test_without_repair_not_a_bit_is_changed(make: Make) -> None:
    """The weights are those of the same loop without a monitor."""
    found = []
    for monitored in (True, False):
        net = plant_decayed(plant_certified(Channels()))
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        monitor, _ = make(net, optimizer, repair=False, patience=1, overwrite=True)
        train(net, optimizer, monitor.step if monitored else lambda loss: None, 6)
        monitor.close()
        found.append(snapshot(net, optimizer))
    assert changed(*found) == {}


OBSTACLES = [
    (nn.Parameter(torch.zeros(2, 2), requires_grad=False), {}, "frozen"),
    (torch.zeros(2, 2, requires_grad=True) * 1, {}, "parametrized"),
    (torch.zeros(2, 2, dtype=torch.int8), {}, "int8: quantised"),
    (nn.Parameter(torch.zeros(2, 2)).as_subclass(type("DTensor", (Tensor,), {})), {}, "a DTensor"),
    (
        nn.Parameter(torch.zeros(2, 2)),
        {"state1": torch.zeros(2, 2, dtype=torch.uint8)},
        "uint8: quantised",
    ),
]


@pytest.mark.parametrize(
    ("tensor", "states", "reason"), OBSTACLES, ids=[reason for _, _, reason in OBSTACLES]
)
def test_what_cannot_be_written_by_channel_says_why(
    tensor: Tensor, states: dict[str, Tensor], reason: str
) -> None:
    """And what can be has no obstacle."""
    assert reason in obstacle(Part("w", tensor, 0, (0,), None, states))
    assert obstacle(Part("w", nn.Parameter(torch.zeros(2)), 0, (0,), 0.0, {})) == ""
