"""Writes the two chained files of a run folder, one whole line at a time."""

import errno
import os
from pathlib import Path
from typing import Final

from ormas_core.errors import RecordExistsError
from ormas_core.events import Anchor, Event, Measurement, RunStart
from ormas_core.record import chain, codec
from ormas_core.record.reader import METRICS_FILE, RECORD_FILE, last_line

_OURS: Final = (RECORD_FILE, METRICS_FILE)


class RecordWriter:
    """A sink that appends events to `record.jsonl` and measurements to `metrics.jsonl`.

    Args:
        folder: run folder; made if absent.
        overwrite: delete the record files of an earlier run in it (and nothing else).
        append: continue the record that is there, as a further segment; start one if there is none.

    Raises:
        RecordExistsError: the folder holds a record, and neither way out was chosen.
        RecordFormatError: `append`, and the last line cannot be continued.
        OSError: the folder cannot be written.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, overwrite: bool = False, append: bool = False
    ) -> None:
        self.folder = Path(folder)
        present = [name for name in _OURS if os.path.lexists(self.folder / name)]
        if present and not (overwrite or append):
            raise RecordExistsError(
                str(self.folder),
                f"The run folder {str(self.folder)!r} already holds a record ({present[0]}). "
                "Nothing was changed. Choose another folder with out=..., or pass overwrite=True "
                "to delete that record.",
            )
        self._pid = os.getpid()
        self.folder.mkdir(parents=True, exist_ok=True)
        if overwrite and not append:
            for name in present:
                (self.folder / name).unlink()
        self._record = _ChainedFile(self.folder / RECORD_FILE)
        try:
            self._metrics = _ChainedFile(self.folder / METRICS_FILE)
        except BaseException:
            self._record.close()
            raise

    def write(self, event: Event, /) -> None:
        """Append `event` as one line, handed to the operating system before returning.

        After `close`, a `RunStart` continues the record. A forked child, such as a data loader's
        worker, holds a copy of the writer, which writes nothing.
        """
        if os.getpid() != self._pid:
            return
        if isinstance(event, RunStart):
            self._record.reopen()
            self._metrics.reopen()
        (self._metrics if isinstance(event, Measurement) else self._record).append(event)

    def anchor(self, step: int) -> Anchor:
        """Return an anchor for the state of both files now."""
        return Anchor(
            step=step,
            head=self._record.head,
            lines=self._record.lines,
            metrics_head=self._metrics.head,
            metrics_rows=self._metrics.lines,
        )

    def close(self) -> None:
        """Close both files. May be called more than once."""
        self._record.close()
        self._metrics.close()


class _ChainedFile:
    """One append-only chained file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open()

    def _open(self) -> None:
        tail = last_line(self._path)
        self.head = tail.hash if tail else chain.GENESIS
        self.lines = tail.seq + 1 if tail else 0
        # Unbuffered: a line is in the kernel when `append` returns, so a crash loses none.
        self._file = self._path.open("ab", buffering=0)

    def reopen(self) -> None:
        """Continue the file after `close`; an open one stays as it is."""
        if self._file.closed:
            self._open()

    def append(self, event: Event) -> None:
        members = codec.encode(event)
        members["seq"] = self.lines
        members["prev"] = self.head
        line, head = chain.seal(members)
        size = self._file.seek(0, os.SEEK_END)  # a failed write leaves the position behind
        before = self.head, self.lines
        try:
            # An interrupt may come at any point; file and head agree whether it does or not.
            self.head, self.lines = head, self.lines + 1
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301 - as write does
        except BaseException:
            # A torn line would make the intact ones before it look tampered with.
            self.head, self.lines = before
            self._file.truncate(size)
            raise

    def close(self) -> None:
        self._file.close()
