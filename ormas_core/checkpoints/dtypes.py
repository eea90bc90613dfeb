"""Types of elements: how many bits, where the magnitude is in them, what is not finite.

Source: the safetensors format; IEEE 754; OCP 8-bit Floating Point and Microscaling Formats;
"FNUZ": Noune et al., 8-bit Numerical Formats for Deep Neural Networks, 2022.
"""

from dataclasses import dataclass
from typing import Final, Literal

BYTE: Final = 8
"""Bits of a byte."""

Form = Literal["float", "int", "uint", "complex"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How the elements of a type are stored.

    Magnitudes of a format with a sign bit are ordered as the integers that are left when that bit
    is masked: one integer maximum answers for zeros, sizes, infinities and NaN.

    Attributes:
        bits: bits of an element.
        form: what it is.
        word: numpy type of the integers that the bytes are read as; `u1` for less than a byte.
        mask: bits of the magnitude, for floats.
        top: largest magnitude that is finite, as bits.
        inf: magnitude of infinity as bits; None where the format has none. What is neither is NaN.
        exponent, mantissa, bias: fields of small formats, which numpy does not know.
        nan: the pattern that is NaN where the sign bit of zero is used for it.
    """

    bits: int
    form: Form
    word: str
    mask: int = 0
    top: int = 0
    inf: int | None = None
    exponent: int = 0
    mantissa: int = 0
    bias: int = 0
    nan: int | None = None


_F16: Final = Layout(16, "float", "u2", 0x7FFF, 0x7BFF, 0x7C00)
_BF16: Final = Layout(16, "float", "u2", 0x7FFF, 0x7F7F, 0x7F80, exponent=8, mantissa=7)
_F32: Final = Layout(32, "float", "u4", 0x7FFF_FFFF, 0x7F7F_FFFF, 0x7F80_0000)
_F64: Final = Layout(64, "float", "u8", 2**63 - 1, 0x7FEF_FFFF_FFFF_FFFF, 0x7FF0 << 48)

LAYOUTS: Final[dict[str, Layout]] = {
    "BOOL": Layout(8, "uint", "u1"),
    "F4": Layout(4, "float", "u1", 0x7, 0x7, None, 2, 1, 1),
    "F6_E2M3": Layout(6, "float", "u1", 0x1F, 0x1F, None, 2, 3, 1),
    "F6_E3M2": Layout(6, "float", "u1", 0x1F, 0x1F, None, 3, 2, 3),
    "F8_E4M3": Layout(8, "float", "u1", 0x7F, 0x7E, None, 4, 3, 7),
    "F8_E5M2": Layout(8, "float", "u1", 0x7F, 0x7B, 0x7C, 5, 2, 15),
    "F8_E4M3FNUZ": Layout(8, "float", "u1", 0xFF, 0x7F, None, 4, 3, 8, nan=0x80),
    "F8_E5M2FNUZ": Layout(8, "float", "u1", 0xFF, 0x7F, None, 5, 2, 16, nan=0x80),
    "F8_E8M0": Layout(8, "float", "u1", 0xFF, 0xFE, None, 8, 0, 127),
    "U8": Layout(8, "uint", "u1"),
    "I8": Layout(8, "int", "u1"),
    "U16": Layout(16, "uint", "u2"),
    "I16": Layout(16, "int", "u2"),
    "F16": _F16,
    "BF16": _BF16,
    "U32": Layout(32, "uint", "u4"),
    "I32": Layout(32, "int", "u4"),
    "F32": _F32,
    "C64": Layout(64, "complex", "u4", _F32.mask, _F32.top, _F32.inf),
    "U64": Layout(64, "uint", "u8"),
    "I64": Layout(64, "int", "u8"),
    "F64": _F64,
}
"""Type -> layout, for every type of the safetensors format."""

TORCH_ONLY: Final[dict[str, Layout]] = {
    "C32": Layout(32, "complex", "u2", _F16.mask, _F16.top, _F16.inf),
    "C128": Layout(128, "complex", "u8", _F64.mask, _F64.top, _F64.inf),
}
"""The same for types that only PyTorch files have."""


def layout_of(dtype: str) -> Layout | None:
    """Return the layout of a type, or None for one that is not known."""
    return LAYOUTS.get(dtype) or TORCH_ONLY.get(dtype)


def bytes_of(dtype: str, elements: int) -> int:
    """Return how many bytes that many elements take; rounded up where they end within a byte."""
    layout = layout_of(dtype)
    return -(-elements * layout.bits // 8) if layout else 0
