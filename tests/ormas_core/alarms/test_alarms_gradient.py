"""no_gradient, vanishing and exploding, each against the layer's own history."""

import math
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from alarm_streams import NORMS, WARMUP, feed, norms
from hypothesis import given
from hypothesis import strategies as st

from ormas_core.alarms.gradient import GradientRule
from ormas_core.config import MonitorConfig
from ormas_core.events import Alarm, AlarmCleared, Event
from ormas_core.terms import Diagnosis, Stage
from ormas_core.testing import measurement

STEADY = (1.0,) * WARMUP
NOISY = (0.1, 10.0) * (WARMUP // 2)  # log10: mean 0, standard deviation 1


def said(*values: float | None, config: MonitorConfig | None = None) -> list[Event]:
    """Return what the rule says of a layer with these norms."""
    return feed(GradientRule(config or MonitorConfig()), norms(*values))


def diagnoses(events: list[Event]) -> list[tuple[int, str]]:
    """Return step and diagnosis of the alarms among `events`."""
    return [(event.step, event.diagnosis.value) for event in events if isinstance(event, Alarm)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((*STEADY, 0.1, 0.1), "vanishing"),
        ((*STEADY, 10.0, 10.0), "exploding"),
        ((*STEADY, 0.11, 0.11), None),  # no decade off, though infinitely many sigmas
        ((*STEADY, 9.0, 9.0), None),
        ((*NOISY, 10**2.6, 10**2.6), "exploding"),
        ((*NOISY, 10**-2.6, 10**-2.6), "vanishing"),
        ((*NOISY, 10**2.4, 10**2.4), None),  # two decades off, but less than 2.5 sigmas
        ((*NOISY, 10**-2.4, 10**-2.4), None),
    ],
)
def test_an_alarm_needs_sigmas_and_decades(values: tuple[float, ...], expected: str | None) -> None:
    """At least 2.5 standard deviations and at least one decade: neither alone is enough."""
    assert diagnoses(said(*values)) == ([(WARMUP + 1, expected)] if expected else [])


def test_exactly_the_deviations_asked_for_are_enough() -> None:
    """Off by 2 standard deviations of 1.0, with sigma=2.0, is an alarm."""
    config = MonitorConfig(warmup=2, sigma=2.0)
    assert diagnoses(said(0.1, 10.0, 100.0, 100.0, config=config)) == [(3, "exploding")]
    assert said(0.1, 10.0, 99.0, 99.0, config=config) == []


def test_norms_that_do_not_fit_the_layers_are_an_error() -> None:
    """A norm must not be judged against another layer's history."""
    (found,) = norms(1.0)
    with pytest.raises(ValueError, match="zip"):
        feed(GradientRule(MonitorConfig()), [replace(found, norms=(1.0,))])


def test_the_thresholds_are_the_configs() -> None:
    """`sigma`, `alarm_min_decades`, `alarm_confirmations` and `alarm_decades_at_once` are used."""
    mild = (*NOISY, 10**2.4, 10**2.4)
    assert diagnoses(said(*mild, config=MonitorConfig(sigma=2.0))) != []
    for slight in (0.5, 2.0):
        found = said(*STEADY, slight, slight, config=MonitorConfig(alarm_min_decades=0.3))
        assert diagnoses(found) != []
    four = MonitorConfig(alarm_confirmations=4)
    assert diagnoses(said(*STEADY, *[0.01] * 9, config=four)) == [(WARMUP + 3, "vanishing")]
    soon = MonitorConfig(alarm_decades_at_once=2.0)
    assert diagnoses(said(*STEADY, 0.01, config=soon)) == [(WARMUP, "vanishing")]


@pytest.mark.parametrize(
    ("value", "checks"), [(1e-4, 1), (1.1e-4, 2), (1e4, 1), (9e3, 2), (1e-300, 1), (1e300, 1)]
)
def test_four_decades_alarm_at_once(value: float, checks: int) -> None:
    """From 4.0 decades on one check is enough; below it two must agree."""
    events = said(*STEADY, *[value] * checks)
    assert [step for step, _ in diagnoses(events)] == [WARMUP + checks - 1]
    assert len(events) == 1
    if checks > 1:
        assert said(*STEADY, value) == []


