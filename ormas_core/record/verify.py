"""Checks a run folder: is this what the monitor wrote, in order, and all of it?"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from ormas_core.errors import RecordFormatError
from ormas_core.events import Anchor, Event, Measurement, RunEnd, RunStart, SinkError
from ormas_core.record import chain
from ormas_core.record.reader import METRICS_FILE, RECORD_FILE, Line, open_regular, parse_line


class Outcome(StrEnum):
    """Result of one check."""

    PASS = "pass"  # noqa: S105 - an outcome, no password
    FAIL = "fail"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Check:
    """One question about a record, answered: its name, the outcome and one sentence."""

    name: str
    outcome: Outcome
    sentence: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The answers about one run folder.

    Attributes:
        head: chain head that the last anchor names, as it was sent to the sinks (the MLflow tag
            `ormas.record.head`); the hash of the last line where there is no anchor.
    """

    folder: str
    checks: tuple[Check, ...]
    head: str

    @property
    def failed(self) -> bool:
        """Whether any check failed."""
        return any(check.outcome is Outcome.FAIL for check in self.checks)

    @property
    def complete(self) -> bool:
        """Whether every check passed, which `--strict` asks for."""
        return all(check.outcome is Outcome.PASS for check in self.checks)


def verify_record(folder: str | os.PathLike[str]) -> Verification:
    """Check the chain, the metrics, the anchors and the completeness of a run folder.

    Raises:
        FileNotFoundError: there is no `record.jsonl` in `folder`.
    """
    path = Path(folder)
    record = _scan(path / RECORD_FILE)
    if (path / METRICS_FILE).exists():
        metrics = _scan(path / METRICS_FILE)
    else:
        metrics = _Scan(name=METRICS_FILE, failure=f"{METRICS_FILE} is missing.")
    return Verification(
        folder=str(folder),
        checks=(
            _chain_check("chain", record),
            _chain_check("metrics", metrics),
            _anchor_check(record, metrics),
            _completeness(record),
        ),
        head=_head(record),
    )


def _head(record: "_Scan") -> str:
    if record.anchors:
        return record.anchors[-1][1].head
    return record.hashes[-1] if record.hashes else chain.GENESIS


@dataclass(slots=True)
class _Scan:
    """What one pass over a chained file found."""

    name: str
    hashes: list[str] = field(default_factory=list)
    anchors: list[tuple[int, Anchor]] = field(default_factory=list)
    ended: bool = False
    closed: bool = False
    failure: str = ""
    torn_at: int | None = None


def _scan(path: Path) -> _Scan:
    scan = _Scan(name=path.name)
    offset, prev = 0, chain.GENESIS
    with open_regular(path) as file:
        for raw in file:
            if not raw.endswith(b"\n"):
                scan.torn_at = offset
                break
            try:
                line = _checked(raw[:-1], seq=len(scan.hashes), prev=prev)
                _require_place(scan, line.event)
            except RecordFormatError as error:
                scan.failure = f"{path.name}, line {len(scan.hashes) + 1}: {error}."
                break
            _note(scan, line)
            prev = line.hash
            offset += len(raw)
    return scan


def _checked(raw: bytes, *, seq: int, prev: str) -> Line:
    body, claimed = chain.unseal(raw)
    found = chain.digest(body)
    if found != claimed:
        raise RecordFormatError("hash", f"its bytes hash to {found[:12]}, it claims {claimed[:12]}")
    line = parse_line(raw)
    if line.prev != prev:
        raise RecordFormatError(
            "prev", f"it follows {line.prev[:12]}, the line before is {prev[:12]}"
        )
    if line.seq != seq:
        raise RecordFormatError("seq", f"its number is {line.seq}, its place is {seq}")
    return line


def _require_place(scan: _Scan, event: Event) -> None:
    """Refuse an event that the monitor never writes at this place of this file."""
    if isinstance(event, Measurement) != (scan.name == METRICS_FILE):
        raise RecordFormatError(event.kind, f"a {event.kind} does not belong into this file")
    if scan.name == METRICS_FILE or isinstance(event, RunStart):
        return
    if not scan.hashes:
        raise RecordFormatError(event.kind, f"the record begins with {event.kind}, not run_start")
    if scan.ended and not isinstance(event, Anchor | SinkError):
        raise RecordFormatError(event.kind, f"a {event.kind} follows the end of the run")


def _note(scan: _Scan, line: Line) -> None:
    match line.event:
        case Anchor():
            scan.anchors.append((len(scan.hashes), line.event))
            scan.closed = scan.ended
        case RunStart():
            scan.ended = scan.closed = False
        case RunEnd():
            scan.ended = True
        case _:
            pass
    scan.hashes.append(line.hash)


def _chain_check(name: str, scan: _Scan) -> Check:
    if scan.failure:
        return Check(name, Outcome.FAIL, scan.failure)
    sentence = f"{len(scan.hashes)} lines of {scan.name}, each hash and link as written."
    if scan.torn_at is not None:
        sentence += f" A torn last line at byte {scan.torn_at} is left out."
    if name == "chain" and not scan.hashes:
        return Check(name, Outcome.FAIL, f"{scan.name} holds no whole line.")
    return Check(name, Outcome.PASS, sentence)


def _anchor_check(record: _Scan, metrics: _Scan) -> Check:
    if not record.anchors:
        return Check("anchors", Outcome.ABSENT, "The record has no anchor.")
    for place, anchor in record.anchors:
        for what in _anchor_errors(place, anchor, record, metrics):
            return Check("anchors", Outcome.FAIL, f"The anchor in line {place + 1} {what}.")
    covered = record.anchors[-1][1].metrics_rows
    return Check(
        "anchors",
        Outcome.PASS,
        f"{len(record.anchors)} anchors agree with both files; "
        f"{covered} of {len(metrics.hashes)} metrics rows are pinned.",
    )


def _anchor_errors(place: int, anchor: Anchor, record: _Scan, metrics: _Scan) -> Iterator[str]:
    before = record.hashes[place - 1] if place else chain.GENESIS
    if (anchor.lines, anchor.head) != (place, before):
        yield "does not name the line before it"
    if not 0 <= anchor.metrics_rows <= len(metrics.hashes):
        yield f"pins {anchor.metrics_rows} metrics rows; {len(metrics.hashes)} are there"
    else:
        row = metrics.hashes[anchor.metrics_rows - 1] if anchor.metrics_rows else chain.GENESIS
        if row != anchor.metrics_head:
            yield f"pins another metrics row {anchor.metrics_rows}"


def _completeness(record: _Scan) -> Check:
    # Without the closing anchor, metrics rows may be missing as well: nothing pins them.
    if record.closed and record.torn_at is None:
        return Check("completeness", Outcome.PASS, "The record ends in run_end and its anchor.")
    sentence = "INTERRUPTED: the record does not end in run_end and its anchor"
    if not record.failure:
        sentence += "; it is whole up to its last line"
    return Check("completeness", Outcome.ABSENT, f"{sentence}.")
