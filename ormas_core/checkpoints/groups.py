"""Rows that stand apart from the population: exact zeros, and groups behind a gap.

No magnitude is large or small by itself: what counts is the gap to the others, and how it compares
with the spread that these have among themselves.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

FEWEST: Final = 8
"""Rows that a population needs; of fewer nothing is said but which are zero."""

LOW_GAP: Final = 3.0
"""Decades that rows must lie below the others. Healthy layers spread over one or two, evenly."""

LONE_GAP: Final = 6.0
"""The same where a row is a number or two that may have either sign: of a thousand such numbers,
the smallest lies three decades below the next by chance once in a thousand times."""

HIGH_GAP: Final = 2.0
"""Decades that rows must lie above the others."""

SPREADS: Final = 2.0
"""A gap is also at least this many times as wide as the population behind it."""

_ROUNDING: Final = 1e-6
"""Decades that are left to the rounding of logarithms."""

_LOW_SHARE: Final = 0.5
_HIGH_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroups:
    """The rows of a tensor, sorted by their largest |x|.

    Attributes:
        count: number of rows.
        all_zero: whether every row is exactly zero.
        zero: indices of rows that are exactly zero; empty if all are, so that it stays small.
        low: indices of rows that are not zero and lie below a gap.
        high: indices of rows that lie above a gap.
        median: median largest |x| of the rows that are not zero; 0 if all are.
    """

    count: int
    all_zero: bool = False
    zero: tuple[int, ...] = ()
    low: tuple[int, ...] = ()
    high: tuple[int, ...] = ()
    median: float = 0.0


def row_groups(magnitude: Any, low_gap: float = LOW_GAP) -> RowGroups:
    """Return the groups of rows with these largest |x|, `(rows,)`, finite and not negative.

    Args:
        magnitude: largest |x| of each row.
        low_gap: decades that rows must lie below the others.
    """
    zero = np.flatnonzero(magnitude == 0)
    rest = np.flatnonzero(magnitude)
    if not len(rest):
        return RowGroups(count=len(magnitude), all_zero=True)
    sizes = magnitude[rest]
    low, high = _apart(sizes, low_gap)
    return RowGroups(
        count=len(magnitude),
        zero=tuple(map(int, zero)),
        low=tuple(map(int, rest[sizes < low])),
        high=tuple(map(int, rest[sizes > high])),
        median=median(sizes),
    )


def _apart(values: Any, low_gap: float) -> tuple[float, float]:
    """Return between which sizes the population lies; what is beyond stands apart."""
    smallest, largest = float(values.min()), float(values.max())
    count = len(values)
    # Almost every tensor: sorting takes longer than reading it did.
    if count < FEWEST or largest < smallest * 10 ** (min(low_gap, HIGH_GAP) - _ROUNDING):
        return smallest, largest
    values = np.sort(values)
    sizes = np.log10(values)
    gaps = np.diff(sizes)
    first, last = 0, count - 1
    # The gap next to the population counts: there may be others among those that stand apart.
    for place in np.flatnonzero(gaps[: int(count * _LOW_SHARE)] >= low_gap)[::-1]:
        if gaps[place] >= SPREADS * _spread(sizes[place + 1 :]):
            first = int(place) + 1
            break
    start = count - 1 - max(1, int(count * _HIGH_SHARE))
    for place in np.flatnonzero(gaps[start:] >= HIGH_GAP) + start:
        if gaps[place] >= SPREADS * _spread(sizes[first : place + 1]):
            last = int(place)
            break
    return float(values[first]), float(values[last])


def median(values: Any) -> float:
    """Return the middle of some numbers: the higher one, if there are two.

    `numpy.median` imports masked arrays, a third of the time that a small check takes.
    """
    return float(np.partition(values, len(values) // 2)[len(values) // 2])


def _spread(sizes: Any) -> float:
    """Return the decades from the 5th to the 95th percentile of sorted logarithms."""
    last = len(sizes) - 1
    return float(sizes[round(0.95 * last)] - sizes[round(0.05 * last)]) if last > 0 else 0.0