@pytest.mark.parametrize(
    "interruption",
    [1.0, 100.0, 0.5],
)
def test_confirmations_must_be_consecutive(interruption: float) -> None:
    """A normal check, or one off the other way, starts the count again."""
    assert diagnoses(said(*STEADY, 0.01, interruption, 0.01)) == []
    assert diagnoses(said(*STEADY, 0.01, interruption, 0.01, 0.01)) == [
        (WARMUP + 3, "vanishing"),
    ]


def test_an_open_episode_interrupts_confirmations_of_another() -> None:
    """Two vanishing checks with an exploding one between them do not agree, open alarm or not."""
    events = said(*STEADY, 100.0, 100.0, 0.01, 100.0, 0.01)
    assert diagnoses(events) == [(WARMUP + 1, "exploding")]


def test_an_alarm_carries_the_numbers() -> None:
    """Value, baseline, distance, stage and what the number alone does not say."""
    (alarm,) = said(*[100.0] * WARMUP, 1e-3)
    assert alarm == Alarm(
        step=WARMUP,
        layer="head",
        diagnosis=Diagnosis.VANISHING,
        value=1e-3,
        normal=100.0,
        sigma=math.inf,
        stage=Stage.UNSCALED,
        detail="5.0 decades off",
    )
    (noisy,) = said(*NOISY, 10.0**5.5)
    assert isinstance(noisy, Alarm)
    assert (noisy.normal, noisy.sigma) == (pytest.approx(1.0), pytest.approx(5.5))
    assert noisy.detail == "5.5 decades off"


@pytest.mark.parametrize(
    ("norm", "detail"),
    [(0.0, "the gradient is exactly zero"), (None, "the parameters have no .grad")],
)
def test_exactly_zero_alarms_at_once(norm: float | None, detail: str) -> None:
    """Zero is infinitely many decades off; the detail tells it from a missing `.grad`."""
    (alarm,) = said(*STEADY, norm)
    assert isinstance(alarm, Alarm)
    assert (alarm.step, alarm.diagnosis) == (WARMUP, Diagnosis.NO_GRADIENT)
    assert (alarm.value, alarm.normal, alarm.sigma) == (0.0, 1.0, math.inf)
    assert alarm.detail == detail


def test_a_layer_that_stays_at_zero_alarms_once() -> None:
    """One alarm for the whole episode, whether zero or missing."""
    assert diagnoses(said(*STEADY, *[0.0, None] * 20)) == [(WARMUP, "no_gradient")]


def test_a_rare_branch_never_alarms() -> None:
    """A layer without a gradient in 9 of 10 checks is normal, from the first check on."""
    assert said(*[*[0.0] * 9, 1.0] * 30) == []
    assert said(*[*[None] * 9, 1.0] * 30) == []


@pytest.mark.parametrize("gap", [1, 2, 9])
def test_a_rare_branch_alarms_after_three_times_its_longest_gap(gap: int) -> None:
    """Not one check earlier."""
    before = [*[0.0] * gap, 1.0] * 10
    assert said(*before, *[0.0] * (3 * gap - 1)) == []
    events = said(*before, *[0.0] * (3 * gap + 5))
    assert diagnoses(events) == [(len(before) + 3 * gap - 1, "no_gradient")]


def test_confirmations_hold_for_rare_branches_too() -> None:
    """With a gap of one, `alarm_confirmations` may ask for more than three zeros."""
    before = [0.0, 1.0] * 10
    config = MonitorConfig(alarm_confirmations=5)
    events = said(*before, *[0.0] * 9, config=config)
    assert diagnoses(events) == [(len(before) + 4, "no_gradient")]


def test_a_short_gap_that_alarmed_is_how_the_layer_works() -> None:
    """After three zeros that were reported, nine are needed for the next report."""
    before = (*STEADY, 0.0, 0.0, 0.0, 1.0)
    assert diagnoses(said(*before, *[0.0] * 8)) == [(WARMUP, "no_gradient")]
    again = (len(before) + 8, "no_gradient")
    assert diagnoses(said(*before, *[0.0] * 9)) == [(WARMUP, "no_gradient"), again]


