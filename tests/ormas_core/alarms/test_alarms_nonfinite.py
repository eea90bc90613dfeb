"""nonfinite_loss, nonfinite_gradient, and how a loss scaler's overflows differ from them."""

import math
from dataclasses import replace

import pytest
from alarm_streams import LAYERS, feed, losses, overflow

from ormas_core.alarms.coverage import CoverageRule
from ormas_core.alarms.nonfinite import NonfiniteRule
from ormas_core.config import MonitorConfig
from ormas_core.events import (
    Event,
    Measurement,
    NoGradients,
    NonfiniteGradient,
    NonfiniteLoss,
    NotLearning,
    SkippedStep,
)
from ormas_core.terms import NonfiniteCount
from ormas_core.testing import measurement


def said(*measurements: Measurement) -> list[Event]:
    """Return what the rule says."""
    return feed(NonfiniteRule(MonitorConfig()), measurements)


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_a_nonfinite_loss_is_said_once_per_episode(value: float) -> None:
    """A finite loss ends the episode; a check without a loss does not."""
    events = said(*losses(1.0, value, value, None, value, 1.0, value))
    assert events == [NonfiniteLoss(step=1, value=value), NonfiniteLoss(step=6, value=value)]


def test_a_nan_loss_is_said_at_the_first_check_too() -> None:
    """There is no warm-up: NaN is never normal."""
    (event,) = said(*losses(math.nan, math.inf))
    assert isinstance(event, NonfiniteLoss)
    assert event.step == 0
    assert math.isnan(event.value)


def test_nonfinite_gradients_name_the_first_layer_and_all_of_them() -> None:
    """The first affected layer in backward order is `layer`; the counts are all kept."""
    (event,) = said(overflow(3, ["body", "stem"], loss=0.5))
    assert event == NonfiniteGradient(
        step=3,
        layer="body",
        layers=(
            NonfiniteCount(layer="body", nan=1, inf=2),
            NonfiniteCount(layer="stem", nan=1, inf=2),
        ),
        after=None,
        before=None,
        output_finite=None,
        loss=0.5,
    )


@pytest.mark.parametrize(
    ("outputs", "after", "before", "own"),
    [
        ([("head", True), ("body", True), ("stem", False)], "body", "stem", True),
        ([("head", True), ("body", False), ("stem", False)], "head", "body", False),
        ([("head", False), ("body", False)], None, "head", False),
        ([("head", True), ("act", False), ("body", False)], "head", "act", False),
        ([("head", True), ("body", True)], "body", None, True),
        ([("head", False), ("act", True), ("body", True)], None, "head", True),
        ([("head", True), ("act", False)], "head", "act", None),
        ([], None, None, None),
    ],
)
def test_the_turn_from_finite_to_nonfinite_is_located(
    outputs: list[tuple[str, bool]], after: str | None, before: str | None, own: bool | None
) -> None:
    """Going backward: the last module before the first non-finite output, and that one."""
    (event,) = said(overflow(0, ["body"], outputs=outputs))
    assert isinstance(event, NonfiniteGradient)
    assert (event.after, event.before, event.output_finite) == (after, before, own)


def test_nonfinite_gradients_are_said_again_when_the_first_layer_changes() -> None:
    """More layers behind the same first one are the same episode; a clean check ends it."""
    stream = [["body"], ["body", "stem"], ["head", "body"], ["body"], [], ["body"], ["body"]]
    events = said(*(overflow(step, bad) for step, bad in enumerate(stream)))
    assert [
        (event.step, event.layer) for event in events if isinstance(event, NonfiniteGradient)
    ] == [
        (0, "body"),
        (2, "head"),
        (3, "body"),
        (5, "body"),
    ]
    assert len(events) == 4


def test_loss_and_gradients_are_told_together_loss_first() -> None:
    """A NaN loss makes NaN gradients: both are said at the same check."""
    events = said(overflow(0, LAYERS, loss=math.nan))
    assert [event.kind for event in events] == ["nonfinite_loss", "nonfinite_gradient"]


