"""Gradients that grow or vanish by a steady factor from layer to layer of one backward pass."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from alarm_streams import ThroughJson, feed
from hypothesis import given
from hypothesis import strategies as st

from ormas_core.across import GradientSlope
from ormas_core.alarms.slope import SlopeRule
from ormas_core.config import MonitorConfig
from ormas_core.events import Measurement
from ormas_core.terms import Signal, Stage, Trend
from ormas_core.testing import check_rule

DEPTH = 40


def backward(
    peaks: Sequence[float | None],
    *,
    step: int = 0,
    norms: Sequence[float | None] = (),
    name: str = "layers.{}.linear",
    kind: str = "float32",
    scale: float | None = None,
) -> Measurement:
    """Return a check of a stack; the first peak is that of the last layer, as going backward."""
    return Measurement(
        step=step,
        attempt=step,
        stage=Stage.UNSCALED,
        scale=scale,
        layers=tuple(name.format(len(peaks) - place) for place in range(len(peaks))),
        norms=tuple(norms) or (1.0,) * len(peaks),
        output_peaks=tuple(peaks),
        gradient_type=kind,
    )


def geometric(factor: float, layers: int = DEPTH, start: float = 1.0) -> list[float | None]:
    """Return the peaks of a stack with a gain of `factor`."""
    return [start * factor**place for place in range(layers)]


def said(*measurements: Measurement, config: MonitorConfig | None = None) -> list[GradientSlope]:
    """Return what the rule says, which are slopes only."""
    found = feed(SlopeRule(config or MonitorConfig()), measurements)
    assert all(isinstance(event, GradientSlope) for event in found)
    return [event for event in found if isinstance(event, GradientSlope)]


def test_a_clean_growth_is_said_with_its_rate_and_ends() -> None:
    """Factor, first and last layer, and the room that is left in the type."""
    (found,) = said(backward(geometric(10.0, layers=30)))
    assert (found.trend, found.signal, found.layers) == (Trend.GROWING, Signal.OUTPUTS, 30)
    assert found.factor == pytest.approx(10.0)
    assert (found.first, found.last) == ("layers.30.linear", "layers.1.linear")
    assert (found.first_value, found.last_value) == pytest.approx((1.0, 1e29))
    assert found.layers_left == pytest.approx(38.53 - 29, abs=0.01)
    assert found.beyond is None


def test_the_mirror_image_is_vanishing() -> None:
    """With the factor below one, and room down to the smallest number of the type."""
    (found,) = said(backward(geometric(0.1, layers=30)))
    assert (found.trend, found.layers) == (Trend.VANISHING, 30)
    assert found.factor == pytest.approx(0.1)
    assert found.layers_left == pytest.approx(44.85 - 29, abs=0.01)


@pytest.mark.parametrize("lost", [math.inf, math.nan])
def test_an_overflow_at_the_end_of_a_run_is_named(lost: float) -> None:
    """The layer after the run, and half the decades are enough then."""
    peaks = [*geometric(4.0, layers=8), lost, math.nan, math.nan]
    (found,) = said(backward(peaks, kind="float16"))
    assert (found.beyond, found.last, found.layers) == ("layers.3.linear", "layers.4.linear", 8)
    assert said(backward(geometric(4.0, layers=8))) == []


def test_an_underflow_to_zero_at_the_end_of_a_run_is_named() -> None:
    """And an overflow after a vanishing run is another matter."""
    run = geometric(0.2, layers=8)
    assert [event.beyond for event in said(backward([*run, 0.0, 0.0]))] == ["layers.2.linear"]
    assert said(backward([*run, math.nan, math.nan])) == []


def test_a_loss_scale_takes_room_from_the_type() -> None:
    """Peaks are recorded without the scale, and overflow with it."""
    peaks = geometric(10.0, layers=10, start=1e-9)
    (plain,) = said(backward(peaks, kind="float16"))
    (scaled,) = said(backward(peaks, kind="float16", scale=1000.0))
    assert plain.layers_left == pytest.approx(4.816, abs=0.01)
    assert scaled.layers_left == pytest.approx(1.816, abs=0.01)
    (unknown,) = said(backward(peaks, kind="float8_e5m2"))
    assert unknown.layers_left is None


def test_what_is_not_seen_at_outputs_is_looked_at_in_parameters() -> None:
    """As with compiled code; norms are not looked at where outputs are seen."""
    unseen = replace(backward(geometric(10.0), norms=geometric(0.1)), output_peaks=())
    (found,) = said(unseen)
    assert (found.signal, found.trend) == (Signal.PARAMETERS, Trend.VANISHING)
    assert said(backward([1.0] * DEPTH, norms=geometric(0.1))) == []


def test_gradients_that_are_all_zero_do_not_hide_a_slope() -> None:
    """Where the product of output gradient and input is below the type, outputs still tell."""
    (found,) = said(backward(geometric(0.1), norms=[0.0] * DEPTH))
    assert found.trend is Trend.VANISHING
    assert said(backward([0.0] * DEPTH, norms=[None] * DEPTH)) == []


def test_a_slope_is_said_once_until_it_is_over() -> None:
    """Half the decades keep it open; the other direction is another episode."""
    steep, flat = geometric(10.0), [1.0] * DEPTH
    eased = geometric(10.0 ** (5.0 / 24), layers=25)
    stream = [steep, steep, eased, steep, flat, steep, geometric(0.1), steep]
    found = said(*(backward(peaks, step=step) for step, peaks in enumerate(stream)))
    assert [event.step for event in found] == [0, 5, 6, 7]


def test_only_the_part_that_is_geometric_is_named() -> None:
    """Flat layers above and below are no part of the run."""
    peaks = [1.0] * 10 + geometric(10.0, layers=12) + [1e11] * 10
    (found,) = said(backward(peaks))
    assert found.layers == 12
    assert found.factor == pytest.approx(10.0)
    assert (found.first, found.last) == ("layers.22.linear", "layers.11.linear")


@pytest.mark.parametrize(
    "peaks",
    [
        [1.0] * 20 + [1e12] * 20,
        [10.0 ** (0.12 * place + (10.0 if place >= 20 else 0.0)) for place in range(DEPTH)],
        geometric(1.5, layers=DEPTH),
        geometric(10.0, layers=7),
        geometric(3.0, layers=16),
        [10.0 ** (3.0 * math.sin(place / 3.0)) for place in range(DEPTH)],
        [1.0, 1e9] * 20,
        [None] * DEPTH,
    ],
    ids=["cliff", "cliff on a slope", "slow", "short", "shallow", "waves", "alternating", "unseen"],
)
def test_what_is_no_steep_line_is_not_said(peaks: list[float | None]) -> None:
    """A cliff has one faulty layer, and a slow or short slope is how sound networks look."""
    assert said(backward(peaks)) == []


def test_the_parts_of_a_block_may_differ_from_each_other() -> None:
    """Linear and norm layers of one list alternate; the slope is that of both."""
    peaks: list[float | None] = [
        10.0 ** (0.5 * place + 0.4 * (place % 2)) for place in range(DEPTH)
    ]
    (found,) = said(backward(peaks))
    assert found.factor == pytest.approx(10.0**0.5, rel=0.1)
    assert found.layers >= DEPTH - 6


def test_layers_are_compared_with_their_kind() -> None:
    """Names that differ in one number; others have levels of their own."""
    blocks = [(f"h.{i}.attn", f"h.{i}.mlp.fc1") for i in range(12, 0, -1)]
    peaks = [(10.0 ** (12 - i), 1e-6 * 10.0 ** (12 - i)) for i in range(12, 0, -1)]
    check = Measurement(
        step=0,
        attempt=0,
        stage=Stage.UNSCALED,
        layers=tuple(name for names in blocks for name in names),
        norms=(1.0,) * 24,
        output_peaks=tuple(peak for both in peaks for peak in both),
    )
    (found,) = said(check)
    assert (found.first, found.last, found.layers) == ("h.12.attn", "h.1.attn", 12)
    assert found.factor == pytest.approx(10.0)


def test_the_thresholds_are_settings() -> None:
    """Fewer layers or decades on demand."""
    config = MonitorConfig(slope_min_layers=6, slope_min_decades=3.0)
    (found,) = said(backward(geometric(0.2, layers=6)), config=config)
    assert found.layers == 6


@given(
    rate=st.floats(0.35, 2.0),
    up=st.booleans(),
    noise=st.lists(st.floats(-0.1, 0.1), min_size=32, max_size=32),
)
def test_noise_moves_the_rate_little(rate: float, up: bool, noise: list[float]) -> None:
    """A quarter of a decade from layer to layer changes neither the finding nor its direction."""
    rate = rate if up else -rate
    (found,) = said(
        backward([10.0 ** (rate * place + off) for place, off in enumerate(noise)], kind="float64")
    )
    assert math.log10(found.factor) == pytest.approx(rate, abs=0.05)
    assert found.layers >= 26


@given(st.lists(st.floats(-1.0, 1.0), min_size=8, max_size=60))
def test_noise_alone_is_no_slope(logs: list[float]) -> None:
    """Two decades of scatter at any depth."""
    assert said(backward([10.0**value for value in logs])) == []


@given(st.lists(st.none() | st.floats(0.0) | st.just(math.nan), min_size=1, max_size=30))
def test_no_value_is_too_odd(peaks: list[float | None]) -> None:
    """Missing, zero, denormal, huge and non-finite values in any place."""
    for event in said(backward(peaks), backward(peaks, norms=peaks)):
        assert math.isfinite(event.factor)
        assert event.layers >= 8


def test_a_saved_rule_goes_on_alike() -> None:
    """At any point, also through JSON."""
    stream = [geometric(10.0), [1.0] * DEPTH, geometric(0.1), geometric(0.1), geometric(10.0)]
    checks = [backward(peaks, step=step) for step, peaks in enumerate(stream)]
    assert len(check_rule(lambda config: ThroughJson(SlopeRule, config), checks)) == 3