def test_a_long_gap_that_alarmed_is_a_fault_and_not_learnt() -> None:
    """Longer than three warm-ups; the next zero is then reported at once."""
    short, long = [0.0] * (3 * WARMUP), [0.0] * (3 * WARMUP + 1)
    assert diagnoses(said(*STEADY, *short, 1.0, 0.0)) == [(WARMUP, "no_gradient")]
    assert diagnoses(said(*STEADY, *long, 1.0, 0.0)) == [
        (WARMUP, "no_gradient"),
        (WARMUP + len(long) + 1, "no_gradient"),
    ]


@pytest.mark.parametrize("finite", [1, WARMUP - 1])
def test_a_layer_that_dies_in_its_warm_up_alarms_after_three_warm_ups(finite: int) -> None:
    """Once it had a gradient; a layer that comes back ends the episode, baseline or not."""
    before = [1.0] * finite
    assert said(*before, *[0.0] * (3 * WARMUP - 1), 1.0) == []
    events = said(*before, *[0.0] * (3 * WARMUP + 5), 1.0)
    assert [(event.kind, event.step) for event in events] == [
        ("alarm", finite + 3 * WARMUP - 1),
        ("alarm_cleared", finite + 3 * WARMUP + 5),
    ]
    assert said(*[0.0] * 100) == said(*[None] * 100) == []


def test_a_rare_branch_in_its_warm_up_is_given_its_own_gap_too() -> None:
    """Three times its longest gap, if that is more than three warm-ups."""
    before = [*[0.0] * 20, 1.0] * 3
    assert said(*before, *[0.0] * 59) == []
    assert diagnoses(said(*before, *[0.0] * 60)) == [(len(before) + 59, "no_gradient")]


def with_losses(*pairs: tuple[float | None, float | None]) -> list[Event]:
    """Return what the rule says of a layer with these norms and losses after a steady start."""
    found = [(1.0, 1.0)] * WARMUP + list(pairs)
    return feed(
        GradientRule(MonitorConfig()),
        [
            measurement(step, {"well": 1.0, "head": norm}, loss=loss)
            for step, (norm, loss) in enumerate(found)
        ],
    )


@pytest.mark.parametrize("loss", [1e-5, 1e-300, 0.0])
def test_a_gradient_may_fall_with_its_loss(loss: float) -> None:
    """As many decades as the loss is below its own baseline, and all of them at zero loss."""
    assert with_losses((1e-5, loss), (1e-4, loss)) == []
    assert with_losses((1e-5, 1.0)) != []


def test_a_gradient_that_falls_further_than_its_loss_vanishes() -> None:
    """What is left counts: 4 decades alarm at once, 1 after two checks; all are in the detail."""
    (at_once,) = with_losses((1e-7, 1e-3))
    assert isinstance(at_once, Alarm)
    assert (at_once.step, at_once.diagnosis) == (WARMUP, Diagnosis.VANISHING)
    assert at_once.detail == "7.0 decades off"
    assert with_losses((1e-6, 1e-3)) == []
    assert [event.step for event in with_losses((1e-6, 1e-3), (1e-6, 1e-3))] == [WARMUP + 1]
    # The loss baseline has taken in the first low loss, a ninth of its way down.
    assert with_losses((1e-3, 1e-3), (10**-3.5, 1e-3)) == []


@pytest.mark.parametrize("loss", [1e3, 1.0, None, math.nan, math.inf, -1e-9])
def test_only_a_loss_that_fell_excuses_a_gradient(loss: float | None) -> None:
    """Not one that rose, stayed, is missing, or has no logarithm."""
    assert diagnoses(with_losses((1e-4, loss))) == [(WARMUP, "vanishing")]


