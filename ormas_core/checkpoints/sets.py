"""Puts the files of one model together."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ormas_core.checkpoints import index as indexes
from ormas_core.checkpoints.files import inside
from ormas_core.checkpoints.listing import Listing
from ormas_core.checkpoints.opened import Checkpoint, Entry, Kind, ReadProblem
from ormas_core.checkpoints.packed import mark_packed
from ormas_core.checkpoints.single import list_file
from ormas_core.errors import CheckpointError

_BESIDE = frozenset(
    ("not-judged", "config", "incomplete", "refused-objects", "dangerous-objects", "no-index")
)
"""Problems that do not explain why there is no tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSet:
    """The files that make up one model.

    Attributes:
        path: what was opened.
        folder: where the files are.
        files: their names in it.
        kind: what they are together; None for a single file, which says so itself.
        index: the parsed index, or None.
        index_name: its name.
        problems: what was found so far.
        settings: `config` and `adapter` of the result.
        strays: other weight files of the folder.
    """

    path: Path
    folder: Path
    files: tuple[str, ...]
    kind: Kind | None = None
    index: Mapping[str, Any] | None = None
    index_name: str = ""
    problems: tuple[ReadProblem, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    strays: tuple[str, ...] = ()


def assemble(files: FileSet, *, trust: bool) -> Checkpoint:
    """Return the checkpoint that some files are."""
    listings = {file: _listed(files, file, trust=trust) for file in files.files}
    problems = [*files.problems, *(p for one in listings.values() for p in one.problems)]
    entries = [entry for listing in listings.values() for entry in listing.entries]
    if files.index is not None:
        named = indexes.weight_map(files.index, files.index_name)
        problems += indexes.disagreements(named, listings, files.index_name)
        if not problems:
            problems += indexes.size_problem(files.index, entries, files.index_name)
    problems += indexes.repeated(listings, files.path.name)
    entries = mark_packed(entries, files.settings.get("config"))
    if not entries and all(problem.code in _BESIDE for problem in problems):
        text = "It holds not a single tensor. What was meant to be saved has to be saved again."
        problems.append(ReadProblem(code="no-tensors", where=files.path.name, detail=text))
    kinds = {listing.kind for listing in listings.values()}
    return Checkpoint(
        path=files.path,
        folder=files.folder,
        kind=files.kind or (kinds.pop() if len(kinds) == 1 else Kind.UNKNOWN),
        files=files.files,
        entries=tuple(_shared(entries)),
        size=sum(entry.size for entry in entries if not entry.missing),
        metadata={k: v for one in listings.values() for k, v in one.metadata.items()},
        index=files.index,
        globals=tuple(sorted({name for one in listings.values() for name in one.globals})),
        problems=tuple(problems),
        stamps={file: listing.stamp for file, listing in listings.items() if listing.stamp},
        strays=files.strays,
        **files.settings,
    )


def _listed(files: FileSet, file: str, *, trust: bool) -> Listing:
    path = files.path
    if files.path == files.folder or files.index is not None:
        try:
            path = inside(files.folder, file)
        except CheckpointError as error:
            problem = ReadProblem(code="unsafe-path", where=file, detail=f"{error}.")
            return Listing(kind=Kind.UNKNOWN, problems=(problem,))
        except (OSError, RuntimeError) as error:
            problem = ReadProblem(code="unreadable", where=file, detail=f"{error!s:.200}")
            return Listing(kind=Kind.UNKNOWN, problems=(problem,))
    listing = list_file(path, file)
    if trust and listing.kind in (Kind.ZIP, Kind.LEGACY, Kind.TAR, Kind.PICKLE):
        from ormas_core.checkpoints.trusted import complete

        return complete(listing, path, file)
    return listing


def _shared(entries: list[Entry]) -> list[Entry]:
    """Name, for each tensor that is the same stretch of a file as an earlier one, that one."""
    seen: dict[tuple[Any, ...], str] = {}
    out = []
    for entry in entries:
        key = (entry.file, entry.offset, entry.size, entry.dtype, entry.shape, entry.strides)
        first = entry.name
        if entry.size and entry.source is None and not entry.missing:
            first = seen.setdefault(key, entry.name)
        out.append(entry if first == entry.name else replace(entry, shares=first))
    return out
