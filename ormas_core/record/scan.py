"""One pass over a chained file: every hash, every link, every number, and what the lines are."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, BinaryIO, Final

import rfc8785

from ormas_core.errors import RecordFormatError
from ormas_core.events import Event
from ormas_core.record import chain, codec
from ormas_core.record.lines import Lines
from ormas_core.record.reader import members_of
from ormas_core.record.shapes import shapes

_HASH_AT: Final = -(len(b',"hash":""}') + 64)
_KIND: Final = b'"event":"'
_NOTHING: Final = re.compile(rb"(?!)")
_GENESIS: Final = chain.GENESIS.encode()


class Pause(Enum):
    """What is yielded where a scan was to stop."""

    HERE = "here"


@dataclass(slots=True)
class Scan:
    """What has been found in a file so far.

    Attributes:
        name: the file's name.
        lines: good lines so far.
        head: hash of the last of them.
        end: byte after the last of them.
        failure: why the chain breaks at the next line; empty while it does not.
        misfits: lines with an intact hash that are no event of this version, or in a wrong place.
        misfit: what the first of them is.
        uncanonical: number of the first line that is not in the spelling of RFC 8785; 0 for none.
        torn_at: byte at which a last line without newline begins.
        size: bytes read.
        sha256: digest of the file, if it was asked for and the file was read to its end.
        refused: why the caller takes the line that was yielded for a break of the chain.
        pause_at: number of lines at which to stop for a look; set by the caller.
        loud: whether every line needs a look; set by the caller.
    """

    name: str
    lines: int = 0
    head: bytes = _GENESIS
    end: int = 0
    failure: str = ""
    misfits: int = 0
    misfit: str = ""
    uncanonical: int = 0
    torn_at: int | None = None
    size: int = 0
    sha256: str = ""
    refused: str = ""
    pause_at: int = -1
    loud: bool = False

    def note_misfit(self, what: str) -> None:
        """Count a line that does not belong there; the first one is remembered."""
        self.misfits += 1
        self.misfit = self.misfit or f"{self.name}, line {self.lines + 1}: {what}"


def scan_lines(
    scan: Scan,
    file: BinaryIO,
    *,
    quiet: frozenset[bytes],
    canonical: bool = False,
    hashed: bool = False,
) -> Iterator[Event | Pause | None]:
    """Go through a file, from its beginning, while the chain holds; stop for a look where needed.

    Yields:
        Before each line of no `quiet` kind, and while `scan.loud` before any: its event, or None
        for an unknown kind. After `scan.pause_at` good lines: `Pause.HERE`. `scan` is up to date.

    Args:
        scan: what is found.
        file: the file.
        quiet: kinds that need no look.
        canonical: serialise each line again and compare it.
        hashed: hash the file as a whole too.
    """
    lines, patterns, sha256 = Lines(file, hashed=hashed), shapes(), hashlib.sha256
    count, head, end = scan.lines, scan.head, scan.end
    kind, pattern, steady = b"", _NOTHING, False
    try:
        for raw in lines:
            found = pattern.fullmatch(raw) if steady else None
            if found is None:
                start = raw.find(_KIND) + len(_KIND)
                kind, before = raw[start : raw.find(b'"', start)], kind
                steady = kind == before  # then the next one is likely to be of this kind too
                pattern = patterns.get(kind, _NOTHING)
                found = pattern.fullmatch(raw)
            body = raw[:_HASH_AT] + b"}"
            digest = sha256(body).hexdigest().encode()
            if found is not None and (raw.isascii() or _is_text(raw)):
                members, (prev, seq, claimed) = None, found.groups()
            else:
                members, prev, seq, claimed = _parse(raw)
            if claimed != digest or prev != head or int(seq) != count:
                scan.lines, scan.head = count, head
                raise _broken(scan, claimed, digest, prev, seq)
            if members is not None or kind not in quiet or scan.loud or canonical:
                scan.lines, scan.head, scan.end = count, head, end
                members = members or json.loads(body)  # as strict as any: it has matched
                if canonical and not scan.uncanonical:
                    _compare(scan, body, members)
                event = _decode(scan, members)
                if event is None or scan.loud or event.kind.encode() not in quiet:
                    yield event
                _require_taken(scan)
                members = event = None  # they may be large, and so may be those of the next line
            head, count, end = digest, count + 1, end + len(raw) + 1
            if count == scan.pause_at:
                scan.lines, scan.head, scan.end = count, head, end
                yield Pause.HERE
    except RecordFormatError as error:
        scan.failure = f"{scan.name}, line {count + 1}: {error}"
    scan.lines, scan.head, scan.end, scan.torn_at = count, head, end, lines.torn_at
    scan.size, scan.sha256 = lines.end, "" if scan.failure else lines.sha256


def _is_text(raw: bytes) -> bool:
    if raw.isascii():
        return True
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _parse(raw: bytes) -> tuple[dict[str, Any], bytes, int, bytes]:
    """Read a line that matches no pattern: its members, link, number and the hash it claims.

    Raises:
        RecordFormatError: one of these is not there.
    """
    members, prev, seq, claimed = members_of(raw)
    return members, prev.encode("ascii", "backslashreplace"), seq, claimed.encode()


def _decode(scan: Scan, members: Mapping[str, Any]) -> Event | None:
    try:
        return codec.decode(members)
    except RecordFormatError as error:
        scan.note_misfit(f"{error!s:.300}")
        return None


def _compare(scan: Scan, body: bytes, members: dict[str, Any]) -> None:
    try:
        same = rfc8785.dumps(members) == body
    except (ValueError, rfc8785.CanonicalizationError):
        same = False
    if not same:
        scan.uncanonical = scan.lines + 1


def _require_taken(scan: Scan) -> None:
    if scan.refused:
        raise RecordFormatError("chain", scan.refused)


def _broken(
    scan: Scan, claimed: bytes, digest: bytes, prev: bytes, seq: bytes | int
) -> RecordFormatError:
    if claimed != digest:
        what = f"its bytes hash to {digest[:12].decode()}, it claims {_shown(claimed)}"
    elif prev != scan.head:
        what = f"it follows {_shown(prev)}, the line before is {_shown(scan.head)}"
    else:
        what = f"its number is {int(seq)}, its place is {scan.lines}"
    return RecordFormatError("chain", what)


def _shown(digest: bytes) -> str:
    return digest[:12].decode("ascii", "backslashreplace")
