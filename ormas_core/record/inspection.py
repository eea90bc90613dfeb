"""Reads both files of a run folder in step, and keeps what the checks need: no line is kept."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, TypedDict

from ormas_core.errors import RecordFormatError
from ormas_core.events import (
    EVENT_TYPES,
    Anchor,
    Event,
    Measurement,
    RunEnd,
    RunStart,
)
from ormas_core.record.files import open_inside
from ormas_core.record.models import MAX_FILES
from ormas_core.record.reader import METRICS_FILE, RECORD_FILE
from ormas_core.record.scan import Pause, Scan, scan_lines
from ormas_core.record.statement import MAX_MODELS, SealedModel, model_of
from ormas_core.record_events import CheckpointSaved, RecordGap, RunResumed
from ormas_core.run_events import SinkError
from ormas_core.terms import Status
from ormas_core.version import RECORD_SCHEMA

LOCK_FILE: Final = "record.lock"

Examiner = Callable[[Event], str | None]
"""Checks what an event claims; returns why the claim does not hold, or None."""

_ROW: Final = frozenset({b"measurement"})
_AFTER_THE_END: Final = (Anchor, SinkError, RecordGap, RunStart)
_LOOKED_AT: Final = frozenset(
    {b"run_start", b"run_resumed", b"run_end", b"anchor", b"record_gap", b"checkpoint_saved"}
)


class _Options(TypedDict):
    canonical: bool
    hashed: bool


@dataclass(slots=True)
class Inspection:
    """What one reading of a run folder found.

    Attributes:
        record: the lines of the record.
        metrics: the rows of the metrics.
        schema: format version of the first `run_start`; 0 without one.
        run_id: the run that it begins.
        anchors: good anchors so far.
        anchor: the last of them, and in `anchor_line` its line, from 1.
        status: of the `run_end` of the last segment; None where it has none.
        segments: how often a run starts.
        ended: whether the last segment has its `run_end`.
        closed: whether an anchor follows it.
        models: the models that the record names, the latest of each name.
        lost: events and measurements that the writer says are missing.
        metrics_failure: why the metrics are not those that the record pins.
        unexamined: claims that nobody could check.
        examined: claims that somebody did check.
        refuted: the first claim that does not hold.
        witnessed: the last line whose hash the witness has too.
        differs: the first head of the witness that is not in its place.
        going_on: whether a writer holds the folder.
        segment_at: lines before the last segment, and the hash of the last of them.
    """

    record: Scan = field(default_factory=lambda: Scan(RECORD_FILE))
    metrics: Scan = field(default_factory=lambda: Scan(METRICS_FILE))
    schema: int = 0
    run_id: str = ""
    status: Status | None = None
    segments: int = 0
    anchors: int = 0
    anchor: Anchor | None = None
    anchor_line: int = 0
    ended: bool = False
    closed: bool = False
    models: dict[str, SealedModel] = field(default_factory=dict)
    lost: int = 0
    metrics_failure: str = ""
    unexamined: int = 0
    examined: int = 0
    refuted: str = ""
    witnessed: int = 0
    differs: str = ""
    going_on: bool = False
    segment_at: tuple[int, str] = (0, "")


def inspect(
    folder: Path,
    *,
    examiners: Mapping[str, Examiner],
    claims: frozenset[str],
    heads: Mapping[int, str],
    canonical: bool = False,
    hashed: bool = False,
) -> Inspection:
    """Read a run folder once.

    Args:
        folder: the run folder.
        examiners: by kind of event, who checks its claims.
        claims: kinds whose claims somebody should check.
        heads: of a witness: number of lines -> hash of the last of them.
        canonical: whether lines are to be serialised again.
        hashed: whether both files are to be hashed as a whole.

    Raises:
        FileNotFoundError: there is no record.
        NotADirectoryError: `folder` is something else.
        RecordChangedError: a file was changed while it was being read.
    """
    found = Inspection(going_on=os.path.lexists(folder / LOCK_FILE))
    found.record.loud = True  # until the first line has been looked at
    looked_at = _LOOKED_AT | {kind.encode() for kind in claims | frozenset(examiners)}
    quiet = frozenset(kind.encode() for kind in EVENT_TYPES if kind != "measurement") - looked_at
    with ExitStack() as open_files:
        record = _opened(open_files, folder, found.record)
        rows = _Rows(found, iter(()))
        metrics = _opened(open_files, folder, found.metrics)
        options: _Options = {"canonical": canonical, "hashed": hashed}
        if metrics is not None:
            rows = _Rows(found, scan_lines(found.metrics, metrics, quiet=_ROW, **options))
        if record is not None:
            witness = _Witness(found, heads)
            for event in scan_lines(found.record, record, quiet=quiet, **options):
                if event is Pause.HERE:
                    witness.compare()
                else:
                    _take(found, rows, event)
                    _examine(found, event, examiners, claims)
                del event  # the next one is read while this name is bound, and each may be large
            witness.finish()
        rows.finish()
    return found


def _opened(open_files: ExitStack, folder: Path, scan: Scan) -> BinaryIO | None:
    try:
        return open_files.enter_context(open_inside(folder, scan.name))
    except (FileNotFoundError, NotADirectoryError):
        if scan.name == RECORD_FILE:
            raise
        scan.failure = f"{scan.name} is missing"
    except (RecordFormatError, OSError) as error:
        scan.failure = f"{error!s:.300}"
    return None


def _take(found: Inspection, rows: "_Rows", event: Event | None) -> None:
    """Follow the frame of the run, which says where each kind of event may stand."""
    record = found.record
    if event is None:
        return
    if record.lines == 0 and not isinstance(event, RunStart):
        record.note_misfit(f"the record begins with {event.kind}, not run_start")
    if found.ended and not isinstance(event, _AFTER_THE_END):
        record.note_misfit(f"a {event.kind} follows the end of the run")
    match event:
        case RunStart():
            _begin(found, event)
        case RunResumed():
            if (event.lines, event.head) != found.segment_at:
                record.refused = "it does not name the line it goes on from"
        case RunEnd():
            found.status, found.ended = event.status, True
        case CheckpointSaved():
            _note_model(found, event)
        case RecordGap():
            _note_gap(found, event)
        case Measurement():
            record.note_misfit("a measurement does not belong into this file")
        case Anchor():
            if (event.lines, event.head) != (record.lines, record.head.decode()):
                record.refused = "the anchor does not name the line before it"
                return
            rows.pin(event)
            found.anchors += 1
            found.anchor, found.anchor_line = event, record.lines + 1
            found.closed = found.ended
        case _:
            pass
    record.loud = found.ended


def _note_gap(found: Inspection, gap: RecordGap) -> None:
    """Count what a gap says is missing; no gap makes up for another one."""
    if min(gap.events, gap.measurements) < 0:
        found.record.note_misfit("a gap of less than nothing")
    else:
        found.lost += gap.events + gap.measurements


def _note_model(found: Inspection, event: CheckpointSaved) -> None:
    """Remember the latest model of each name, as far as there is room."""
    try:
        model = model_of(event.files)
    except RecordFormatError as error:
        found.record.note_misfit(f"{error!s:.300}")
        return
    found.models.pop(model.name, None)
    room = MAX_FILES - sum(len(other.files) for other in found.models.values())
    if len(model.files) <= room and len(found.models) < MAX_MODELS:
        found.models[model.name] = model
    else:
        found.record.note_misfit(f"it names more than {MAX_FILES} model files")


def _begin(found: Inspection, start: RunStart) -> None:
    if not found.segments:
        found.schema, found.run_id = start.schema, start.run_id
    found.segments += 1
    found.status, found.ended, found.closed = None, False, False
    found.segment_at = (found.record.lines, found.record.head.decode())
    if start.schema > RECORD_SCHEMA:
        found.record.note_misfit(
            f"format version {start.schema}; this program reads versions up to {RECORD_SCHEMA}"
        )


def _examine(
    found: Inspection,
    event: Event | None,
    examiners: Mapping[str, Examiner],
    claims: frozenset[str],
) -> None:
    if event is None or event.kind not in claims:
        return
    examiner = examiners.get(event.kind)
    if examiner is None:
        found.unexamined += 1
        return
    try:
        reason = examiner(event)
    except Exception as error:  # noqa: BLE001 - what a stranger wrote refutes itself, not the check
        reason = f"cannot be followed: {type(error).__name__}"
    found.examined += 1
    if reason is not None and not found.refuted:
        found.refuted = f"line {found.record.lines + 1}: {reason:.300}"


class _Rows:
    """The metrics, read as far as the record pins them."""

    def __init__(self, found: Inspection, lines: Iterator[Event | Pause | None]) -> None:
        self._found, self._scan, self._lines = found, found.metrics, lines

    def pin(self, anchor: Anchor) -> None:
        """Compare the rows with what an anchor says of them."""
        if self._found.metrics_failure:
            return
        self._read(anchor.metrics_rows)
        if self._scan.failure:
            return
        rows, pinned = self._scan.lines, anchor.metrics_rows
        if pinned > rows:
            what = f"pins {pinned} rows; {rows} are there"
        elif pinned < rows:
            what = f"pins {pinned} rows, fewer than an earlier one"
        elif anchor.metrics_head != self._scan.head.decode():
            what = f"pins another row {pinned}"
        elif anchor.metrics_bytes not in (None, self._scan.end):
            what = f"pins {anchor.metrics_bytes} bytes; the rows have {self._scan.end}"
        else:
            return
        line = self._found.record.lines + 1
        self._found.metrics_failure = f"The anchor in line {line} of {RECORD_FILE} {what}"

    def finish(self) -> None:
        """Read what is left."""
        self._read(None)

    def _read(self, rows: int | None) -> None:
        if rows is not None and rows <= self._scan.lines:
            return
        self._scan.pause_at = -1 if rows is None else rows
        for event in self._lines:
            if event is Pause.HERE:
                return
            if event is not None:
                self._scan.note_misfit(f"a {event.kind} does not belong into this file")


class _Witness:
    """The heads that somebody else has kept, compared with the lines of the record."""

    def __init__(self, found: Inspection, heads: Mapping[int, str]) -> None:
        self._found = found
        self._heads = heads
        self._waiting = iter(sorted(heads))
        self._next()

    def _next(self) -> None:
        self._found.record.pause_at = next(self._waiting, -1)

    def compare(self) -> None:
        """Compare the head at the line that has just been read."""
        found, record = self._found, self._found.record
        expected = self._heads[record.lines]
        if record.head.decode() == expected:
            found.witnessed = record.lines
        elif not found.differs:
            found.differs = (
                f"line {record.lines} has the hash {record.head[:12].decode()}, and the witness "
                f"was sent {expected[:12]}"
            )
        self._next()

    def finish(self) -> None:
        """Note a head for a line that is not there."""
        found, at = self._found, self._found.record.pause_at
        if at >= 0 and not found.differs:
            found.differs = (
                f"the witness was sent a head for line {at}, and there are {found.record.lines} "
                "good lines"
            )
