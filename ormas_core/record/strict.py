"""Reads JSON from strangers: bounded in size, and strict where Python's parser is lenient."""

import json
import math
from typing import Any, Final

from ormas_core.errors import RecordFormatError

MAX_LINE: Final = 8 * 2**20
"""Bytes of the longest line that is read; the writer refuses to write a longer one."""

MAX_VALUES: Final = 400_000
"""Values of the richest object that is parsed: one costs Python up to 300 bytes of memory."""


def load_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object that `data` spells in UTF-8.

    Raises:
        RecordFormatError: it spells none, names a member twice, holds NaN, an infinity or half of a
            surrogate pair, or is too large or too deep to be parsed safely.
    """
    if len(data) > MAX_LINE:
        raise RecordFormatError("json", f"{len(data)} bytes, more than the {MAX_LINE} that fit")
    values = values_in(data)
    if values > MAX_VALUES:
        raise RecordFormatError("json", f"{values} values, more than the {MAX_VALUES} that fit")
    try:
        found = json.loads(
            data.decode(),
            object_pairs_hook=_no_duplicates,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
        if b"\\u" in data:
            json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise RecordFormatError("json", "not valid JSON: nested too deeply") from None
    except ValueError as error:
        raise RecordFormatError("json", f"not valid JSON: {error!s:.200}") from None
    if not isinstance(found, dict):
        raise RecordFormatError("json", "not a JSON object")
    return found


def values_in(data: bytes) -> int:
    """Return how many values JSON text spells, or more: what stands in a text counts too."""
    return sum(map(data.count, (b",", b"[", b"{")))


def _no_constant(name: str) -> float:
    raise ValueError(f"bare {name}")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is beyond the numbers")
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member name occurs twice")
    return members
