"""Splits a file into lines without ever holding more than one that is too long."""

from collections.abc import Iterator
from typing import BinaryIO, Final

from ormas_core.errors import RecordFormatError
from ormas_core.record.strict import MAX_LINE

_BLOCK: Final = 2**18


class Lines:
    """The whole lines of a binary file, in order, without their newlines.

    Attributes:
        torn_at: once read through, the byte at which a last line without newline begins, or None.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.torn_at: int | None = None

    def __iter__(self) -> Iterator[bytes]:
        rest, end = b"", 0
        while block := self._file.read(_BLOCK):
            end += len(block)
            whole = (rest + block).split(b"\n")
            rest = whole.pop()
            yield from whole
            if len(rest) > MAX_LINE:
                raise RecordFormatError(
                    "line", f"the line at byte {end - len(rest)} is longer than {MAX_LINE} bytes"
                )
        if rest:
            self.torn_at = end - len(rest)
