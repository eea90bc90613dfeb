"""Mutated headers of safetensors files, and what the library and this project say of them."""

import random
import re
from collections.abc import Iterator
from typing import Final

import safetensors
from checkpoint_builders import with_header

from ormas_core.checkpoints.header import header_size, parse_header

SEED: Final = 11
BASE: Final = (
    '{"__metadata__":{"format":"pt"},'
    '"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},'
    '"b":{"dtype":"F16","shape":[],"data_offsets":[16,18]},'
    '"c":{"dtype":"F4","shape":[4],"data_offsets":[18,20]},'
    '"e":{"dtype":"I64","shape":[0],"data_offsets":[20,20]}}'
)
DATA: Final = 20
TOKENS: Final = (
    "0", "1", "2", "-0", "-1", "1.0", "1e3", "1E400", "-1e400", "1e-400", "0.5", "00", "01", "+1",
    "18446744073709551615", "18446744073709551616", "9223372036854775808", "-9223372036854775809",
    "9" * 400, "null", "true", "nul", '"x"', '""', "[]", "{}", "[0]", "[1]", "[0,1]", "[1,0]",
    "[0,1,2]", '{"F32":null}', '{"U8":null}', '{"U8":[]}', '{"U8":{}}', '"U8"', '"F6_E2M3"',
    '"f32"',
    '["U8",[1],[0,1]]', '"\\ud800"', '"\\uD83D\\uDE00"', '"\\udc00\\ud800"', '"\\u0000"', '"\x01"',
    '"\x7f"', '"\ud800"', '"\\x"', '"\\/"', "\ufeff", "NaN", "Infinity", "-Infinity", "\t", " ",
    "\x0b", "\xa0", "[" * 126 + "]" * 126, "[" * 125 + "]" * 125, "[" * 124 + "]" * 124,
    "[" * 127 + "]" * 127, '{"q":' * 125 + "0" + "}" * 125, "/**/0", "[0,]", '{"q":0,}',
)  # fmt: skip
"""What is put where a value, a member or nothing was."""

_MEMBERS: Final = (
    '"q":{0},', '"q":0,', '"dtype":"F16",', '"shape":[2,2],', '"a":{{"dtype":{0}}},', "\n", "  ",
    '"__metadata__":{{}},', '"__metadata__":null,', '"__metadata__":{{"k":{0}}},',
    '"b":{{"dtype":"F16","shape":[],"data_offsets":[16,18]}},',
    '"z":{{"dtype":"U8","shape":[0],"data_offsets":[{0},20]}},',
)  # fmt: skip
_VALUES: Final = re.compile(r'"[^"]*"|\d+|\[[^\]]*\]|\{[^{}]*\}')
_STARTS: Final = re.compile(r"(?<=\{)")


def mutants(number: int) -> Iterator[bytes]:
    """Yield so many files, the same on every machine."""
    for at in range(number):
        rng = random.Random(SEED * 10**9 + at)
        text = BASE
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            text = _mutated(rng, text)
        size = rng.choice((DATA,) * 8 + (DATA - 1, DATA + 1, 0))
        raw = with_header(text, bytes(size))
        yield raw[: rng.randrange(len(raw))] if rng.random() < 0.03 else raw


def _mutated(rng: random.Random, text: str) -> str:
    kind, at = rng.randrange(8), rng.randrange(len(text) + 1)
    token = rng.choice(TOKENS)
    if kind < 3:  # where a member may be
        places = [found.start() for found in _STARTS.finditer(text)] or [0]
        place = rng.choice(places)
        return text[:place] + rng.choice(_MEMBERS).format(token) + text[place:]
    if kind < 6:  # for a value
        values = list(_VALUES.finditer(text))
        if not values:
            return text + token
        value = rng.choice(values)
        return text[: value.start()] + token + text[value.end() :]
    if kind == 6:
        return text[:at] + token + text[at:]
    return text[:at] + text[at + rng.randrange(8) :]


def accepted_by_library(raw: bytes) -> bool:
    """Whether the safetensors library reads a file."""
    try:
        safetensors.deserialize(raw)
    except safetensors.SafetensorError:
        return False
    return True


def accepted_here(raw: bytes) -> bool:
    """Whether this project finds nothing wrong with it."""
    size = header_size(raw[:8], len(raw))
    if isinstance(size, str):
        return False
    return not parse_header(raw[8 : 8 + size], len(raw), "file").problems
