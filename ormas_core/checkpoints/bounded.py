"""Bounds the work that tensors cause which are laid over each other in a file."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from ormas_core.checkpoints.opened import Entry

MOST_TIMES: Final = 16
"""How often the bytes of a file are read at most. Views of one tensor may well be saved beside it;
thousands that overlap are there to keep a reader busy for days."""


def bounded(entries: Iterable[Entry], size: int) -> Iterator[Entry]:
    """Yield the entries; those that would be read beyond `MOST_TIMES` the size as missing.

    Args:
        entries: tensors of one file, or of the files of one folder.
        size: bytes of that.
    """
    left = MOST_TIMES * size
    seen = set()
    for entry in entries:
        stretch = (entry.offset, entry.size, entry.dtype, entry.shape, entry.strides)
        if entry.missing or (entry.source is None and stretch in seen):
            yield entry
            continue
        seen.add(stretch)
        left -= entry.size
        if left >= 0:
            yield entry
            continue
        text = f"it overlaps others: reading all takes more than {MOST_TIMES} times the file"
        yield replace(entry, size=0, missing=text)
