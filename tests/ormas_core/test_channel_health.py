"""Channels out of use are counted by state, each level once, and silence is only an observation."""

from collections.abc import Callable

import pytest
import torch
from repair_support import (
    Channels,
    plant_certified,
    plant_decayed,
    plant_flat,
    plant_silent,
    sgd,
)
from run_support import Make, Run
from torch import nn

from ormas_core import Channels as ChannelsEvent
from ormas_core import ChannelsCleared, Status, describe

Counts = tuple[int, int, int, int]


def still(net: nn.Module) -> torch.optim.SGD:
    """Return an optimizer that leaves everything as it is."""
    return sgd(net, lr=0.0)


def counts(event: ChannelsEvent) -> Counts:
    """Return certified, flat, decayed and silent."""
    return event.certified, event.flat, event.decayed, event.silent


def said(run: Run) -> list[tuple[int, str, Counts]]:
    """Return the news about channels: step, level and counts."""
    return [
        (event.step, event.level.value, counts(event))
        for event in run.news()
        if isinstance(event, ChannelsEvent)
    ]


def test_each_state_is_counted_apart(make: Make) -> None:
    """Two certified, one flat, one decayed; the silent one is added when patience is over."""
    net = plant_silent(plant_decayed(plant_certified(plant_flat(Channels()))))
    with torch.no_grad():
        net.norm.bias[2] = 0.3  # what makes it flat, and the others' plants do not know of
    run = Run(make, net, still(net), patience=3)
    run.steps(6)
    assert said(run) == [(0, "most", (2, 1, 1, 0)), (2, "most", (2, 1, 1, 1))]


def test_silence_that_comes_and_goes_beside_stuck_channels_is_said_once(make: Make) -> None:
    """It is an observation, and the level has not changed."""
    net = plant_silent(plant_certified(Channels()))
    run = Run(make, net, still(net), patience=2)
    for bias in (-8.0, -8.0, 0.1, -8.0, -8.0):
        with torch.no_grad():
            net.norm.bias[6] = bias
        run.step()
    assert said(run) == [(0, "some", (2, 0, 0, 0)), (1, "some", (2, 0, 0, 1))]


@torch.no_grad()
def test_near_misses_are_not_counted(make: Make) -> None:
    """A scale of two thousandths, a filter that is almost zero, a channel that fires at times."""
    net = Channels()
    net.norm.weight[1] = 2e-3
    net.norm.bias[1] = 0.1
    net.conv.weight[2] = 1e-6
    net.norm.bias[3] = -2.5
    with torch.enable_grad():
        run = Run(make, net, still(net), patience=2)
        run.steps(6)
    assert said(run) == []


def test_a_decayed_channel_is_below_a_thousandth_of_the_median(make: Make) -> None:
    """The scale of the others is about one."""
    net = Channels()
    with torch.no_grad():
        net.norm.weight[1], net.norm.bias[1] = 0.9e-3, 0.1
    run = Run(make, net, still(net))
    run.steps(2)
    assert said(run) == [(0, "some", (0, 0, 1, 0))]


@torch.no_grad()
def close(net: Channels, *channels: int) -> None:
    """Close channels by a zero filter and a negative shift."""
    rows = list(channels)
    net.conv.weight[rows], net.conv.bias[rows], net.norm.bias[rows] = 0, 0, -0.1


def test_each_level_is_said_once(make: Make) -> None:
    """One, three: some; four, seven: most; eight: all; none: cleared, with the first step."""
    net = Channels()
    run = Run(make, net, still(net))
    run.steps(2)
    assert said(run) == []
    for channels in ((0,), (1, 2), (3,), (4, 5, 6), (7,)):
        close(net, *channels)
        run.steps(2)
    levels = [
        (event.step, event.level.value, event.certified)
        for event in run.news()
        if isinstance(event, ChannelsEvent) and event.layer == "conv"
    ]
    assert levels == [(2, "some", 1), (6, "most", 4), (10, "all", 8)]
    with torch.no_grad():
        net.conv.weight.normal_()
        net.norm.bias.fill_(0.1)
    run.steps(2)
    cleared = [event for event in run.news() if isinstance(event, ChannelsCleared)]
    found = {(e.step, e.layer, e.n, e.since_step): describe(e) for e in cleared}
    assert "all 8 channels are in use again" in found[12, "conv", 8, 2]


def test_what_was_there_at_the_first_check_is_said_to_be(make: Make) -> None:
    """A later change of the level is not."""
    net = plant_certified(Channels())
    run = Run(make, net, still(net))
    run.step()
    close(net, 0, 1)
    run.step()
    events = [event for event in run.news() if isinstance(event, ChannelsEvent)]
    assert [(event.level.value, event.initial) for event in events] == [
        ("some", True),
        ("most", False),
    ]


@pytest.mark.parametrize(
    ("plant", "stuck"),
    [(plant_silent, False), (plant_decayed, True), (plant_certified, True)],
)
def test_silent_channels_are_not_stuck(
    plant: Callable[[Channels], Channels], stuck: bool, make: Make
) -> None:
    """They leave the verdict healthy; certified and decayed ones do not."""
    net = plant(Channels())
    run = Run(make, net, still(net), patience=2)
    run.steps(12)
    assert set(run.facts.stuck) == ({"conv"} if stuck else set())
    events = run.proofs()
    assert [event.layer for event in events if isinstance(event, ChannelsEvent)] == ["conv"]
    run.close()
    assert run.facts.status is (Status.WARNINGS if stuck else Status.HEALTHY)


def test_a_silent_channel_that_fires_again_is_cleared(make: Make) -> None:
    """One positive output ends the streak, and it takes `patience` checks to begin another."""
    net = plant_silent(Channels())
    run = Run(make, net, still(net), patience=2)
    run.steps(2)
    assert said(run) == [(1, "some", (0, 0, 0, 1))]
    with torch.no_grad():
        net.norm.bias[6] = 0.1
    run.step()
    with torch.no_grad():
        net.norm.bias[6] = -8.0
    run.steps(2)
    events = run.proofs()
    assert [(event.kind, event.step) for event in events] == [
        ("channels_cleared", 2),
        ("channels", 4),
    ]


def test_a_step_that_is_not_finite_does_not_count_as_silence(make: Make) -> None:
    """NaN is no positive output, and no sign of silence either."""
    net = Channels()
    run = Run(make, net, still(net), patience=2)
    for _ in range(3):
        run.step(factor=float("nan"))
    run.step()
    assert said(run) == []


def test_a_flat_channel_that_learns_again_is_cleared(make: Make) -> None:
    """Its gradient brings it back, as its name says it may."""
    net = plant_flat(Channels())
    run = Run(make, net, sgd(net))
    run.steps(3)
    assert [event.kind for event in run.proofs()] == ["channels", "channels_cleared"]
