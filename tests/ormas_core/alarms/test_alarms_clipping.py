"""One layer that takes all that clipping leaves."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from alarm_streams import feed

from ormas_core.across import ClipStarvation
from ormas_core.alarms.clipping import ClippingRule
from ormas_core.config import MonitorConfig
from ormas_core.events import Measurement
from ormas_core.testing import check_rule, measurement


def clipped(step: int, norms: Mapping[str, float | None], clip_norm: float = 1.0) -> Measurement:
    """Return a measurement of a host that clips, as the collector would make it."""
    total = sum(norm**2 for norm in norms.values() if norm is not None) ** 0.5
    factor = min(1.0, clip_norm / (total + 1e-6))
    return replace(measurement(step, dict(norms)), clip_norm=clip_norm, clip_factor=factor)


WELL = {"head": 0.5, "body": 0.5, "stem": None}
BODY = {"head": 0.5, "body": 2000.0, "stem": None}
HEAD = {"head": 2000.0, "body": 0.5, "stem": None}


def test_the_layer_that_takes_the_norm_is_named_once_for_each_episode() -> None:
    """At one check; again when another layer takes it, and after a sound check."""
    stream = [WELL, BODY, BODY, HEAD, WELL, HEAD]
    events = check_rule(ClippingRule, [clipped(i, norms) for i, norms in enumerate(stream)])
    assert [(e.step, e.layer) for e in events if isinstance(e, ClipStarvation)] == [
        (1, "body"),
        (3, "head"),
        (5, "head"),
    ]
    first = events[0]
    assert isinstance(first, ClipStarvation)
    assert (first.value, first.clip_norm) == (2000.0, 1.0)
    assert first.factor == pytest.approx(1 / 2000.0, rel=1e-6)
    assert first.rest == pytest.approx(0.5 / 2000.0, rel=1e-6)


def test_layers_that_are_large_alike_starve_nobody() -> None:
    """However small the factor is, as with a loss that is a sum."""
    stream = [clipped(0, {"head": 1e6, "body": 2e6}), clipped(1, {"head": 1e30, "body": 1e29})]
    assert check_rule(ClippingRule, stream) == []


def test_a_mild_clipping_of_one_large_layer_is_nothing() -> None:
    """The layers differ by more than a hundred, and next to nothing is taken from the small one."""
    assert check_rule(ClippingRule, [clipped(0, {"head": 1e-4, "body": 2.0})]) == []


def test_nothing_is_said_where_the_factor_is_not_known_or_one_layer_is_all() -> None:
    """After clipping, with some layers watched only, or without any clipping; and of one layer."""
    unknown = replace(clipped(0, BODY), clip_factor=None)
    without = replace(clipped(0, BODY), clip_norm=None)
    assert check_rule(ClippingRule, [unknown, without, clipped(0, {"all": 1e9})]) == []


@pytest.mark.parametrize(("limit", "said"), [(0.0, 0), (1e-4, 0), (1e-3, 1), (1.0, 1)])
def test_the_threshold_is_a_setting(limit: float, said: int) -> None:
    """Both the factor and the rest must be at most that; zero switches the rule off."""
    rule = ClippingRule(MonitorConfig(clip_factor_min=limit))
    assert len(feed(rule, [clipped(0, BODY)])) == said
