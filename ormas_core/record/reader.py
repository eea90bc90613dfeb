"""Reads the files of a run folder, line by line."""

import heapq
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from ormas_core.errors import RecordFormatError
from ormas_core.events import Event, Measurement
from ormas_core.record import chain, codec
from ormas_core.record.files import open_inside
from ormas_core.record.lines import Lines
from ormas_core.record.strict import MAX_LINE, load_object

RECORD_FILE: Final = "record.jsonl"
METRICS_FILE: Final = "metrics.jsonl"
SEAL_FILE: Final = "record.dsse.json"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a record: its place in the chain and the event it holds."""

    seq: int
    prev: str
    hash: str
    event: Event


def read_record(folder: str | os.PathLike[str]) -> Iterator[Line]:
    """Yield the lines of `record.jsonl`. The chain is not checked: see `verify_record`.

    Raises:
        FileNotFoundError: there is no record in `folder`.
        RecordFormatError: a whole line cannot be read. A torn last line is left out.
    """
    yield from _read(Path(folder) / RECORD_FILE)


def read_metrics(folder: str | os.PathLike[str]) -> Iterator[Measurement]:
    """Yield the measurements of `metrics.jsonl`; errors as for `read_record`."""
    for line in _read(Path(folder) / METRICS_FILE):
        if not isinstance(line.event, Measurement):
            raise RecordFormatError(
                METRICS_FILE, f"row {line.seq}: {line.event.kind}, no measurement"
            )
        yield line.event


def read_run(folder: str | os.PathLike[str]) -> Iterator[Event]:
    """Yield the events of both files in the order of their times, as the sinks were given them.

    Raises: as `read_record`. Without `metrics.jsonl` there are no measurements.
    """
    metrics = read_metrics(folder) if (Path(folder) / METRICS_FILE).exists() else ()
    record = (line.event for line in read_record(folder))
    yield from heapq.merge(metrics, record, key=lambda event: event.time_ns)


def last_line(path: Path) -> Line | None:
    """Return the last line of a chained file, or None where it is absent or empty.

    Raises:
        RecordFormatError: the file does not end in a whole line of a length that is read, or is no
            regular file.
    """
    try:
        with open_regular(path) as file:
            raw = _tail(file)
    except FileNotFoundError:
        return None
    if not raw:
        return None
    if len(raw) > MAX_LINE + 1:
        raise RecordFormatError(str(path), f"{path} ends in a line of over {MAX_LINE} bytes")
    if not raw.endswith(b"\n"):
        raise RecordFormatError(str(path), f"{path} ends in a torn line and cannot be continued")
    return parse_line(raw[:-1])


def open_regular(path: Path) -> AbstractContextManager[BinaryIO]:
    """Open a file for reading, but no link, pipe or device; errors as for `open_inside`."""
    return open_inside(path.parent, path.name, steady=False)


def parse_line(raw: bytes) -> Line:
    """Return the line spelled by `raw` (without its newline).

    Raises:
        RecordFormatError: it is no sealed line, no JSON object, or its members do not fit.
    """
    members, prev, seq, claimed = members_of(raw)
    return Line(seq, prev, claimed, codec.decode(members))


def members_of(raw: bytes) -> tuple[dict[str, Any], str, int, str]:
    """Return the members of a line but its hash, what it follows, its number, and its hash.

    Raises:
        RecordFormatError: one of these is not there, or there is a second hash.
    """
    body, claimed = chain.unseal(raw)
    members = load_object(body)
    seq, prev = members.get("seq"), members.get("prev")
    if isinstance(seq, bool) or not isinstance(seq, int) or not isinstance(prev, str):
        raise RecordFormatError("seq", "seq must be an integer and prev a string")
    if "hash" in members:
        raise RecordFormatError("hash", "the line has two hash members")
    return members, prev, seq, claimed


def _read(path: Path) -> Iterator[Line]:
    with open_regular(path) as file:
        number = 1
        try:
            for raw in Lines(file):
                yield parse_line(raw)
                number += 1
        except RecordFormatError as error:
            raise RecordFormatError(str(path), f"{path}, line {number}: {error}") from error


def _tail(file: BinaryIO, block: int = 65536) -> bytes:
    """Return the last line of a binary file, with its newline if it has one.

    Of a line that is too long, the end: more than `MAX_LINE` bytes and a newline.
    """
    end = file.seek(0, os.SEEK_END)
    tail = b""
    while end > 0 and len(tail) <= MAX_LINE + 1:
        start = max(0, end - block)
        file.seek(start)
        tail = file.read(end - start) + tail
        end = start
        cut = tail.rfind(b"\n", 0, -1)
        if cut >= 0:
            return tail[cut + 1 :]
    return tail
