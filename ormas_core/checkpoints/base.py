"""What tensors are read with: open files, buffers, and the base that they are compared with."""

import threading
from dataclasses import dataclass, field, replace
from typing import Any

from ormas_core.checkpoints.blocks import (
    Bytes,
    FileBytes,
    MemoryBytes,
    Table,
    gathered,
    new_buffer,
    table_of,
)
from ormas_core.checkpoints.compare import Beside, comparable
from ormas_core.checkpoints.dtypes import Layout, layout_of
from ormas_core.checkpoints.files import Opened
from ormas_core.checkpoints.names import clean_name
from ormas_core.checkpoints.opened import Checkpoint, Entry
from ormas_core.checkpoints.tensors import Against, Comparison


class Files:
    """The open files of a checkpoint: each is opened once, when it is first needed."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._open: dict[str, Opened] = {}
        self._lock = threading.Lock()

    def bytes_of(self, entry: Entry, layout: Layout) -> Bytes:
        """Return where the bytes of a tensor come from.

        Raises:
            OSError, CheckpointError: the file cannot be opened or read.
        """
        if entry.source is not None:
            return MemoryBytes(entry.source())
        with self._lock:
            file = self._open.get(entry.file)
            if file is None:
                file = self._open[entry.file] = Opened(self._checkpoint.place(entry.file))
        if entry.strides is not None:
            return gathered(file, entry, layout)
        return FileBytes(file, entry.offset)

    def close(self) -> None:
        """Close them all."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()


@dataclass(slots=True)
class Bench:
    """What one thread works with: two buffers, made once."""

    mine: Any = field(default_factory=new_buffer)
    other: Any = field(default_factory=new_buffer)


class Base:
    """The tensors that others are compared with, by clean name."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.entries: dict[str, Entry] = {
            clean_name(entry.name): entry for entry in checkpoint.entries
        }
        self._files = Files(checkpoint)

    def beside(self, entry: Entry, table: Table, bench: Bench) -> Beside | Comparison:
        """Return what compares a tensor with its counterpart, or why that cannot be done."""
        base = self.entries.get(clean_name(entry.name))
        if base is None:
            return Comparison(verdict=Against.ABSENT)
        found = Comparison(verdict=Against.UNKNOWN, shape=base.shape, dtype=base.dtype)
        if entry.shape != base.shape:
            found = replace(found, verdict=Against.RESHAPED)
        layout = layout_of(base.dtype)
        if base.missing or base.placeholder or layout is None or not comparable(entry, base):
            return found
        other = table_of(base.shape, layout)
        if entry.shape != base.shape:
            by_rows = (table.rows, other.rows) == (entry.shape[:1] + base.shape[:1])
            if entry.shape[1:] != base.shape[1:] or not by_rows:
                return found
        try:
            source = self._files.bytes_of(base, layout)
        except (OSError, ValueError, RuntimeError):
            return replace(found, verdict=Against.UNKNOWN)
        shared = replace(table, rows=min(table.rows, other.rows))
        return Beside(entry, base, shared, source, bench.other)

    def close(self) -> None:
        """Close its files."""
        self._files.close()
