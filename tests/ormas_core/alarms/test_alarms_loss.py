"""loss_spike, loss_recovered and loss_reduced."""

import math
from dataclasses import replace

import pytest
from alarm_streams import LOSSES, WARMUP, feed, losses
from hypothesis import given
from hypothesis import strategies as st

from ormas_core.alarms.loss import LossRule
from ormas_core.config import MonitorConfig
from ormas_core.events import Event, LossRecovered, LossReduced, LossSpike


def around(mean: float, spread: float) -> tuple[float, ...]:
    """Return a warm-up with this mean and standard deviation."""
    return (mean - spread, mean + spread) * (WARMUP // 2)


def said(*values: float | None, config: MonitorConfig | None = None) -> list[Event]:
    """Return what the rule says of these losses."""
    return feed(LossRule(config or MonitorConfig()), losses(*values))


@pytest.mark.parametrize(
    ("mean", "spread", "limit"),
    [
        (1.0, 0.0, 1.5),  # the ratio decides
        (1.0, 0.125, 1.5),
        (1.0, 0.5, 2.25),  # 2.5 standard deviations decide
        (100.0, 8.0, 150.0),
        (-2.0, 1.0, 1.75),  # no ratio to a negative mean: 1.5 times 2.5 deviations
        (0.0, 4.0, 15.0),
    ],
)
def test_a_spike_is_above_the_ratio_and_the_deviations(
    mean: float, spread: float, limit: float
) -> None:
    """Just under the higher of the two limits there is no spike, just above it there is."""
    warm = around(mean, spread)
    assert said(*warm, limit - 1e-9) == []
    above = limit + 1e-9
    (spike,) = said(*warm, above)
    assert isinstance(spike, LossSpike)
    assert (spike.step, spike.value) == (WARMUP, above)
    assert spike.normal == pytest.approx(mean)
    assert spike.sigma == pytest.approx((above - mean) / spread if spread else math.inf)


def test_the_limit_itself_is_no_spike() -> None:
    """A loss of exactly 1.5 times a constant baseline is not above it."""
    assert said(*[2.0] * WARMUP, 3.0) == []
    assert said(*[2.0] * WARMUP, math.nextafter(3.0, math.inf)) != []


def test_a_mean_of_exactly_zero_has_no_ratio_either() -> None:
    """1.5 times 2.5 deviations of 4.0 are needed."""
    config = MonitorConfig(warmup=2)
    assert said(-4.0, 4.0, 14.9, config=config) == []
    assert said(-4.0, 4.0, 15.1, config=config) != []


def test_the_thresholds_are_the_configs() -> None:
    """`loss_spike_ratio`, `sigma`, `warmup` and `baseline_memory` are used."""
    warm = around(1.0, 0.125)
    assert said(*warm, 1.6, config=MonitorConfig(loss_spike_ratio=2.0)) == []
    assert said(*warm, 1.6, config=MonitorConfig(sigma=8.0)) == []
    assert said(*warm, 1.4, config=MonitorConfig(loss_spike_ratio=1.2)) != []
    assert said(1.0, 1.0, 9.0, config=MonitorConfig(warmup=2)) != []
    # With a short memory the loss has come down to 1 before it is at 9 again.
    falling = (*[9.0] * 8, *[1.0] * 40, 9.0)
    assert said(*falling, config=MonitorConfig(baseline_memory=2)) != []
    assert said(*[9.0] * 8, *[1.0] * 4, 9.0) == []


def test_a_falling_loss_is_no_spike() -> None:
    """Only up is worse."""
    assert said(*around(1.0, 0.125), 0.1, 0.0, -50.0) == []


def test_recovery_ends_the_episode_once() -> None:
    """One spike, one recovery; the values in between do not move the baseline."""
    events = said(*around(1.0, 0.125), *[50.0] * 100, 1.0, 1.0, 50.0)
    assert [event.kind for event in events] == ["loss_spike", "loss_recovered", "loss_spike"]
    assert events[1] == LossRecovered(step=WARMUP + 100, value=1.0, normal=1.0, since_step=WARMUP)
    again = events[2]
    assert isinstance(again, LossSpike)
    assert again.normal == 1.0


@pytest.mark.parametrize("hidden", [math.nan, math.inf, -math.inf, None])
def test_a_loss_that_is_no_number_ends_no_episode(hidden: float | None) -> None:
    """NaN, infinities and missing losses neither open nor close, and never enter the baseline."""
    assert said(*around(1.0, 0.125), *[hidden] * 20, 1.0) == []
    events = said(*around(1.0, 0.125), 50.0, hidden, 50.0, hidden, 1.0)
    assert [event.kind for event in events] == ["loss_spike", "loss_recovered"]
    assert said(*[hidden] * 50, *around(1.0, 0.125)[1:], 50.0) == []


@given(st.lists(LOSSES | st.floats(), max_size=WARMUP))
def test_the_warm_up_never_spikes(values: list[float | None]) -> None:
    """The first eight losses make the baseline, whatever they are."""
    assert said(*values) == []


@pytest.mark.parametrize("huge", [1e200, -1e200, 1.7e308])
def test_a_huge_loss_in_the_warm_up_does_not_blind_the_rule(huge: float) -> None:
    """Its square overflows; the spike after it is found all the same."""
    events = said(huge, *around(1.0, 0.125), 50.0)
    assert [event.kind for event in events] == ["loss_spike"]


def test_an_unreduced_loss_is_said_once() -> None:
    """At the first check with several elements, and never again."""
    pairs = zip(losses(*[1.0] * 5), (1, 4, 4, 9, 1), strict=True)
    unreduced = [replace(m, loss_elements=elements) for m, elements in pairs]
    assert feed(LossRule(MonitorConfig()), unreduced) == [LossReduced(step=1, elements=4)]


def test_an_unreduced_loss_without_a_value_is_said_too() -> None:
    """Its mean may be NaN; the remark is about how it was given."""
    (stream,) = losses(math.nan)
    events = feed(LossRule(MonitorConfig()), [replace(stream, loss_elements=3)])
    assert events == [LossReduced(step=0, elements=3)]
