"""The baseline: numpy's mean and variance, then an exponential window, and never a NaN."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ormas_core.alarms import Baseline

NUMBERS = st.floats(-1e6, 1e6)
NONFINITE = st.sampled_from([math.nan, math.inf, -math.inf])


def filled(values: list[float], memory: int = 64) -> Baseline:
    """Return a baseline that has seen `values`."""
    baseline = Baseline(memory)
    for value in values:
        baseline.add(value)
    return baseline


@given(st.lists(NUMBERS, min_size=1, max_size=64))
def test_up_to_its_memory_it_is_the_mean_and_variance(values: list[float]) -> None:
    """Mean and population variance as numpy has them."""
    baseline = filled(values)
    scale = max(map(abs, values))
    assert baseline.count == len(values)
    assert baseline.mean == pytest.approx(np.mean(values), rel=1e-9, abs=1e-12 * scale)
    assert baseline.variance == pytest.approx(np.var(values), rel=1e-9, abs=1e-12 * scale**2)
    assert baseline.spread == math.sqrt(baseline.variance)


@given(memory=st.integers(2, 6), values=st.lists(NUMBERS, min_size=7, max_size=40))
def test_beyond_its_memory_old_values_fade(memory: int, values: list[float]) -> None:
    """The newest value weighs 1/memory, and each step back multiplies by 1 - 1/memory."""
    baseline = filled(values, memory)
    ages = np.arange(len(values))[::-1]
    fade = 1.0 - 1.0 / memory
    weights = fade**ages / memory
    weights[:memory] = fade ** (len(values) - memory) / memory
    assert weights.sum() == pytest.approx(1.0)
    mean = float(weights @ values)
    variance = float(weights @ (np.array(values) - mean) ** 2)
    scale = max(map(abs, values))
    assert baseline.mean == pytest.approx(mean, rel=1e-9, abs=1e-12 * scale)
    assert baseline.variance == pytest.approx(variance, rel=1e-9, abs=1e-12 * scale**2)


@given(st.lists(NUMBERS | NONFINITE, max_size=30))
def test_nonfinite_values_never_enter(values: list[float]) -> None:
    """A stream with NaN and infinities leaves the state of the stream without them."""
    finite = [value for value in values if math.isfinite(value)]
    assert filled(values, memory=8) == filled(finite, memory=8)


@given(st.lists(st.floats(), max_size=30))
@example([1e200, 1e200])
@example([1.0, 1e160, 1.0])
@example([1.7e308, -1.7e308])
def test_no_stream_of_floats_blinds_it(values: list[float]) -> None:
    """Mean, variance and spread stay finite, whatever comes, and normal values still enter."""
    baseline = filled([*values, 1.0, 2.0], memory=8)
    assert baseline.count >= 2
    assert all(map(math.isfinite, (baseline.mean, baseline.variance, baseline.spread)))
    before = baseline.count
    baseline.add(3.0)
    assert baseline.count == before + 1


def test_sigmas_are_counted_in_standard_deviations() -> None:
    """Both sides alike; without any spread everything else is infinitely far off."""
    baseline = filled([1.0, 3.0])
    assert [baseline.sigmas(value) for value in (2.0, 4.5, -0.5)] == [0.0, 2.5, 2.5]
    flat = filled([2.0, 2.0])
    assert flat.sigmas(2.0) == 0.0
    assert flat.sigmas(2.0000001) == math.inf


@given(st.lists(NUMBERS, max_size=20), st.lists(NUMBERS, max_size=20))
def test_a_restored_baseline_goes_on_alike(before: list[float], after: list[float]) -> None:
    """`state` and `load` lose nothing, the count included."""
    whole = filled(before + after, memory=8)
    restored = Baseline(8)
    restored.load(filled(before, memory=8).state())
    for value in after:
        restored.add(value)
    assert restored == whole
    assert type(restored.count) is int


@pytest.mark.parametrize(
    "state",
    [
        [1.0, math.nan, 1.0],
        [1.0, math.inf, 1.0],
        [1.0, 1e300, 1.0],
        [1.0, 0.0, math.nan],
        [1.0, 0.0, math.inf],
        [1.0, 0.0, -1.0],
        [-1.0, 0.0, 0.0],
        [math.nan, 0.0, 0.0],
        [1.0, 0.0],
    ],
)
def test_a_state_that_would_blind_a_baseline_is_refused(state: list[float]) -> None:
    """A checkpoint may be mangled; what was there stays."""
    baseline = filled([1.0, 3.0])
    before = baseline.state()
    with pytest.raises(ValueError, match=r"no baseline|not enough values"):
        baseline.load(state)
    assert baseline.state() == before