def test_a_fallen_loss_excuses_nothing_else() -> None:
    """Neither a gradient that grows nor one that is exactly zero."""
    assert diagnoses(with_losses((1e4, 1e-9))) == [(WARMUP, "exploding")]
    assert diagnoses(with_losses((0.0, 1e-9))) == [(WARMUP, "no_gradient")]
    assert diagnoses(with_losses((None, 0.0))) == [(WARMUP, "no_gradient")]


def test_a_loss_has_its_own_warm_up() -> None:
    """A loss given only now has no baseline to have fallen from."""
    stream = [measurement(i, {"well": 1.0, "head": 1.0}, loss=None) for i in range(WARMUP)]
    stream.append(measurement(WARMUP, {"well": 1.0, "head": 1e-4}, loss=1e-5))
    assert diagnoses(feed(GradientRule(MonitorConfig()), stream)) == [(WARMUP, "vanishing")]
    late = [measurement(i, {"well": 1.0, "head": 1.0}, loss=1.0) for i in range(WARMUP - 1)]
    late.append(measurement(WARMUP, {"well": 1.0, "head": 1.0}, loss=None))
    late.append(measurement(WARMUP + 1, {"well": 1.0, "head": 1e-4}, loss=1e-5))
    assert diagnoses(feed(GradientRule(MonitorConfig()), late)) == [(WARMUP + 1, "vanishing")]


def test_zeros_do_not_confirm_other_alarms() -> None:
    """A zero within the usual gap starts the count of confirmations again."""
    before = [0.0, 1.0] * 10
    assert said(*before, 0.01, 0.0, 0.01) == []
    assert diagnoses(said(*before, 0.01, 0.0, 0.01, 0.01)) == [(len(before) + 3, "vanishing")]


def test_an_open_episode_stays_out_of_the_baseline() -> None:
    """However long it lasts, it does not become the new normal."""
    events = said(*NOISY, *[1e-6] * 200, 1.0, 1e-6)
    opened, cleared, again = events
    assert isinstance(opened, Alarm)
    assert isinstance(again, Alarm)
    assert cleared == AlarmCleared(
        step=WARMUP + 200,
        layer="head",
        diagnosis=Diagnosis.VANISHING,
        value=1.0,
        normal=opened.normal,
        since_step=WARMUP,
    )
    assert (opened.normal, opened.sigma) == (pytest.approx(1.0), pytest.approx(6.0))
    assert again.normal == pytest.approx(1.0)
    # Only the 1.0 in between has entered, and narrowed the spread: 6 over the root of 8/9.
    assert again.sigma == pytest.approx(6.0 / math.sqrt(8.0 / 9.0))


def test_a_suspicious_value_that_is_not_confirmed_stays_out_too() -> None:
    """A single outlier per nine checks never widens the spread until nothing alarms."""
    events = said(*STEADY, *[*[1.0] * 8, 0.01] * 20, 0.01)
    (alarm,) = events
    assert isinstance(alarm, Alarm)
    assert (alarm.normal, alarm.sigma) == (1.0, math.inf)


def test_normal_values_move_the_baseline() -> None:
    """A slow drift over several decades is training, not an alarm."""
    drift = [10.0 ** (-0.02 * i) for i in range(200)]
    assert said(*STEADY, *drift) == []


def test_a_layer_is_cleared_once() -> None:
    """One alarm, one clearing, then silence."""
    events = said(*STEADY, 0.01, 0.01, *[1.0] * 30)
    assert [event.kind for event in events] == ["alarm", "alarm_cleared"]
    assert [event.step for event in events] == [WARMUP + 1, WARMUP + 2]


@pytest.mark.parametrize(
    ("values", "first", "then"),
    [
        ((1e6, 1e-6), "exploding", "vanishing"),
        ((1e-6, 0.0), "vanishing", "no_gradient"),
        ((None, 1e6), "no_gradient", "exploding"),
    ],
)
def test_another_diagnosis_closes_the_old_episode_first(
    values: tuple[float | None, ...], first: str, then: str
) -> None:
    """At the same check: `alarm_cleared` of the old one, then the new alarm."""
    events = said(*STEADY, *values)
    assert [(event.kind, event.step) for event in events] == [
        ("alarm", WARMUP),
        ("alarm_cleared", WARMUP + 1),
        ("alarm", WARMUP + 1),
    ]
    assert [getattr(event, "diagnosis", None) for event in events] == [first, first, then]
    cleared = events[1]
    assert isinstance(cleared, AlarmCleared)
    assert cleared.value == (values[1] or 0.0)


