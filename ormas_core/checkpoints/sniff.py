"""What a file is, by its first bytes and never by its name."""

import re
from dataclasses import dataclass
from typing import Final

from ormas_core.checkpoints.header import MAX_HEADER
from ormas_core.checkpoints.opened import Kind

LOOKED_AT: Final = 4096
"""Bytes that are needed."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a file is.

    Attributes:
        kind: that.
        detail: what was seen, and what to do about it; empty for what can be read.
    """

    kind: Kind
    detail: str = ""


_CONVERT: Final = "Save the weights as safetensors to have them checked."
_STARTS: Final[tuple[tuple[bytes, Kind, str], ...]] = (
    (b"GGUF", Kind.GGUF, "a GGUF file, for llama.cpp. Load it in transformers with gguf_file=."),
    (b"\x89HDF\r\n\x1a\n", Kind.HDF5, "an HDF5 file, as Keras writes."),
    (b"\x93NUMPY", Kind.NUMPY, "a NumPy array."),
    (b"\x1f\x8b", Kind.UNKNOWN, "compressed with gzip."),
    (b"\x28\xb5\x2f\xfd", Kind.UNKNOWN, "compressed with zstd."),
    (b"BZh", Kind.UNKNOWN, "compressed with bzip2."),
    (b"\xfd7zXZ", Kind.UNKNOWN, "compressed with xz."),
    (b"7z\xbc\xaf", Kind.UNKNOWN, "a 7-Zip archive."),
    (b"%PDF", Kind.UNKNOWN, "a PDF document."),
    (b"\x7fELF", Kind.UNKNOWN, "a program."),
)  # fmt: skip
_LENGTH: Final = 8
_TAR_HEADER: Final = 512

LEGACY_START: Final = bytes.fromhex("8002 8a0a 6cfc 9c46 f920 6aa8 5019 2e")
"""How a file of `torch.save` before version 1.6 begins: a pickle of its magic number."""

_POINTER: Final = b"version https://git-lfs"
_OID: Final = re.compile(rb"oid (sha256:[0-9a-f]{64})")
_SIZE: Final = re.compile(rb"size ([0-9]{1,20})")
_HTML: Final = re.compile(
    rb"\s*(<!--.*?-->\s*)*<(!doctype html|html|head|\?xml|error)", re.I | re.S
)
_ONNX: Final = re.compile(rb"\x08[\x01-\x20]\x12")
_PICKLE: Final = re.compile(rb"\x80[\x02-\x05]|[(\]}c]")
_BRACE: Final = re.compile(rb"[ \t\r\n]*\{")
_TAR_AT: Final = 257


def sniff(first: bytes, size: int) -> Look:
    """Return what a file is.

    Args:
        first: its first `LOOKED_AT` bytes.
        size: how many bytes it has.
    """
    if size == 0:
        return Look(Kind.EMPTY, "It is empty: nothing was written, or nothing downloaded.")
    if first.startswith(_POINTER):
        return Look(Kind.POINTER, _pointer(first, size))
    for start, kind, detail in _STARTS:
        if first.startswith(start):
            advice = "Unpack it first." if kind is Kind.UNKNOWN else _CONVERT
            return Look(kind, f"It is {detail} {advice}")
    if first.startswith(b"PK\x03\x04"):
        return Look(Kind.ZIP)
    if first.startswith(LEGACY_START):
        return Look(Kind.LEGACY)
    if _is_safetensors(first, size):
        return Look(Kind.SAFETENSORS)
    if _HTML.match(first):
        title = re.search(rb"<title>(.{0,100}?)</title>", first, re.I | re.S)
        shown = f" ({title[1].decode(errors='replace').strip()!r})" if title else ""
        text = "It is a web page, most likely that of an error or a login. Download the file again."
        return Look(Kind.HTML, f"{text[:16]}{shown}{text[16:]}")
    if not any(first[:8]):
        return _zeroed(first, size)
    return _rarer(first, size)


def _rarer(first: bytes, size: int) -> Look:
    if first[_TAR_AT : _TAR_AT + 5] == b"ustar" or _old_tar(first):
        return Look(
            Kind.TAR,
            "It is a tar archive, as PyTorch wrote before version 0.1.10. Load it with torch.load "
            "on a machine that may run its code, and save the state_dict as safetensors.",
        )
    if _ONNX.match(first):
        return Look(Kind.ONNX, "It looks like an ONNX model. Check the weights it was made from.")
    if _BRACE.match(first):
        return Look(Kind.UNKNOWN, "It is text that looks like JSON, no weights.")
    if _PICKLE.match(first):
        return Look(Kind.PICKLE)
    if size < _LENGTH:
        return Look(Kind.UNKNOWN, f"It has {size} bytes, too few for any format.")
    return Look(
        Kind.UNKNOWN, f"Its first bytes, {first[:16].hex(' ')}, are of no format known here."
    )


def _is_safetensors(first: bytes, size: int) -> bool:
    """Whether eight bytes that could be the length of a header are followed by a brace."""
    if size < _LENGTH or not _BRACE.match(first, 8):
        return False
    length = int.from_bytes(first[:8], "little")
    # A length that is too large is that of a broken file of this format: its reader says so.
    return length > 0 and (length <= MAX_HEADER or first[8:10] == b'{"')


def _old_tar(first: bytes) -> bool:
    """Whether it is a tar header without the later mark: octal numbers where they belong."""
    return (
        len(first) >= _TAR_HEADER
        and re.fullmatch(rb"[0-7 ]{6,8}[ \0]{0,2}", first[100:108]) is not None
        and re.fullmatch(rb"[0-7 ]{6,8}[ \0]{0,2}", first[148:156]) is not None
        and first[:1].isalnum()
    )


def _zeroed(first: bytes, size: int) -> Look:
    if _BRACE.match(first, 8):
        return Look(
            Kind.ZEROED,
            "Its first 8 bytes, the length of a safetensors header, are zero, though the header "
            "follows: the file was not written to its end. Save or download it again.",
        )
    what = "Its beginning is" if any(first) else f"Its first {len(first):,} bytes are"
    return Look(
        Kind.ZEROED,
        f"{what} zero: space of {size:,} bytes was set aside and not filled. Save or download it "
        "again.",
    )


def _pointer(first: bytes, size: int) -> str:
    oid, length = _OID.search(first), _SIZE.search(first)
    digest = oid[1].decode() if oid else "an unknown digest"
    expected = f"{int(length[1]):,} bytes" if length else "an unknown size"
    return (
        f"It is a Git LFS pointer of {size} bytes, not the file itself, which has {expected} and "
        f"{digest}. Fetch it with: git lfs pull"
    )
