"""Laws of every rule: saving and restoring, NaN blindness, order, and purity."""

import json
import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from alarm_streams import LAYERS, WARMUP, ThroughJson, feed, finite_steps, overflow, streams
from hypothesis import example, given
from hypothesis import strategies as st

from ormas_core.alarms import RULES, AlarmEngine
from ormas_core.config import MonitorConfig
from ormas_core.events import Measurement
from ormas_core.terms import Stage
from ormas_core.testing import check_rule, measurement

EVERYTHING = {**RULES, "engine": AlarmEngine}


def _eventful() -> list[Measurement]:
    """Return a stream in which every kind of episode opens, is open for a while, and closes."""
    warm = [measurement(i, dict.fromkeys(LAYERS, 1.0 + i / 100), loss=1.0) for i in range(WARMUP)]
    blind = [measurement(20, dict.fromkeys(LAYERS))]
    off = [
        measurement(30 + i, {"head": norm, "body": 0.0, "stem": norm}, loss=9.0)
        for i, norm in enumerate((0.01, 0.01, 50.0, 0.01, 50.0, 50.0, 0.0))
    ]
    well = [measurement(40 + i, dict.fromkeys(LAYERS, 1.0), loss=1.0) for i in range(2)]
    rare = [
        measurement(50 + i, {"head": norm, "body": 1.0, "stem": 1.0})
        for i, norm in enumerate((0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    ]
    nonfinite = [overflow(70 + i, ["body"], loss=math.nan) for i in range(2)]
    scaled = [overflow(80, ["head"] if n else [], scale=2.0**-n, skipped=n) for n in (0, 1, 25, 26)]
    reduced = [replace(m, loss_elements=4) for m in well]
    fitted = [measurement(90 + i, dict.fromkeys(LAYERS, 1e-4), loss=1e-5) for i in range(2)]
    return [*warm, *blind, *off, *well, *rare, *nonfinite, *scaled, *reduced, *reduced, *fitted]


@pytest.mark.parametrize("name", EVERYTHING)
@given(stream=streams())
@example(stream=_eventful())
def test_a_rule_restored_at_any_point_goes_on_alike(name: str, stream: list[Measurement]) -> None:
    """Saved after any number of checks, also through JSON text, a rule says what it would have."""
    plain = check_rule(EVERYTHING[name], stream)
    assert check_rule(partial(ThroughJson, EVERYTHING[name]), stream) == plain


def test_the_eventful_stream_has_every_kind_of_event() -> None:
    """The example above opens and closes everything, so the law above is not vacuous."""
    kinds = [event.kind for event in feed(AlarmEngine(MonitorConfig()), _eventful())]
    assert set(kinds) == {
        "alarm",
        "alarm_cleared",
        "loss_spike",
        "loss_recovered",
        "loss_reduced",
        "nonfinite_loss",
        "nonfinite_gradient",
        "skipped_step",
        "not_learning",
        "no_gradients",
    }


@pytest.mark.parametrize("name", EVERYTHING)
def test_a_state_is_a_copy(name: str) -> None:
    """A saved state does not move on with the rule, and loading leaves it alone."""
    rule: Any = EVERYTHING[name](MonitorConfig())
    stream = _eventful()
    feed(rule, stream[:12])
    state = rule.state_dict()
    frozen = json.dumps(state)
    feed(rule, stream[12:])
    restored: Any = EVERYTHING[name](MonitorConfig())
    restored.load_state_dict(state)
    feed(restored, stream[12:])
    assert json.dumps(state) == frozen


def _measured(step: int, part: tuple[Any, ...]) -> Measurement:
    (head, body), loss = part
    return measurement(step, {"well": 1.0, "head": head, "body": body}, loss=loss)


def _blinding(step: int, bad: tuple[bool, bool, bool]) -> Measurement:
    """Return a measurement of which nothing is finite but the layers marked so."""
    found = overflow(step, LAYERS, loss=math.nan if bad[0] else None)
    norms = (math.inf if bad[1] else math.nan, math.nan, math.inf if bad[2] else math.nan)
    return replace(found, layers=("well", "head", "body"), norms=norms)


@given(
    parts=st.lists(finite_steps(), max_size=12),
    holes=st.lists(
        st.tuples(st.integers(0, 20), st.tuples(st.booleans(), st.booleans(), st.booleans())),
        min_size=1,
        max_size=20,
    ),
)
def test_nan_checks_change_nothing_of_what_is_said_of_the_others(
    parts: list[tuple[Any, ...]], holes: list[tuple[int, tuple[bool, bool, bool]]]
) -> None:
    """However many all-NaN checks are put between finite ones, wherever: those read the same."""
    warm = [((1.0, 1.0), 1.0)] * WARMUP
    clean = [_measured(step, part) for step, part in enumerate([*warm, *parts])]
    mixed = list(clean)
    for place, bad in holes:
        mixed.insert(place, _blinding(-1, bad))
    engine = AlarmEngine(MonitorConfig())
    found = [event for event in feed(engine, mixed) if event.step >= 0]
    assert found == feed(AlarmEngine(MonitorConfig()), clean)


def test_the_events_of_one_check_come_in_the_order_of_the_rules() -> None:
    """Coverage, then non-finite values, then gradients in backward order, then the loss."""
    engine = AlarmEngine(MonitorConfig())
    warm = [measurement(i, dict.fromkeys(LAYERS, 1.0), loss=1.0) for i in range(WARMUP)]
    assert feed(engine, warm) == []
    broken = replace(overflow(WARMUP, ["stem"], loss=50.0), norms=(0.0, 1e6, math.nan))
    found = [(event.kind, getattr(event, "layer", None)) for event in engine.update(broken)]
    assert found == [
        ("nonfinite_gradient", "stem"),
        ("alarm", "head"),
        ("alarm", "body"),
        ("loss_spike", None),
    ]
    blind = engine.update(
        replace(broken, norms=(None, None, None), nonfinite=(), loss=math.inf, loss_elements=2)
    )
    assert [event.kind for event in blind] == ["no_gradients", "nonfinite_loss", "loss_reduced"]
    model, gradients = ["mode", "statistics"], ["nonfinite", "gradient", "slope", "clipping"]
    assert list(RULES) == ["coverage", *model, *gradients, "experts", "loss"]


@pytest.mark.parametrize("stage", Stage)
def test_every_stage_is_accepted_and_passed_on(stage: Stage) -> None:
    """An alarm states the stage its gradients were read at."""
    engine = AlarmEngine(MonitorConfig())
    stream = [replace(measurement(i, {"well": 1.0, "head": 1.0}), stage=stage) for i in range(8)]
    stream.append(replace(measurement(8, {"well": 1.0, "head": 0.0}), stage=stage))
    assert [getattr(event, "stage", None) for event in feed(engine, stream)] == [stage]


@given(stream=streams())
def test_rules_keep_nothing_between_runs(stream: list[Measurement]) -> None:
    """Two engines over the same measurements agree: nothing is shared but the config."""
    config = MonitorConfig()
    assert feed(AlarmEngine(config), stream) == feed(AlarmEngine(config), stream)