@given(st.lists(NORMS, max_size=WARMUP))
def test_the_warm_up_never_alarms(values: list[float | None]) -> None:
    """The first eight checks of a layer make its baseline, whatever they hold."""
    assert said(*values) == []


def test_the_warm_up_is_as_long_as_configured() -> None:
    """The first value that can alarm is the one after `warmup` finite norms."""
    for warmup in (2, 3, 11):
        config = MonitorConfig(warmup=warmup)
        events = said(*[1.0] * warmup, 0.0, config=config)
        assert diagnoses(events) == [(warmup, "no_gradient")]
        assert said(*[1.0] * (warmup - 1), 0.0, config=config) == []


def test_a_check_without_any_gradient_says_nothing_of_single_layers() -> None:
    """A loop that calls `step()` after `zero_grad()` is no model full of dead layers."""
    rule = GradientRule(MonitorConfig())
    assert feed(rule, norms(*STEADY)) == []
    blind = [measurement(WARMUP + i, {"well": None, "head": 0.0}) for i in range(50)]
    assert feed(rule, blind) == []


def test_layers_are_judged_apart_and_in_backward_order() -> None:
    """Alarms of one check come in the order of the measurement, one per layer."""
    rule = GradientRule(MonitorConfig())
    names = ("head", "body", "stem")
    warm = [measurement(i, dict.fromkeys(names, 1.0)) for i in range(WARMUP)]
    broken = measurement(WARMUP, {"head": 0.0, "body": 1.0, "stem": 1e6})
    turned = measurement(WARMUP + 1, {"stem": 1.0, "body": None, "head": 1.0})
    assert feed(rule, warm) == []
    assert [(e.layer, e.diagnosis) for e in feed(rule, [broken]) if isinstance(e, Alarm)] == [
        ("head", "no_gradient"),
        ("stem", "exploding"),
    ]
    found = [(event.kind, getattr(event, "layer", "")) for event in feed(rule, [turned])]
    assert found == [("alarm_cleared", "stem"), ("alarm", "body"), ("alarm_cleared", "head")]


def test_a_layer_that_appears_later_has_its_own_warm_up() -> None:
    """A layer unfrozen in the middle of a run starts its own baseline."""
    rule = GradientRule(MonitorConfig())
    assert feed(rule, norms(*STEADY)) == []
    late = [measurement(WARMUP + i, {"well": 1.0, "late": 5.0}) for i in range(WARMUP)]
    assert feed(rule, late) == []
    (alarm,) = feed(rule, [measurement(99, {"well": 1.0, "late": None})])
    assert isinstance(alarm, Alarm)
    assert (alarm.layer, alarm.normal) == ("late", pytest.approx(5.0))


@given(st.lists(NORMS, max_size=40))
def test_alarms_and_clearings_alternate(values: list[float | None]) -> None:
    """Whatever happens, an episode is opened once and closed once before the next is opened."""
    events = said(*STEADY, *values)
    kinds = [event.kind for event in events]
    assert kinds[:1] in ([], ["alarm"])
    assert all(a != b for a, b in pairwise(kinds))


def test_norms_at_the_edges_of_the_range_are_judged() -> None:
    """Subnormal norms and the largest ones have logarithms like any other."""
    events = said(*[5e-324] * WARMUP, 1e-300, *[5e-324] * 3, 1.7e308)
    assert [event.kind for event in events] == ["alarm", "alarm_cleared", "alarm"]
    (alarm,) = said(*[sys.float_info.max] * WARMUP, 1.0)
    assert isinstance(alarm, Alarm)
    assert alarm.diagnosis is Diagnosis.VANISHING
    assert alarm.normal == math.inf  # ten to the rounded logarithm is out of range, and no error
