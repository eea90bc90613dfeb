"""The vocabulary: frozen values, a closed union, one table."""

import dataclasses
import json
import pickle
import typing
from enum import StrEnum
from typing import Any

import event_samples
import pytest

from ormas_core import (
    across,
    certificate_events,
    claims,
    events,
    model_events,
    record_events,
    run_events,
    terms,
)
from ormas_core.events import EVENT_TYPES, Event
from ormas_core.terms import Severity
from ormas_core.testing import measurement

KINDS = sorted(EVENT_TYPES)


def _dataclasses(module: Any) -> set[type]:
    return {
        value
        for name, value in vars(module).items()
        if dataclasses.is_dataclass(value) and value.__module__ == module.__name__
        if not name.startswith("_")
    }


def test_the_union_and_the_table_are_the_same() -> None:
    """Every event class of the modules is in both, under its own kind."""
    modules = (events, across, certificate_events, model_events, record_events, run_events)
    found = set().union(*map(_dataclasses, modules))
    assert set(EVENT_TYPES.values()) == set(typing.get_args(Event)) == found
    assert {kind: cls.kind for kind, cls in EVENT_TYPES.items()} == {kind: kind for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_is_an_immutable_value(kind: str) -> None:
    """Frozen, without a dict to put things into, compared by value, and pickled whole."""
    event = event_samples.sample_events()[kind]
    assert event == event_samples.sample_events()[kind]
    for field in dataclasses.fields(event):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(event, field.name, None)
    assert not hasattr(event, "__dict__")
    assert pickle.loads(pickle.dumps(event)) == event  # noqa: S301 - its own bytes


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_is_built_by_keywords_only(kind: str) -> None:
    """A new field in the middle must not shift the others."""
    assert all(field.kw_only for field in dataclasses.fields(EVENT_TYPES[kind]))
    assert {"step", "time_ns"} <= {field.name for field in dataclasses.fields(EVENT_TYPES[kind])}
    assert isinstance(EVENT_TYPES[kind].severity, Severity)


def test_the_parts_of_events_are_immutable_values_too() -> None:
    """Mechanisms, counts and summaries are shared between events."""
    parts = _dataclasses(terms) | (_dataclasses(claims) - {claims.TraceStep, claims.Claim})
    assert {cls.__name__ for cls in parts} >= {"Mechanism", "NonfiniteCount", "ChannelSummary"}
    for cls in parts:
        part = event_samples.sample(cls)
        assert hash(part) == hash(event_samples.sample(cls))
        assert all(field.kw_only for field in dataclasses.fields(cls))
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, dataclasses.fields(cls)[0].name, None)


@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ({}, False),
        ({"a": None}, False),
        ({"a": 0.0, "b": None}, False),
        ({"a": -0.0}, False),
        ({"a": 0.0, "b": 5e-324}, True),
        ({"a": None, "b": float("nan")}, True),
        ({"a": float("inf")}, True),
    ],
)
def test_a_measurement_knows_whether_it_saw_a_gradient(
    norms: dict[str, float | None], expected: bool
) -> None:
    """Present and not exactly zero in any layer; NaN is not nothing."""
    assert measurement(0, norms).has_gradient is expected


def test_enums_are_their_text() -> None:
    """They print and compare as in the record, also inside JSON."""
    enums = {
        value
        for value in (*vars(terms).values(), *vars(claims).values())
        if isinstance(value, type) and issubclass(value, StrEnum) and value is not StrEnum
    }
    assert len(enums) == 12
    for enum in enums:
        for member in enum:
            assert str(member) == member.value == member.name.lower()
            assert json.loads(json.dumps(member)) == member.value
