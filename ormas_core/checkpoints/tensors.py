"""What is known of one tensor of a checkpoint: values that the checks judge, without the tensor."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

SMALL: Final = 64 * 1024
"""Vectors of at most this many elements are kept as values."""

MAX_ROWS: Final = 2**20
"""Tensors with more rows than this are described as one row, so that memory stays bounded."""

SAMPLED: Final = 1024
"""Values of each tensor that are kept, spread over its beginning."""


class State(Enum):
    """How much of a tensor was looked at."""

    READ = "read"
    """Every element: the numbers below are facts."""
    PACKED = "packed"
    """Quantised integers or their tables: present and whole, but no weights to judge."""
    NO_DATA = "no data"
    """A placeholder, of the meta device or for what other processes hold: no elements."""
    UNKNOWN = "unknown type"
    """Of a type that cannot be read here: not inspected."""
    UNREADABLE = "unreadable"
    """Its bytes are missing or could not be read; `reason` says why."""


class Against(Enum):
    """What a tensor is beside the one of the same name in the base."""

    SAME = "same"
    """Equal bit by bit."""
    CAST = "cast"
    """Equal after the wider of the two is rounded to the type of the narrower one."""
    DIFFERENT = "different"
    ABSENT = "absent"
    """The base has no tensor of this name."""
    RESHAPED = "reshaped"
    """The base has one of another shape. Rows that both have are compared where only the number of
    rows differs."""
    UNKNOWN = "unknown"
    """One of the two could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A tensor and its counterpart in the base.

    Attributes:
        verdict: what it is beside the other one.
        shape: shape of the other one, or ().
        dtype: type of the other one, or "".
        moved: whether each row differs, `(rows,)` of bool, for the rows that both have; None where
            rows were not compared.
    """

    verdict: Against
    shape: tuple[int, ...] = ()
    dtype: str = ""
    moved: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """A tensor as it stands in a file.

    A row is what one index along axis 0 selects: an output channel of a linear or convolutional
    layer, a token of an embedding, an element of a vector. A scalar has one row.

    Attributes:
        name: name in the file.
        clean: name without the prefixes that wrappers add (`module.`, `_orig_mod.`).
        dtype: type as the safetensors format spells it (`F16`, `BF16`, `F8_E4M3`, `I64`, `BOOL`,
            `C64`, ...); one that it does not know as the file spells it.
        shape: its shape.
        file: file it is in, relative to what was opened.
        state: how much of it was looked at. If it is not `READ`, nothing below is known.
        reason: why the state is not `READ`; empty otherwise.
        rows: number of rows described: that of axis 0, or 1 where these are more than `MAX_ROWS`.
        magnitude: largest |x| of the finite elements of each row, `(rows,)` of float64; of the real
            and imaginary parts for complex numbers. Zero: every finite element of the row is zero.
        nan, inf: number of elements, for complex numbers of parts, that are NaN, or infinite.
        first: index of the first of these, or None.
        bad_rows: number of rows with such an element.
        constant: the value that all elements have, or None. A tensor of one element is no constant.
        values: all values of a vector or scalar of at most `SMALL` elements, `shape` of float64
            (complex128 for complex ones); None for others.
        sample: up to `SAMPLED` values, spread evenly over the first megabyte, as float64.
        fingerprint: equal for two tensors of equal bytes, type and shape, and hardly ever else.
        shares: name of an earlier tensor that is the same stretch of the same file, as tied weights
            are in PyTorch files: this one says nothing new. Empty for others.
        base: the comparison that was asked for, or None.
    """

    name: str
    clean: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    state: State
    reason: str = ""
    rows: int = 0
    magnitude: Any = None
    nan: int = 0
    inf: int = 0
    first: tuple[int, ...] | None = None
    bad_rows: int = 0
    constant: float | complex | None = None
    values: Any = field(default=None, repr=False)
    sample: Any = field(default=None, repr=False)
    fingerprint: bytes = b""
    shares: str = ""
    base: Comparison | None = None

    @property
    def elements(self) -> int:
        """Number of elements."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    @property
    def floating(self) -> bool:
        """Whether the elements are floating-point or complex numbers."""
        return self.dtype.startswith(("F", "BF", "C"))
