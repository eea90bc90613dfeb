"""Splits a file into lines without ever holding more than one that is too long."""

import hashlib
from collections.abc import Iterator
from typing import BinaryIO, Final

from ormas_core.errors import RecordFormatError
from ormas_core.record.strict import MAX_LINE

_BLOCK: Final = 2**16


class Lines:
    """The whole lines of a binary file, in order, without their newlines.

    Attributes:
        torn_at: once read through, the byte at which a last line without newline begins, or None.
        end: bytes read.
    """

    def __init__(self, file: BinaryIO, *, hashed: bool = False) -> None:
        self._file = file
        self._digest = hashlib.sha256() if hashed else None
        self.torn_at: int | None = None
        self.end = 0

    @property
    def sha256(self) -> str:
        """Digest of all bytes read; empty unless it was asked for."""
        return self._digest.hexdigest() if self._digest is not None else ""

    def __iter__(self) -> Iterator[bytes]:
        parts: list[bytes] = []
        length = 0  # of the line that is not whole yet
        while block := self._file.read(_BLOCK):
            self.end += len(block)
            if self._digest is not None:
                self._digest.update(block)
            whole = block.split(b"\n")
            if len(whole) > 1:
                whole[0] = b"".join((*parts, whole[0]))
                parts, length = [], 0
            last = whole.pop()
            yield from whole
            parts.append(last)
            length += len(last)
            if length > MAX_LINE:
                at = self.end - length
                raise RecordFormatError(
                    "line", f"it begins at byte {at} and is over {MAX_LINE} long"
                )
        if length:
            self.torn_at = self.end - length
