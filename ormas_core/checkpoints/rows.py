"""One pass over a tensor: the largest magnitude of each row, and what is not finite.

The bytes are read as integers and the sign bits masked in place. The maximum of a row of such
integers is its largest magnitude, is zero for a row of zeros, and is beyond the largest finite
pattern if there is a NaN or an infinity: only then, and only in that block, is it looked closer.
"""

import zlib
from typing import Any, Final

import numpy as np

from ormas_core.checkpoints.decoding import decode, words_of
from ormas_core.checkpoints.dtypes import Layout, layout_of
from ormas_core.checkpoints.tensors import SAMPLED

_FEW_COLUMNS: Final = 16
"""Up to here numpy is faster column by column than row by row."""


class RowScan:
    """What is known of a tensor after the blocks that were fed so far.

    Attributes:
        nan, inf: counts.
        first: flat position of the first element that is not finite, or None.
        bad: whether each row has one, `(rows,)` of bool, or None while none has.
        sample: raw words spread over the first block.
    """

    def __init__(self, dtype: str, rows: int, columns: int) -> None:
        layout = layout_of(dtype)
        assert layout is not None  # noqa: S101 - callers have looked it up
        self.dtype, self.layout, self.rows = dtype, layout, rows
        self.parts = 2 if layout.form == "complex" else 1
        self.columns = columns * self.parts
        self.nan = self.inf = 0
        self.first: int | None = None
        self.bad: Any = None
        self.sample: Any = None
        self._word = np.dtype(layout.word)
        self._mask = self._word.type(layout.mask)
        self._most = np.zeros(rows, self._word)
        self._seen = 0
        self._same: Any = None
        self._varies = False

    def feed(self, raw: Any, row: int, count: int, column: int) -> None:
        """Take a block: whole rows, or a piece of one row. Its bytes are overwritten.

        Args:
            raw: `(n,)` of uint8.
            row: the first row in it.
            count: how many rows are in it.
            column: element of the row at which a piece begins.
        """
        words = words_of(self.layout, raw)
        if self.sample is None:
            self.sample = words[:: max(1, words.size // SAMPLED)][:SAMPLED].copy()
            self._seen = zlib.crc32(self.sample, self._seen)
        width = words.size // count
        most = self._magnitudes(words, count, width)
        if self.layout.mask and most.size and int(most.max()) > self.layout.top:
            most = self._look_closer(words, row, count, column * self.parts, width)
        into = self._most[row : row + count]
        np.maximum(into, most, out=into)
        self._seen = zlib.crc32(most, self._seen)
        self._note_variation(most)

    def _magnitudes(self, words: Any, count: int, width: int) -> Any:
        layout = self.layout
        if layout.form == "int":
            signed = words.view(layout.word.replace("u", "i")).reshape(count, width)
            high, low = signed.max(axis=1), signed.min(axis=1)
            # The most negative number has no positive counterpart, but as unsigned it is its own.
            return np.maximum(
                np.maximum(high, 0).view(self._word), (-np.minimum(low, 0)).view(self._word)
            )
        if layout.nan is not None:
            negative = words > layout.nan
            words[words == layout.nan] = layout.mask
            np.subtract(words, 0x80, out=words, where=negative)
        elif layout.mask:
            np.bitwise_and(words, self._mask, out=words)
        return _largest(words, count, width)

    def _look_closer(self, words: Any, row: int, count: int, column: int, width: int) -> Any:
        bad = words > self.layout.top
        infinite = 0 if self.layout.inf is None else int(np.count_nonzero(words == self.layout.inf))
        self.inf += infinite
        self.nan += int(np.count_nonzero(bad)) - infinite
        if self.first is None:
            at = int(bad.argmax())
            self.first = ((row + at // width) * self.columns + column + at % width) // self.parts
        if self.bad is None:
            self.bad = np.zeros(self.rows, bool)
        self.bad[row : row + count] |= bad.reshape(count, width).any(axis=1)
        words[bad] = 0
        return _largest(words, count, width)

    def _note_variation(self, most: Any) -> None:
        if self._varies or not most.size:
            return
        if self._same is None:
            self._same = most[0]
        self._varies = bool((most != self._same).any())

    @property
    def may_be_constant(self) -> bool:
        """Whether all rows have the same largest magnitude, so that a closer look is worthwhile."""
        return not self._varies and self._same is not None and not self.nan + self.inf

    @property
    def all_zero(self) -> bool:
        """Whether every element is a zero."""
        return self.may_be_constant and not int(self._same) and not _without_zero(self.layout)

    def magnitude(self) -> Any:
        """Return the largest finite |x| of each row, `(rows,)` of float64."""
        integers = self.layout.form == "int"
        return self._most.astype(np.float64) if integers else decode(self.dtype, self._most)

    def fingerprint(self) -> bytes:
        """Return a mark of what was seen: equal for equal bytes, and hardly ever else."""
        return f"{self.dtype} {self.rows} {self.columns} {self._seen:08x}".encode()


def _without_zero(layout: Layout) -> bool:
    return layout.exponent > 0 and layout.mantissa == 0


def _largest(words: Any, count: int, width: int) -> Any:
    """Return the maximum of each of `count` rows; the result may be the words themselves."""
    if width == 1:
        return words
    table = words.reshape(count, width)
    if width > _FEW_COLUMNS or count < _FEW_COLUMNS:
        return np.maximum.reduce(table, axis=1)
    most = table[:, 0].copy()
    for column in range(1, width):
        np.maximum(most, table[:, column], out=most)
    return most
