"""What a loss scaler did between two checks, from its scale alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.amp import GradScaler

from ormas_core.hooks.scaling import ScaleLedger


def drive(overflow: list[bool], check_every: int, interval: int) -> tuple[ScaleLedger, list[bool]]:
    """Run a real scaler over a pattern of overflows; check every so often."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler = GradScaler("cpu", init_scale=2.0**40, growth_interval=interval)
    ledger = ScaleLedger()
    for attempt, bad in enumerate([*overflow, False]):
        optimizer.zero_grad()
        scaler.scale((weight * (float("inf") if bad else 1.0)).sum()).backward()
        if attempt % check_every == 0 or attempt == len(overflow):
            state = scaler.state_dict()
            ledger.observe(scaler, attempt, state["scale"], state["_growth_tracker"])
        scaler.step(optimizer)
        scaler.update()
    return ledger, overflow


@settings(deadline=None, max_examples=60)
@given(st.lists(st.booleans(), max_size=30), st.sampled_from([1, 3, 7]))
def test_every_skip_is_counted_while_the_scale_cannot_grow(
    overflow: list[bool], every: int
) -> None:
    """With a growth interval that is never reached, the count is exact at any sampling."""
    ledger, _ = drive(overflow, every, interval=1000)
    assert ledger.skipped == sum(overflow)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.booleans(), max_size=30), st.sampled_from([2, 5]))
def test_every_skip_is_counted_across_growth_when_each_step_is_checked(
    overflow: list[bool], interval: int
) -> None:
    """Checked at every step, growth and backoff are told apart."""
    ledger, _ = drive(overflow, 1, interval)
    assert ledger.skipped == sum(overflow)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.booleans(), max_size=30), st.sampled_from([1, 4]))
def test_skips_in_a_row_are_never_overstated(overflow: list[bool], every: int) -> None:
    """The trailing run is a lower bound at any sampling, and exact at every step."""
    ledger, _ = drive(overflow, every, interval=1000)
    trailing = 0
    for bad in reversed(overflow):
        if not bad:
            break
        trailing += 1
    assert ledger.in_a_row <= trailing
    if every == 1:
        assert ledger.in_a_row == trailing
    assert (ledger.in_a_row > 0) == (trailing > 0)


def test_a_restored_ledger_goes_on_counting() -> None:
    """Over a checkpoint between two checks, no skip is counted twice or not at all."""
    whole, _ = drive([True, False, True, True, False, True], 2, interval=1000)
    first, second = ScaleLedger(), ScaleLedger()
    scaler = GradScaler("cpu", init_scale=1024.0)
    first.observe(scaler, 0, 1024.0, 0)
    first.observe(scaler, 3, 256.0, 1)
    second.load_state_dict(first.state_dict())
    assert second == first
    second.observe(scaler, 5, 64.0, 0)
    assert (second.skipped, second.in_a_row) == (4, 2)
    third = ScaleLedger()
    third.load_state_dict(whole.state_dict())
    assert third == whole


@pytest.mark.parametrize("change", [{"scale": "x"}, {"skipped": None}, {"tracker": "many"}])
def test_a_state_that_is_none_leaves_the_ledger(change: dict[str, object]) -> None:
    """Half a restored ledger would miscount steps."""
    ledger, _ = drive([True, False], 1, interval=1000)
    before = ledger.state_dict()
    with pytest.raises((TypeError, ValueError)):
        ledger.load_state_dict({**before, **change})
    assert ledger.state_dict() == before
