"""What the directory or header of one file says, whatever its format."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ormas_core.checkpoints.opened import Entry, Kind, ReadProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What is in a file.

    Attributes:
        kind: what it is.
        entries: its tensors.
        metadata: text beside them.
        globals: what its pickles would import.
        problems: what is wrong with it.
        stamp: what the file was.
    """

    kind: Kind
    entries: tuple[Entry, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    globals: tuple[str, ...] = ()
    problems: tuple[ReadProblem, ...] = ()
    stamp: tuple[int, ...] = ()
