"""Heads of a record that were sent away while the run was going on, as text."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ormas_core.errors import RecordFormatError
from ormas_core.record.files import open_named

ANCHORS_TAG: Final = "ormas.record.anchors."
"""Prefix of the MLflow tags that hold heads; the run's first 8 digits and a number follow."""

_ENTRY: Final = re.compile(r"([1-9][0-9]{0,14}):([0-9a-f]{64})")
_LONGEST: Final = 16 * 2**20


def parse_heads(texts: Iterable[str]) -> dict[int, str]:
    """Return number of lines -> head, from texts of `LINES:HEAD` entries split by white space.

    Raises:
        RecordFormatError: an entry is something else, or two name one line and different heads.
    """
    heads: dict[int, str] = {}
    for text in texts:
        for entry in text.split():
            found = _ENTRY.fullmatch(entry)
            if found is None:
                raise RecordFormatError(
                    "witness", f"A witness holds LINES:HEAD entries; found {entry[:80]!r}."
                )
            lines, head = int(found[1]), found[2]
            if heads.setdefault(lines, head) != head:
                raise RecordFormatError(
                    "witness",
                    f"The witness has two heads for line {lines}: {heads[lines]}, {head}.",
                )
    return heads


def read_heads(path: str | os.PathLike[str]) -> dict[int, str]:
    """Return the heads that a file of them holds.

    Raises:
        RecordFormatError: it is no regular file of heads, or longer than 16 MiB, which is some
            200,000 anchors.
        OSError: it cannot be read.
    """
    with open_named(Path(path)) as file:
        data = file.read(_LONGEST + 1)
    if len(data) > _LONGEST:
        raise RecordFormatError(str(path), f"{path} is longer than {_LONGEST} bytes.")
    return parse_heads([data.decode("ascii", "backslashreplace")])
