"""From the bits of elements to numbers."""

from functools import cache
from typing import Any

import numpy as np

from ormas_core.checkpoints.dtypes import BYTE, LAYOUTS, Layout, layout_of


def decode(dtype: str, words: Any) -> Any:
    """Return elements as numbers.

    Args:
        dtype: a type with a layout.
        words: `(n,)` of the layout's words, one for each element; for complex numbers one for each
            part. Contiguous.

    Returns:
        `(n,)` of float64.
    """
    layout = layout_of(dtype)
    assert layout is not None  # noqa: S101 - callers have looked it up
    if layout.form == "uint":
        return words.astype(np.float64)
    if layout.form == "int":
        return words.view(layout.word.replace("u", "i")).astype(np.float64)
    if dtype == "BF16":
        return _wide((words.astype(np.uint32) << 16).view(np.float32))
    if layout.word == "u1":
        return table(dtype)[words]
    return _wide(words.view(layout.word.replace("u", "f")))


def _wide(numbers: Any) -> Any:
    with np.errstate(invalid="ignore"):  # a NaN may be of the kind that signals
        return numbers.astype(np.float64)


@cache
def table(dtype: str) -> Any:
    """Return the number that each of the 256 patterns of a small format stands for, `(256,)`."""
    layout = LAYOUTS[dtype]
    return np.array([_small(layout, pattern) for pattern in range(256)], np.float64)


def _small(layout: Layout, pattern: int) -> float:
    if layout.nan is not None and pattern == layout.nan:
        return float("nan")
    sign_at = layout.exponent + layout.mantissa
    negative = pattern >> sign_at & 1 if sign_at < layout.bits else 0
    magnitude = pattern & (2**sign_at - 1)
    if layout.nan is None and magnitude > layout.top:
        infinite = magnitude == layout.inf
        return float(("-inf" if negative else "inf") if infinite else "nan")
    exponent, fraction = magnitude >> layout.mantissa, magnitude & (2**layout.mantissa - 1)
    if exponent or layout.mantissa == 0:
        value = (1 + fraction / 2**layout.mantissa) * 2.0 ** (exponent - layout.bias)
    else:
        value = fraction / 2**layout.mantissa * 2.0 ** (1 - layout.bias)
    return float(-value if negative else value)


def words_of(layout: Layout, raw: Any) -> Any:
    """Return bytes as the words of a layout, one for each element or, if complex, part.

    Args:
        layout: how they are stored.
        raw: `(n,)` of uint8, of whole elements.
    """
    return unpack(layout.bits, raw) if layout.bits < BYTE else raw.view(layout.word)


def unpack(bits: int, raw: Any) -> Any:
    """Return elements of less than a byte as bytes; the first one is in the lowest bits.

    Args:
        bits: of an element.
        raw: `(n,)` of uint8, with n * 8 a multiple of `bits`.
    """
    columns = np.unpackbits(raw, bitorder="little").reshape(-1, bits)
    return np.packbits(columns, axis=1, bitorder="little")[:, 0]
