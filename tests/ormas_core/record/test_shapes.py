"""The patterns that stand for the codec: what they accept, the codec accepts."""

import re

import event_samples
import event_strategies
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ormas_core.events import EVENT_TYPES
from ormas_core.record import chain, encode
from ormas_core.record.reader import parse_line
from ormas_core.record.shapes import shapes

WITHOUT = {"run_start", "run_end", "certificate"}
"""Kinds without a pattern: their values have rules of their own, or, a proof, many parts."""


def line_of(event: object) -> bytes:
    return chain.seal({**encode(event), "seq": 3, "prev": "a" * 64})[0][:-1]  # type: ignore[arg-type]


def test_all_kinds_but_three_have_a_pattern() -> None:
    """The frame of a run is parsed; everything there is much of is matched."""
    assert {kind.decode() for kind in shapes()} == set(EVENT_TYPES) - WITHOUT


@pytest.mark.parametrize("kind", sorted(set(EVENT_TYPES) - WITHOUT))
def test_a_line_as_it_is_written_matches(kind: str) -> None:
    """With the link, the number and the hash as groups."""
    line = line_of(event_samples.sample_events()[kind])
    found = shapes()[kind.encode()].fullmatch(line)
    assert found is not None
    assert found.groups() == (b"a" * 64, b"3", line[-66:-2])


@settings(max_examples=500)
@given(st.sampled_from(sorted(set(EVENT_TYPES) - WITHOUT)), st.data())
def test_what_matches_is_an_event(kind: str, data: st.DataObject) -> None:
    """Any event's line, then any two bytes of it changed: a match is good JSON and decodes."""
    line = bytearray(line_of(data.draw(event_strategies.events(kind))))
    for _ in range(data.draw(st.integers(0, 2))):
        place = data.draw(st.integers(0, len(line) - 1))
        line[place] = data.draw(st.sampled_from(b'0123456789-+.eE"\\,:[]{}\x00\x1f\xff\xc3a \n'))
    for name, pattern in shapes().items():
        found = pattern.fullmatch(bytes(line))
        if found is None or not _is_utf8(bytes(line)):
            continue
        prev, _, claimed = found.groups()
        # Whoever uses the pattern compares these two with what must stand there.
        if prev == b"a" * 64 and re.fullmatch(b"[0-9a-f]{64}", claimed):
            assert parse_line(bytes(line)).event.kind == name.decode()


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize(
    "broken",
    [
        b'"step":03',
        b'"step":+3',
        b'"step":3.0',
        b'"step":"x"',
        b'"step":3,"step":3',
        b'"step": 3',
        b'"step":3,"zzz":1',
    ],
)
def test_a_value_in_another_spelling_does_not_match(broken: bytes) -> None:
    """It goes to the codec, which may still take it."""
    line = line_of(event_samples.sample_events()["loss_spike"])
    assert b'"step":3' in line
    assert shapes()[b"loss_spike"].fullmatch(line.replace(b'"step":3', broken)) is None
