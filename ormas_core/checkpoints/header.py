"""The header of a safetensors file: what the safetensors library accepts, and nothing else.

Source: the safetensors format; `tests/ormas_core/checkpoints/test_header_oracle.py` compares both
over mutated headers. Where the library refuses a file as a whole, this says which tensor it is
about, and lists those that can be read all the same.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ormas_core.checkpoints.dtypes import LAYOUTS, bytes_of
from ormas_core.checkpoints.opened import Entry, ReadProblem

MAX_HEADER: Final = 100_000_000
"""Largest header that the library accepts, in bytes."""

MAX_PARTS: Final = 4_000_000
"""A header with more commas and brackets is not looked through; 100,000 tensors have a million.

The one limit that the library does not have: it would take gigabytes for such a file.
"""

_MOST: Final = 2**64 - 1
_DEPTH: Final = 127
_LENGTH: Final = 8
_DIGITS: Final = 20
_FIELDS: Final = ("dtype", "shape", "data_offsets")
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a header says.

    Attributes:
        entries: the tensors, in the order of their bytes; offsets are those in the file.
        metadata: the text beside them.
        problems: why the library would refuse the file; empty if it would not.
        notes: what it accepts and should not be there.
    """

    entries: tuple[Entry, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[ReadProblem, ...] = ()
    notes: tuple[ReadProblem, ...] = ()


class _HeaderError(ValueError):
    """The header cannot be read at all."""


def header_size(first: bytes, size: int) -> int | str:
    """Return how many bytes the header has, or why there can be none.

    Args:
        first: the first eight bytes of the file.
        size: bytes of the file.
    """
    if len(first) < _LENGTH:
        return f"the file has {size} bytes; a header starts with 8"
    length = int.from_bytes(first, "little")
    if length > MAX_HEADER:
        return f"its header would have {length:,} bytes, more than the {MAX_HEADER:,} allowed"
    if length + 8 > size:
        return f"its header would have {length:,} bytes, the file has {size:,}"
    return length


def parse_header(raw: bytes, size: int, file: str) -> Header:
    """Return what the bytes of a header say.

    Args:
        raw: the header, without its length.
        size: bytes of the whole file.
        file: the file's name, for entries and problems.
    """
    try:
        pairs = _load(raw)
        metadata, tensors, notes = _members(pairs, file)
    except (ValueError, RecursionError) as error:
        return Header(problems=(_problem(file, f"its header is not valid: {error!s:.300}"),))
    found = sorted(
        (_entry(name, info, file) for name, info in tensors.items()),
        key=lambda entry: (entry.offset, entry.offset + entry.size),
    )
    problems, entries = _lay_out(found, len(raw) + 8, size, file)
    return Header(entries=entries, metadata=metadata, problems=problems, notes=notes)


@dataclass(frozen=True, slots=True)
class _Info:
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object in order, with those that are repeated."""


def _load(raw: bytes) -> _Pairs:
    if sum(raw.count(mark) for mark in (b",", b"{", b"[")) > MAX_PARTS:
        raise _HeaderError(f"it has more than {MAX_PARTS:,} parts")
    text = raw.decode("utf-8")
    if text.startswith("\ufeff"):
        raise _HeaderError("it starts with a byte order mark")
    found = json.loads(
        text,
        object_pairs_hook=_Pairs,
        parse_constant=_refuse_constant,
        parse_int=_integer,
        parse_float=_number,
    )
    if not isinstance(found, _Pairs):
        raise _HeaderError("it is no JSON object")
    if "\\u" in text or text.count("{") + text.count("[") > 3 * len(found):
        _require_plain(found)
    return found


def _refuse_constant(name: str) -> None:
    raise _HeaderError(f"{name} is no JSON")


def _integer(text: str) -> int | float:
    if text == "-0" or len(text) > _DIGITS:
        return _number(text)
    value = int(text)
    return value if -(2**63) <= value <= _MOST else float(value)


def _number(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _HeaderError(f"the number {text:.40} is out of range")
    return value


def _require_plain(found: Any) -> None:
    """Refuse what Python's parser takes and the library's does not: deep nests, lone surrogates."""
    waiting = [(found, 1)]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, str):
            value.encode()
        elif isinstance(value, list):
            if depth > _DEPTH:
                raise _HeaderError(f"it is nested more than {_DEPTH} deep")
            parts = (part for pair in value for part in pair) if type(value) is _Pairs else value
            waiting += [(part, depth + 1) for part in parts if isinstance(part, str | list)]


def _members(
    pairs: _Pairs, file: str
) -> tuple[Mapping[str, str], dict[str, _Info], tuple[ReadProblem, ...]]:
    metadata: Mapping[str, str] | None = None
    seen = False
    tensors: dict[str, _Info] = {}
    notes = []
    for name, value in pairs:
        if name == "__metadata__":
            if seen:
                raise _HeaderError("it has two members __metadata__")
            seen, metadata = True, _metadata(value)
            continue
        if name in tensors:
            text = f"the tensor {name!r} is named twice; loaders take the second"
            notes.append(_problem(file, text))
        tensors[name] = _info(name, value)
    return metadata or {}, tensors, tuple(notes)


def _metadata(value: Any) -> Mapping[str, str] | None:
    if value is None:
        return None
    if type(value) is not _Pairs or not all(isinstance(text, str) for _, text in value):
        raise _HeaderError("__metadata__ must map text to text")
    return dict(value)


def _info(name: str, value: Any) -> _Info:
    if type(value) is _Pairs:
        members: dict[str, Any] = {}
        for key, part in value:
            if key in members and key in _FIELDS:
                raise _HeaderError(f"tensor {name!r:.200} has two members {key}")
            members[key] = part
        parts: list[Any] = [members.get(key) for key in _FIELDS]
    elif isinstance(value, list) and len(value) == len(_FIELDS):
        parts = value
    else:
        raise _HeaderError(f"member {name!r:.200} describes no tensor")
    dtype: Any = parts[0]
    shape: Any = parts[1]
    offsets: Any = parts[2]
    if type(dtype) is _Pairs and len(dtype) == 1 and dtype[0][1] is None:
        dtype = dtype[0][0]
    if not isinstance(dtype, str) or dtype not in LAYOUTS:
        raise _HeaderError(f"tensor {name!r:.200} has the unknown dtype {dtype!r:.60}")
    if not _sizes(shape):
        raise _HeaderError(f"tensor {name!r:.200} has no proper shape: {shape!r:.80}")
    if not _sizes(offsets) or len(offsets) != len(("start", "end")):
        raise _HeaderError(f"tensor {name!r:.200} has no proper data_offsets: {offsets!r:.80}")
    return _Info(dtype, tuple(shape), offsets[0], offsets[1])


def _sizes(value: Any) -> bool:
    return type(value) is list and all(type(n) is int and n >= 0 for n in value)


def _entry(name: str, info: _Info, file: str) -> Entry:
    return Entry(
        name=name,
        dtype=info.dtype,
        shape=info.shape,
        file=file,
        offset=info.start,
        size=info.end - info.start,
    )


def _lay_out(
    entries: list[Entry], data: int, size: int, file: str
) -> tuple[tuple[ReadProblem, ...], tuple[Entry, ...]]:
    """Check that the byte ranges follow each other, fit their shapes and fill the file."""
    faults: list[str] = []
    out = []
    at = 0
    for entry in entries:
        fault = _fault(entry, at)
        at = max(at, entry.offset + entry.size)
        beyond = data + entry.offset + entry.size > size
        missing = fault if fault and not fault.startswith("gap") else ""
        if beyond:
            missing = missing or (
                f"its bytes {entry.offset:,} to {entry.offset + entry.size:,} of the data are "
                "beyond the end of the file"
            )
        if fault:
            faults.append(f"tensor {entry.name!r:.200}: {fault}")
        out.append(_moved(entry, data, missing))
    problems = [_problem(file, _listed(faults))] if faults else []
    if data + at > size:
        problems.insert(0, _truncated(out, data + at, size, file))
    elif data + at < size:
        extra = f"{size - data - at:,} bytes follow the last tensor"
        problems.append(_problem(file, extra))
    return tuple(problems), tuple(out)


def _moved(entry: Entry, data: int, missing: str) -> Entry:
    return Entry(
        name=entry.name,
        dtype=entry.dtype,
        shape=entry.shape,
        file=entry.file,
        offset=entry.offset + data,
        size=max(entry.size, 0),
        missing=missing,
    )


def _fault(entry: Entry, at: int) -> str:
    elements = 1
    for length in entry.shape:
        elements *= length
        if elements > _MOST:
            return f"its shape {list(entry.shape)!s:.80} is too large"
    bits = elements * LAYOUTS[entry.dtype].bits
    if bits > _MOST:
        return f"its shape {list(entry.shape)!s:.80} is too large"
    if bits % 8:
        return f"its shape {list(entry.shape)!s:.80} of {entry.dtype} does not fill whole bytes"
    if entry.size != bytes_of(entry.dtype, elements):
        return (
            f"its shape {list(entry.shape)!s:.80} of {entry.dtype} needs {bits // 8:,} bytes, its "
            f"data_offsets give {entry.size:,}"
        )
    if entry.offset < at:
        return f"it begins at byte {entry.offset:,} of the data, within what another one takes"
    if entry.offset > at:
        return f"gap: it begins at byte {entry.offset:,} of the data, the one before ends at {at:,}"
    return ""


def _truncated(entries: list[Entry], needed: int, size: int, file: str) -> ReadProblem:
    cut = [entry for entry in entries if entry.missing]
    whole = len(entries) - len(cut)
    return ReadProblem(
        code="truncated",
        where=file,
        detail=(
            f"The header promises {needed:,} bytes, the file has {size:,}. The first incomplete "
            f"tensor is {cut[0].name!r:.200}; {whole} of {len(entries)} tensors are whole. "
            "Download or copy the file again."
        ),
    )


def _problem(file: str, what: str) -> ReadProblem:
    return ReadProblem(
        code="malformed",
        where=file,
        detail=f"{what[:1].upper()}{what[1:]}. Loaders refuse the file: save or download it again.",
    )


def _listed(faults: list[str]) -> str:
    more = len(faults) - _SHOWN
    return "; ".join(faults[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
