"""Hypothesis strategies for events, built from the type hints of the vocabulary."""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from ormas_core.config import MonitorConfig
from ormas_core.events import EVENT_TYPES, Event

SAFE = 2**53 - 1

INTEGERS = st.one_of(
    st.integers(-(2**127), 2**127),
    st.sampled_from([0, -1, SAFE, SAFE + 1, -SAFE, -SAFE - 1, 2**63, -(2**63)]),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.integers(0, 255).map(np.uint8),
)
FLOATS = st.one_of(
    st.floats(),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-320, 5e-324, 1e21, 1e20]),
    st.sampled_from([float(SAFE + 1), 1.7976931348623157e308, 0.1, 1.0, 123456789.0]),
    st.floats(width=32).map(np.float32),
    st.floats().map(np.float64),
    st.integers(-1000, 1000).map(np.int64),
)
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", "layer.0", "Schicht äöü", "層", "\U0001f525", '"\\\x00\u2028', "NaN"]),
    # numpy drops a NUL at the end of a text, and then takes it for another one.
    st.text(max_size=4).map(lambda text: np.str_(text.rstrip("\0"))),
)
BOOLS = st.one_of(st.booleans(), st.booleans().map(np.bool_))
CONFIGS = st.builds(
    MonitorConfig,
    layers=st.none() | st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=3),
    check_every=st.integers(1, 2**60),
    warmup=st.integers(2, 100),
    sigma=st.floats(0.0, 1e300),
    baseline_memory=st.integers(2, 100),
    alarm_min_decades=st.floats(0.0, 10.0),
    loss_spike_ratio=st.floats(1.0, 10.0),
)
_SCALARS = {bool: BOOLS, int: INTEGERS, float: FLOATS, str: TEXTS}


@cache
def values(tp: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values of the annotation `tp`, numpy scalars included."""
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if tp is MonitorConfig:
        return CONFIGS
    if dataclasses.is_dataclass(tp):
        hints = typing.get_type_hints(tp)
        return st.builds(
            tp, **{field.name: values(hints[field.name]) for field in dataclasses.fields(tp)}
        )
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(values, args))
    if origin is tuple:
        return st.lists(values(args[0]), max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=3)
    if tp is types.NoneType:
        return st.none()
    if issubclass(tp, Enum):
        return st.sampled_from(tp)
    return _SCALARS[tp]


def events(kind: str) -> st.SearchStrategy[Event]:
    """Return a strategy for events of one kind."""
    return values(EVENT_TYPES[kind])


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal, NaN and the sign of zero included."""
    if dataclasses.is_dataclass(left):
        return type(left) is type(right) and all(
            same(getattr(left, field.name), getattr(right, field.name))
            for field in dataclasses.fields(left)
        )
    if isinstance(left, tuple):
        return (
            isinstance(right, tuple)
            and len(left) == len(right)
            and all(same(a, b) for a, b in zip(left, right, strict=True))
        )
    if isinstance(left, Mapping):
        return set(left) == set(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, float) or isinstance(right, float):
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        return bool(left == right) and math.copysign(1.0, left) == math.copysign(1.0, right)
    return bool(left == right)


def has_declared_types(value: Any, tp: Any) -> bool:
    """Whether `value` is built of plain Python types, exactly as the annotation `tp` says."""
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if dataclasses.is_dataclass(tp):
        hints = typing.get_type_hints(tp)
        return type(value) is tp and all(
            has_declared_types(getattr(value, field.name), hints[field.name])
            for field in dataclasses.fields(tp)
        )
    if origin in (typing.Union, types.UnionType):
        return any(has_declared_types(value, arg) for arg in args)
    if origin is tuple:
        return type(value) is tuple and all(has_declared_types(item, args[0]) for item in value)
    if origin is Mapping:
        return type(value) is dict and all(
            has_declared_types(key, args[0]) and has_declared_types(item, args[1])
            for key, item in value.items()
        )
    return type(value) is tp