def test_a_scalers_overflow_is_a_skipped_step() -> None:
    """With a loss scale it is information, said at every sampled overflow with its count."""
    events = said(
        overflow(0, ["body"], scale=65536.0),
        overflow(0, ["head", "body"], scale=32768.0, skipped=1),
        overflow(0, scale=16384.0, skipped=2),
        overflow(1, ["body"], scale=16384.0),
    )
    assert events == [
        SkippedStep(step=0, layer="body", scale=65536.0, in_a_row=1),
        SkippedStep(step=0, layer="head", scale=32768.0, in_a_row=2),
        SkippedStep(step=1, layer="body", scale=16384.0, in_a_row=1),
    ]


def test_a_nonfinite_loss_is_critical_with_a_scaler_too() -> None:
    """The scaler skips updates; it does not make a NaN loss normal."""
    events = said(overflow(0, ["body"], scale=65536.0, loss=math.nan))
    assert [event.kind for event in events] == ["nonfinite_loss", "skipped_step"]


def test_25_skipped_updates_in_a_row_are_not_learning() -> None:
    """Said once per stretch, with the scale before it, the layer, and the frozen step."""
    stream = [overflow(7, scale=65536.0)]
    stream += [
        overflow(7, ["body"], scale=65536.0 / 2.0**n, skipped=n) for n in (1, 10, 24, 25, 26, 60)
    ]
    (event,) = [event for event in said(*stream) if not isinstance(event, SkippedStep)]
    assert event == NotLearning(
        step=7,
        layer="body",
        skipped=25,
        scale_before=65536.0,
        scale=65536.0 / 2.0**25,
        since_step=7,
    )


def test_three_skipped_updates_are_a_scaler_at_work() -> None:
    """The control: a scaler that finds its scale after three updates is learning."""
    stream = [overflow(0, ["body"], scale=65536.0 / 2.0**n, skipped=n) for n in range(4)]
    stream += [overflow(n, scale=8192.0) for n in range(1, 40)]
    assert {event.kind for event in said(*stream)} == {"skipped_step"}


def test_an_update_between_two_stretches_makes_them_two() -> None:
    """After an applied update the count and the scale before start again."""
    stuck = overflow(4, ["body"], scale=1e-3, skipped=25)
    learns = overflow(5, scale=512.0)
    again = overflow(6, ["head"], scale=1e-5, skipped=30)
    events = [e for e in said(stuck, learns, again) if isinstance(e, NotLearning)]
    assert [(e.step, e.layer, e.skipped, e.scale_before) for e in events] == [
        (4, "body", 25, 1e-3),  # no scale was seen before
        (6, "head", 30, 512.0),
    ]


def test_not_learning_needs_no_sampled_overflow() -> None:
    """The scale alone shows that updates are skipped; the layer is then unknown."""
    (event,) = said(overflow(0, scale=1e-9, skipped=25))
    assert isinstance(event, NotLearning)
    assert event.layer is None


def test_the_limit_of_skipped_updates_is_the_configs() -> None:
    """`skipped_steps_limit` is used."""
    rule = NonfiniteRule(MonitorConfig(skipped_steps_limit=3))
    events = feed(rule, [overflow(0, scale=1.0, skipped=n) for n in (2, 3)])
    assert [event.kind for event in events] == ["not_learning"]


@pytest.mark.parametrize(
    ("norms", "absent"),
    [
        ({"head": None, "body": None}, True),
        ({"head": 0.0, "body": None}, False),
        ({"head": 0.0, "body": 0.0}, False),
        ({}, True),
    ],
)
def test_no_gradients_is_said_once(norms: dict[str, float | None], absent: bool) -> None:
    """At the first check without any; `absent` tells missing from exactly zero."""
    rule = CoverageRule(MonitorConfig())
    well = measurement(0, {"head": 1.0, "body": None})
    blind = [replace(measurement(0, norms), step=step) for step in (1, 2, 3)]
    assert feed(rule, [well, *blind, well]) == [
        NoGradients(step=1, absent=absent, layers=len(norms))
    ]


@pytest.mark.parametrize("norm", [1.0, 5e-324, math.inf, math.nan])
def test_any_gradient_that_is_not_zero_is_a_gradient(norm: float) -> None:
    """Non-finite ones as well: something was seen."""
    stream = [measurement(0, {"head": 0.0, "body": norm, "stem": None})]
    assert feed(CoverageRule(MonitorConfig()), stream) == []
