"""Tensors as rows, and rows as blocks of a few megabytes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from ormas_core.checkpoints.dtypes import BYTE, Layout, bytes_of
from ormas_core.checkpoints.files import Opened
from ormas_core.checkpoints.opened import Entry
from ormas_core.checkpoints.tensors import MAX_ROWS

BLOCK: Final = 2**22
"""Bytes read at a time; a multiple of what every type needs to end on a whole byte is taken.

Less fits the cache of a core and is faster alone; but then threads take the interpreter from each
other so often that a check takes a tenth longer.
"""

_MOST_STRETCH: Final = 64
"""A strided tensor may not be more than this many times larger than its bytes."""


_PAGE: Final = 4096
_LINE: Final = 64


class ShortReadError(OSError):
    """A file ended before the tensor did."""


@dataclass(frozen=True, slots=True)
class Table:
    """A tensor seen as rows.

    Attributes:
        rows, columns: what it is seen as.
        row_bits: bits of one row.
    """

    rows: int
    columns: int
    row_bits: int


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a table: whole rows, or a piece of one.

    Attributes:
        row: the first row.
        count: how many rows.
        column: element of the row at which it begins.
        start: its first byte, from that of the tensor.
        size: bytes.
    """

    row: int
    count: int
    column: int
    start: int
    size: int


def table_of(shape: tuple[int, ...], layout: Layout) -> Table:
    """Return how a tensor is seen as rows; as one where that is not possible or too many."""
    elements = math.prod(shape)
    rows = shape[0] if shape else 1
    if rows and rows <= MAX_ROWS and (elements // rows) * layout.bits % 8 == 0:
        return Table(rows, elements // rows, elements // rows * layout.bits)
    return Table(1, elements, elements * layout.bits)


def blocks_of(table: Table, layout: Layout) -> Iterator[Block]:
    """Yield the blocks of a table in the order of their bytes."""
    if not table.row_bits or not table.rows:
        return
    row = table.row_bits // 8
    if row <= BLOCK:
        many = BLOCK // row
        for first in range(0, table.rows, many):
            count = min(many, table.rows - first)
            yield Block(first, count, 0, first * row, count * row)
        return
    piece = BLOCK - BLOCK % (3 if layout.bits < BYTE else 1)
    for number in range(table.rows):
        for at in range(0, row, piece):
            column = at * 8 // layout.bits
            yield Block(number, 1, column, number * row + at, min(piece, row - at))


def new_buffer(size: int = BLOCK) -> Any:
    """Return room for a block of that many bytes, at the beginning of a page."""
    room = np.empty(size + 2 * _PAGE, np.uint8)
    return room[-room.ctypes.data % _PAGE :]


class Bytes(Protocol):
    """Where the bytes of a tensor come from."""

    def fill(self, block: Block, buffer: Any) -> Any:
        """Return the bytes of a block, `(size,)` of uint8, which may be overwritten.

        Args:
            block: which.
            buffer: what `new_buffer` returned, to be used where it helps.

        Raises:
            OSError: they cannot be read.
        """
        ...


class FileBytes:
    """A contiguous tensor in a file."""

    def __init__(self, file: Opened, offset: int) -> None:
        self._file, self._offset = file, offset

    def fill(self, block: Block, buffer: Any) -> Any:
        """Return the bytes of a block, in the buffer."""
        at = self._offset + block.start
        # Copying to just behind the same place of a page takes five times as long on some
        # processors (measured on AMD Zen 3: 1.1 s of 1.4 GiB instead of 0.2 s).
        shift = _PAGE // 2 if 0 < -at % _PAGE < _LINE else 0
        into = buffer[shift : shift + block.size]
        found = self._file.read_into(into, at)
        if found != block.size:
            text = f"the file ends at byte {at + found:,}, in the midst of the tensor"
            raise ShortReadError(text)
        return into


class MemoryBytes:
    """A tensor in memory."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def fill(self, block: Block, buffer: Any) -> Any:
        """Return a copy of the bytes of a block."""
        into = buffer[: block.size]
        into[:] = self._raw[block.start : block.start + block.size]
        return into


def gathered(file: Opened, entry: Entry, layout: Layout) -> MemoryBytes:
    """Return a strided tensor as contiguous bytes; axes that repeat one element stay repeated.

    Raises:
        OSError: it cannot be read, or is a small piece of memory repeated very often.
    """
    assert entry.strides is not None  # noqa: S101 - that is what it is called for
    if bytes_of(entry.dtype, math.prod(entry.shape)) > _MOST_STRETCH * max(entry.size, BLOCK):
        raise OSError(f"its {entry.size:,} bytes repeat themselves {list(entry.shape)!s:.80} times")
    raw = np.empty(entry.size, np.uint8)
    if file.read_into(raw, entry.offset) != entry.size:
        raise ShortReadError("the file ends in the midst of the tensor")
    item = np.dtype((np.void, layout.bits // 8))
    view = np.lib.stride_tricks.as_strided(
        raw.view(item), entry.shape, [stride * item.itemsize for stride in entry.strides]
    )
    return MemoryBytes(np.ascontiguousarray(view).reshape(-1).view(np.uint8))
