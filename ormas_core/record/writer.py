"""Writes the two chained files of a run folder, one whole line at a time."""

import contextlib
import errno
import logging
import os
import time
from io import FileIO
from pathlib import Path
from typing import Final

from ormas_core.config import MonitorConfig
from ormas_core.errors import RecordExistsError, RecordFormatError, RecordLockedError
from ormas_core.events import (
    Anchor,
    Event,
    Measurement,
    RunEnd,
    RunStart,
)
from ormas_core.record import chain, codec, earlier
from ormas_core.record.lock import FolderLock
from ormas_core.record.reader import METRICS_FILE, RECORD_FILE, SEAL_FILE, last_line
from ormas_core.record.strict import MAX_LINE, MAX_VALUES, values_in
from ormas_core.record_events import RecordGap
from ormas_core.terms import Severity

_LOG: Final = logging.getLogger("ormas")
_CHAINED: Final = (RECORD_FILE, METRICS_FILE)
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LOCK_STALE_S: Final = MonitorConfig().lock_stale
_TOUCHES: Final = 10
_LEAST_TOUCHES_S: Final = 60.0


class RecordWriter:
    """A sink that appends events to `record.jsonl` and measurements to `metrics.jsonl`.

    Where there is no room for an event, it is left out and counted; the next one that fits is
    followed by a `RecordGap` that says so.

    Args:
        folder: run folder; made if absent.
        overwrite: delete the record of an earlier run in it, its seal too, and nothing else.
        append: continue the record that is there, as a further segment; start one if there is none.
        resume: as `append`, for a record that another process left: a torn last line is cut off,
            and `earlier` says what was found.
        lock_stale: see `MonitorConfig.lock_stale`.

    Attributes:
        earlier: the record that is resumed; None where there was none.

    Raises:
        RecordLockedError: another writer has the folder.
        RecordExistsError: the folder holds a record, and no way out was chosen; or it is to be
            continued and is sealed.
        RecordFormatError: it cannot be continued.
        OSError: the folder cannot be written.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        append: bool = False,
        resume: bool = False,
        lock_stale: float = _LOCK_STALE_S,
    ) -> None:
        self.folder = Path(folder)
        self.earlier: earlier.Earlier | None = None
        self._pid = os.getpid()
        self._lock = FolderLock(self.folder, lock_stale)
        self._touch_s = min(_LEAST_TOUCHES_S, lock_stale / _TOUCHES)
        self._touched = 0.0
        self._gap = _Gap()
        self._ended = False
        continues = append or resume
        if _present(self.folder) and not (overwrite or continues):
            self._lock.require_free()
            _require_new(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()
        try:
            if continues:
                _require_unsealed(self.folder)
            elif overwrite:
                _delete(self.folder)
            else:
                _require_new(self.folder)
            if resume:
                self.earlier = earlier.resume(self.folder)
            self._record = _ChainedFile(self.folder / RECORD_FILE)
            self._metrics = _ChainedFile(self.folder / METRICS_FILE)
            _sync_folder(self.folder)
        except BaseException:
            self.close()
            raise

    def write(self, event: Event, /) -> None:
        """Append `event` as one line, handed to the operating system before returning.

        What is critical, an anchor and the end are on the disk by then. After `close`, a `RunStart`
        continues the record. A forked child, such as a data loader's worker, holds a copy of the
        writer, which writes nothing.

        Raises:
            RecordLockedError: another writer has taken the folder or changed its files.
            RecordFormatError: the line would be longer than a reader takes.
            OSError: the files cannot be written, for another reason than want of room.
        """
        if os.getpid() != self._pid:
            return
        if isinstance(event, RunStart):
            self._begin()
        if isinstance(event, Anchor) or time.monotonic() - self._touched > self._touch_s:
            self._touched = time.monotonic()
            self._lock.touch()
        if isinstance(event, RunEnd):
            self._tell_gap(event)
            self._ended = True
        if self._append(event) and not self._ended:
            self._tell_gap(event)

    def anchor(self, step: int) -> Anchor:
        """Return an anchor for the state of both files now."""
        return Anchor(
            step=step,
            head=self._record.head,
            lines=self._record.lines,
            metrics_head=self._metrics.head,
            metrics_rows=self._metrics.lines,
            metrics_bytes=self._metrics.size,
        )

    def holds(self, lines: int, head: str) -> bool:
        """Return whether line number `lines` of this record, from 1, has the hash `head`."""
        return earlier.hash_of_line(self.folder, lines) == head

    def close(self) -> None:
        """Close both files and give the lock back. May be called more than once."""
        for name in ("_record", "_metrics"):
            file: _ChainedFile | None = getattr(self, name, None)
            if file is not None:
                file.close()
        if os.getpid() == self._pid:
            self._lock.release()

    def _begin(self) -> None:
        self._ended = False
        if self._record.closed:
            self._lock.acquire()
            self._record.reopen()
            self._metrics.reopen()

    def _append(self, event: Event) -> bool:
        """Append a line, or count it as lost for want of room; return whether it is there."""
        file = self._metrics if isinstance(event, Measurement) else self._record
        try:
            if isinstance(event, Anchor):
                self._metrics.sync()  # before any disk can have the line that pins these rows
            file.append(event)
            if isinstance(event, Anchor | RunEnd) or event.severity is Severity.CRITICAL:
                self._record.sync()
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            self._gap.add(event, error, self.folder)
            return False
        return True

    def _tell_gap(self, event: Event) -> None:
        """Say in the record what was left out of it, if there is room for that."""
        if self._gap.open:
            gap = self._gap.event(event)
            with contextlib.suppress(OSError):
                self._record.append(gap)
                self._gap.close()


class _Gap:
    """What was left out of the record for want of room since that was last said in it."""

    def __init__(self) -> None:
        self._error = ""
        self._events = self._measurements = 0
        self._said = False

    @property
    def open(self) -> bool:
        """Whether anything is missing that the record does not say is."""
        return bool(self._events or self._measurements)

    def add(self, event: Event, error: OSError, folder: Path) -> None:
        """Count an event; the first one of the run is an error in the log."""
        self._error = f"{type(error).__name__}: {error.strerror}"
        if isinstance(event, Measurement):
            self._measurements += 1
        else:
            self._events += 1
        if not self._said:
            self._said = True
            _LOG.error(
                "step %d: the record in %s cannot be written: %s. Training goes on. Make room, and "
                "the record goes on and says what is missing.",
                event.step,
                folder,
                error.strerror,
            )

    def event(self, after: Event) -> RecordGap:
        """Return the event that says what is missing."""
        return RecordGap(
            step=after.step,
            time_ns=after.time_ns,
            error=self._error,
            events=self._events,
            measurements=self._measurements,
        )

    def close(self) -> None:
        """Note that the record says it."""
        self._events = self._measurements = 0


class _ChainedFile:
    """One append-only chained file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sync_failed = False
        self.head, self.lines, self.size = chain.GENESIS, 0, 0
        self._torn = False
        self._file = self._open()

    @property
    def closed(self) -> bool:
        """Whether `close` was called since the file was opened."""
        return self._file.closed

    def reopen(self) -> None:
        """Continue the file after `close`."""
        self._file = self._open()

    def append(self, event: Event) -> None:
        members = codec.encode(event)
        members["seq"] = self.lines
        members["prev"] = self.head
        line, head = chain.seal(members)
        if len(line) > MAX_VALUES:  # a value has a byte at least
            _require_readable(event.kind, line)
        if self._torn:
            self._file.truncate(self.size)
            self._torn = False
        # A failed write leaves the position behind; the end also shows a second writer.
        if self._file.seek(0, os.SEEK_END) != self.size:
            raise RecordLockedError(
                str(self._path), f"another writer has changed {self._path}; this one writes no more"
            )
        before = self.head, self.lines, self.size
        try:
            # An interrupt may come at any point; file and head agree whether it does or not.
            self.head, self.lines, self.size = head, self.lines + 1, self.size + len(line)
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301 - as write does
        except BaseException:
            # A torn line would make the intact ones before it look tampered with.
            self.head, self.lines, self.size = before
            self._torn = True
            self._file.truncate(self.size)
            self._torn = False
            raise

    def sync(self) -> None:
        """Have the operating system put the file on the disk."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            if not self._sync_failed:
                self._sync_failed = True
                _LOG.warning(
                    "%s could not be forced to the disk (%s); a crash of the machine may cost its "
                    "last lines.",
                    self._path,
                    error.strerror,
                )

    def close(self) -> None:
        self._file.close()

    def _open(self) -> FileIO:
        tail = last_line(self._path)
        self.head = tail.hash if tail else chain.GENESIS
        self.lines = tail.seq + 1 if tail else 0
        self._torn = False
        # Unbuffered: a line is in the kernel when `append` returns, so a crash loses none.
        file = FileIO(self._path, "ab")
        self.size = file.seek(0, os.SEEK_END)
        return file


def _require_readable(kind: str, line: bytes) -> None:
    """Refuse a line that no reader takes."""
    if len(line) > MAX_LINE:
        raise RecordFormatError(
            kind, f"a {kind} of {len(line)} bytes; a line has {MAX_LINE} at most"
        )
    values = values_in(line)
    if values > MAX_VALUES:
        raise RecordFormatError(kind, f"a {kind} of {values} values; a line has {MAX_VALUES}")


def _present(folder: Path) -> list[str]:
    return [name for name in _CHAINED if os.path.lexists(folder / name)]


def _require_new(folder: Path) -> None:
    present = _present(folder)
    if present:
        raise RecordExistsError(
            str(folder),
            f"The run folder {str(folder)!r} already holds a record ({present[0]}). Nothing was "
            "changed. Choose another folder with out=..., pass resume=True to go on with that "
            "record, or overwrite=True to delete it.",
        )


def _require_unsealed(folder: Path) -> None:
    if os.path.lexists(folder / SEAL_FILE):
        raise RecordExistsError(
            str(folder),
            f"The record in {str(folder)!r} is sealed ({SEAL_FILE}) and cannot be continued: the "
            "seal would be broken. Nothing was changed. Choose another folder with out=..., or "
            "delete the seal.",
        )


def _delete(folder: Path) -> None:
    for name in (SEAL_FILE, *_CHAINED):
        (folder / name).unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Put the names of new files on the disk, where a folder can be synced."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
