"""Canonical JSON: byte for byte what the `rfc8785` package writes, which is the oracle here."""

import math
import struct
from typing import Any

import event_strategies
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from ormas_core.events import EVENT_TYPES, Event
from ormas_core.record import canonical, encode

SAFE = 2**53 - 1
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
BITS = (
    st.binary(min_size=8, max_size=8)
    .map(lambda raw: float(struct.unpack("<d", raw)[0]))
    .filter(math.isfinite)
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = (
    st.none() | st.booleans() | st.integers(-SAFE, SAFE) | NUMBERS | BITS | TEXT | st.just(-0.0)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(BITS) | st.dictionaries(TEXT, inner, max_size=4)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_any_value_is_spelled_as_the_package_spells_it(value: Any) -> None:
    """Numbers, escapes and the order of members, nested as they come."""
    assert canonical.dumps(value) == rfc8785.dumps(value)


def test_numbers_of_every_size() -> None:
    """Where ECMAScript changes between decimals and exponents, Python changes elsewhere."""
    for power in range(-330, 309):
        for digits in ("1", "-1.5", "9.007199254740993", "1.2345678901234567"):
            value = float(f"{digits}e{power}")
            if math.isfinite(value):
                assert canonical.dumps(value) == rfc8785.dumps(value)
                assert canonical.dumps([value, value]) == rfc8785.dumps([value, value])


@given(st.sampled_from(sorted(EVENT_TYPES)).flatmap(event_strategies.events))
def test_every_event_is_spelled_as_the_package_spells_it(event: Event) -> None:
    """What the codec makes of any event, whatever it holds."""
    members = encode(event)
    assert canonical.dumps(members) == rfc8785.dumps(members)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, [0.5, math.nan], SAFE + 1, -SAFE - 1, "\ud800"]
)
def test_what_json_cannot_spell_is_refused(value: Any) -> None:
    """The codec spells it as text; the serialiser never guesses."""
    with pytest.raises(ValueError):  # noqa: PT011 - the kind is what matters
        canonical.dumps(value)


def test_what_is_no_json_is_refused() -> None:
    """A set, a tuple, a numpy number: the codec returns plain values only."""
    for value in ({1}, (1,), b"x", [object()]):
        with pytest.raises(TypeError, match="no JSON value"):
            canonical.dumps(value)


def test_members_are_ordered_by_utf16() -> None:
    """A character beyond the basic plane comes before U+FB33, though its code point is larger."""
    members = {"\ufb33": 1, "\U0001f600": 2, "b": 3, "a": 4}
    assert canonical.dumps(members) == rfc8785.dumps(members)
    assert canonical.dumps(members).startswith(b'{"a":4,"b":3,"\xf0\x9f\x98\x80"')
