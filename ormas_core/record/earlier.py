"""What a record that is there already says of its run, for the writer that continues it."""

import os
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

from ormas_core.errors import RecordFormatError
from ormas_core.events import (
    Anchor,
    RunEnd,
    RunStart,
)
from ormas_core.record.files import open_inside
from ormas_core.record.lines import Lines
from ormas_core.record.reader import METRICS_FILE, RECORD_FILE, last_line, parse_line
from ormas_core.record_events import RunResumed

_FRAME: Final = tuple(
    f'"event":"{kind}"'.encode() for kind in ("run_start", "run_resumed", "anchor", "run_end")
)
_HASH: Final = slice(-66, -2)  # of a line that ends in `"hash":"..."}`
_BLOCK: Final = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """A record up to where it is continued; the fields are those of `RunResumed`.

    Attributes:
        run_id: the run.
        segment: number of the last segment.
    """

    run_id: str
    segment: int
    head: str
    lines: int
    metrics_rows: int
    reached: int
    ended: bool
    torn_record_bytes: int = 0
    torn_metrics_bytes: int = 0


def cut_torn_line(path: Path) -> int:
    """Cut off what follows the last newline of a file; return the number of bytes.

    A process that is killed, or a machine that loses power, leaves a line unfinished.
    """
    try:
        with open_inside(path.parent, path.name, steady=False) as file:
            size = os.fstat(file.fileno()).st_size
            keep = _after_last_newline(file.fileno(), size)
    except FileNotFoundError:
        return 0
    if keep < size:
        os.truncate(path, keep)
    return size - keep


def look_back(folder: Path) -> Earlier | None:
    """Return what the record in `folder` says; None where it has no run.

    Both files end in whole lines here: see `cut_torn_line`.

    Raises:
        RecordFormatError: a line that matters cannot be read, or the metrics are not its own.
    """
    path = folder / RECORD_FILE
    row = last_line(folder / METRICS_FILE)
    rows = row.seq + 1 if row else 0
    if not path.exists():
        _require_rows(folder, rows, None)
        return None
    start: RunStart | None = None
    pinned: Anchor | None = None
    reached, ended = 0, False
    with open_inside(folder, RECORD_FILE, steady=False) as file:
        for number, raw in enumerate(Lines(file), start=1):
            if not any(kind in raw for kind in _FRAME):
                continue
            try:
                event = parse_line(raw).event
            except RecordFormatError as error:
                raise RecordFormatError(
                    str(path), f"{path}, line {number}: {error}; this record cannot be continued"
                ) from error
            match event:
                case RunStart():
                    start, ended = event, False
                case RunResumed():
                    reached = max(reached, event.reached or 0)
                case RunEnd():
                    reached, ended = max(reached, event.steps), True
                case Anchor():
                    pinned = event
                    reached = max(reached, event.step + (not ended))
                case _:
                    pass
    last = last_line(path)
    _require_rows(folder, rows, None if start is None else pinned.metrics_rows if pinned else 0)
    if start is None or last is None:
        return None
    return Earlier(
        run_id=start.run_id,
        segment=start.segment,
        head=last.hash,
        lines=last.seq + 1,
        metrics_rows=rows,
        reached=max(reached, row.event.step + 1 if row else 0),
        ended=ended,
    )


def _require_rows(folder: Path, rows: int, pinned: int | None) -> None:
    """Refuse metrics that are not those of the record: none is lost, and none is taken over.

    Args:
        folder: the run folder.
        rows: rows of the metrics.
        pinned: those that the last anchor names, which were on the disk before it was; None where
            no run begins in the record.
    """
    if pinned is None and rows:
        what = f"{rows} rows, and no run begins in {RECORD_FILE}"
    elif pinned is not None and rows < pinned:
        what = f"{rows} rows, and an anchor of {RECORD_FILE} names {pinned}"
    else:
        return
    raise RecordFormatError(
        str(folder),
        f"{folder / METRICS_FILE} has {what}: these files do not belong together, and this record "
        "cannot be continued. Choose another folder with out=...",
    )


def resume(folder: Path) -> Earlier | None:
    """Make the record in `folder` ready to be continued and return what it says.

    Raises: as `look_back`.
    """
    torn = [cut_torn_line(folder / name) for name in (RECORD_FILE, METRICS_FILE)]
    found = look_back(folder)
    if found is None:
        return None
    return replace(found, torn_record_bytes=torn[0], torn_metrics_bytes=torn[1])


def hash_of_line(folder: Path, number: int) -> str | None:
    """Return the hash that line `number` of the record claims, from 1; None if there is none."""
    if number < 1:
        return None
    try:
        with open_inside(folder, RECORD_FILE, steady=False) as file:
            raw = next(islice(Lines(file), number - 1, number), None)
    except (OSError, RecordFormatError):
        return None
    return raw[_HASH].decode("ascii", "replace") if raw is not None else None


def _after_last_newline(descriptor: int, size: int) -> int:
    end = size
    while end > 0:
        start = max(0, end - _BLOCK)
        cut = os.pread(descriptor, end - start, start).rfind(b"\n")
        if cut >= 0:
            return start + cut + 1
        end = start
    return 0
