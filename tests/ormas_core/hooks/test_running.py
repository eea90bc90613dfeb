"""Running statistics of batch norms, compared from check to check."""

import pytest
import torch
from torch import nn

from ormas_core.hooks.gather import Gather
from ormas_core.hooks.running import RunningStatistics
from ormas_core.hooks.select import select


def follow(net: nn.Module) -> RunningStatistics:
    """Return what follows all batch norms of a network."""
    return RunningStatistics(select(net, None).owners)


def check(found: RunningStatistics) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Make a check; return the drifting ones and the untouched ones."""
    gather = Gather()
    slots = found.add_to(gather)
    found.take(gather.fetch(), slots)
    return found.drifting, found.untouched


def frozen() -> nn.Sequential:
    """Return a linear layer and a frozen batch norm, named `0` and `1`."""
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    net[1].requires_grad_(requires_grad=False)
    return net


def test_a_frozen_batch_norm_drifts_when_it_is_called_in_training_mode() -> None:
    """Between the last check and this one, whether by the step that is checked or before it."""
    net = frozen()
    found = follow(net)
    assert check(found) == ((), ("1",))
    net(torch.randn(3, 4))
    assert check(found) == (("1",), ())
    assert check(found) == ((), ())
    net.eval()(torch.randn(3, 4))
    assert check(found) == ((), ())


def test_parameters_that_move_without_a_gradient_are_not_frozen() -> None:
    """As those of an average of another network; nor are any that required a gradient once."""
    net = frozen()
    found = follow(net)
    net(torch.randn(3, 4))
    with torch.no_grad():
        net[1].bias.add_(1e-3)
    assert check(found)[0] == ()
    thawed = frozen()
    found = follow(thawed)
    thawed[1].requires_grad_()
    check(found)
    thawed[1].requires_grad_(requires_grad=False)
    thawed(torch.randn(3, 4))
    assert check(found)[0] == ()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_statistics_that_are_no_numbers_stand_still_and_are_not_untouched(value: float) -> None:
    """NaN is not equal to itself; that is no movement."""
    net = frozen()
    net[1].running_var[0] = value
    found = follow(net)
    assert check(found) == ((), ())


def test_a_mean_of_zero_alone_is_not_untouched() -> None:
    """The variance has to be one in every channel."""
    net = frozen()
    net[1].running_var[3] = 1.5
    assert follow(net).untouched == ()


def test_what_cannot_be_read_is_left_out() -> None:
    """Without statistics, without data, or not built yet; what is built later is followed."""
    lazy = nn.LazyBatchNorm1d()
    net = nn.Sequential(
        nn.BatchNorm1d(8, track_running_stats=False),
        nn.BatchNorm1d(8, device="meta"),
        nn.BatchNorm1d(8, affine=False),
        lazy,
    )
    found = follow(net)
    assert check(found) == ((), ())
    lazy.eval()(torch.randn(3, 8))
    assert check(found) == ((), ("3",))
