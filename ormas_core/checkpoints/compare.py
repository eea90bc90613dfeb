"""A tensor beside its counterpart in a base, block by block."""

from dataclasses import replace
from typing import Any, Final

import numpy as np

from ormas_core.checkpoints.blocks import BLOCK, Block, Bytes, Table, new_buffer
from ormas_core.checkpoints.decoding import decode, words_of
from ormas_core.checkpoints.dtypes import bytes_of, layout_of
from ormas_core.checkpoints.opened import Entry
from ormas_core.checkpoints.tensors import Against, Comparison

_ROUNDED: Final = ("F16", "BF16", "F32", "F64")
"""Types to which a wider one can be rounded here."""


class Beside:
    """Compares the blocks of a tensor with those of another, as far as both have rows.

    `table` is that of the rows which both have.
    """

    def __init__(self, entry: Entry, base: Entry, table: Table, source: Bytes, buffer: Any) -> None:
        self._entry, self._base, self._source, self._buffer = entry, base, source, buffer
        self._moved = np.zeros(table.rows, bool)
        self._same_type = entry.dtype == base.dtype
        self._moved_back = np.zeros(table.rows, bool)
        self._failed = ""
        self._rows = table.rows

    def feed(self, raw: Any, block: Block) -> None:
        """Compare a block, which is not changed; a base that cannot be read ends the comparison."""
        count = min(block.count, self._rows - block.row)
        if self._failed or count <= 0:
            return
        if count < block.count:
            size = block.size // block.count * count
            raw, block = raw[:size], replace(block, count=count, size=size)
        bits = _bits(self._base.dtype)
        elements = block.size * 8 // _bits(self._entry.dtype)
        start = block.start * 8 // _bits(self._entry.dtype) * bits // 8
        there = Block(block.row, block.count, block.column, start, elements * bits // 8)
        buffer = self._buffer if there.size <= BLOCK else new_buffer(there.size)
        try:
            other = self._source.fill(there, buffer)
        except OSError as error:
            self._failed = str(error)
            return
        rows = slice(block.row, block.row + block.count)
        if self._same_type:
            self._moved[rows] |= _different(raw, other, block.count)
        else:
            mine, its = _numbers(self._entry.dtype, raw), _numbers(self._base.dtype, other)
            self._moved[rows] |= _unlike(mine, rounded(its, self._entry.dtype), block.count)
            self._moved_back[rows] |= _unlike(rounded(mine, self._base.dtype), its, block.count)

    def verdict(self) -> Comparison:
        """Return what was found."""
        shape, dtype = self._base.shape, self._base.dtype
        if self._failed:
            return Comparison(verdict=Against.UNKNOWN, shape=shape, dtype=dtype)
        moved = self._moved
        if not self._same_type and self._moved_back.sum() < moved.sum():
            moved = self._moved_back
        equal = Against.SAME if self._same_type else Against.CAST
        found = Against.DIFFERENT if moved.any() else equal
        if self._entry.shape != shape:
            found = Against.RESHAPED
        return Comparison(verdict=found, shape=shape, dtype=dtype, moved=moved)


def comparable(entry: Entry, base: Entry) -> bool:
    """Whether values of the two types can be compared."""
    return entry.dtype == base.dtype or {entry.dtype, base.dtype} <= set(_ROUNDED)


def rounded(numbers: Any, dtype: str) -> Any:
    """Return float64 numbers rounded to a type, to the nearest, ties to even."""
    with np.errstate(all="ignore"):
        if dtype == "F16":
            return numbers.astype(np.float16).astype(np.float64)
        single = numbers if dtype == "F64" else numbers.astype(np.float32)
        if dtype != "BF16":
            return single.astype(np.float64)
        words = single.view(np.uint32)
        odd = (words >> 16) & 1
        out = ((words + 0x7FFF + odd) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
        return np.where(np.isnan(numbers), numbers, out)


def _bits(dtype: str) -> int:
    return bytes_of(dtype, 8)


def _numbers(dtype: str, raw: Any) -> Any:
    layout = layout_of(dtype)
    assert layout is not None  # noqa: S101 - only known types are compared
    return decode(dtype, words_of(layout, raw))


def _unlike(mine: Any, other: Any, count: int) -> Any:
    unlike = (mine != other) & ~(np.isnan(mine) & np.isnan(other))
    return unlike.reshape(count, -1).any(axis=1)


def _different(mine: Any, other: Any, count: int) -> Any:
    """Return which of `count` rows differ; at whole rows it looks only if they begin alike."""
    whole = mine.size - mine.size % 8
    if np.array_equal(
        mine[:whole].view(np.uint64), other[:whole].view(np.uint64)
    ) and np.array_equal(mine[whole:], other[whole:]):
        return np.zeros(count, bool)
    mine, other = mine.reshape(count, -1), other.reshape(count, -1)
    first = min(mine.shape[1], 16)
    moved = (mine[:, :first] != other[:, :first]).any(axis=1)
    still = np.flatnonzero(~moved)
    if still.size:
        moved[still] = (mine[still] != other[still]).any(axis=1)
    return moved
