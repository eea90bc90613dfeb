"""The index of a sharded model, and how far its shards agree with it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ormas_core.checkpoints.files import inside
from ormas_core.checkpoints.listing import Listing
from ormas_core.checkpoints.opened import Entry, ReadProblem
from ormas_core.errors import CheckpointError

_SHOWN = 3


def weight_map(index: Mapping[str, Any], name: str) -> Mapping[str, str]:
    """Return tensor name -> file, as an index says.

    Raises:
        CheckpointError: it says nothing of the kind.
    """
    found = index.get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(file, str) for file in found.values()):
        raise CheckpointError(name, f"{name} has no weight_map from tensors to files")
    return found


def shards_of(
    folder: Path, named: Mapping[str, str], index: str
) -> tuple[tuple[str, ...], tuple[ReadProblem, ...]]:
    """Return the files that an index names and that are there, and what is wrong with the rest."""
    files: list[str] = []
    problems = []
    for file in sorted(set(named.values())):
        try:
            inside(folder, file)
        except CheckpointError as error:
            problems.append(_problem("unsafe-path", index, f"The index names it: {error}."))
        except (OSError, RuntimeError, ValueError):
            count = sum(other == file for other in named.values())
            text = f"{index} names {file:.200}, which is not there: {count} tensors are missing."
            problems.append(_problem("missing-file", file, text))
        else:
            files.append(file)
    return tuple(files), tuple(problems)


def disagreements(
    named: Mapping[str, str], listings: Mapping[str, Listing], index: str
) -> tuple[ReadProblem, ...]:
    """Return where an index and its shards contradict each other."""
    holders: dict[str, list[str]] = {}
    for file, listing in listings.items():
        for entry in listing.entries:
            holders.setdefault(entry.name, []).append(file)
    whole = {file for file, listing in listings.items() if listing.entries}
    missing = [n for n, file in named.items() if file in whole and n not in holders]
    misplaced = [n for n, file in named.items() if n in holders and file not in holders[n]]
    orphans = [n for n in holders if n not in named]
    problems = []
    for code, names, text in (
        ("missing-tensor", missing, "the index names them, their shards do not hold them"),
        ("misplaced-tensor", misplaced, "the index names another shard than the one they are in"),
        ("orphan-tensor", orphans, "a shard holds them, the index does not name them"),
    ):
        if names:
            detail = f"{len(names)} tensors: {text}. {some(names)}."
            problems.append(_problem(code, index, detail))
    return tuple(problems)


def repeated(listings: Mapping[str, Listing], where: str) -> tuple[ReadProblem, ...]:
    """Return a problem if two files hold tensors of one name."""
    seen: dict[str, str] = {}
    twice: list[str] = []
    for file, listing in listings.items():
        twice += [
            f"{entry.name} in {seen[entry.name]} and {file}"
            for entry in listing.entries
            if seen.setdefault(entry.name, file) != file
        ]
    if not twice:
        return ()
    text = f"{len(twice)} tensors are in two files; a loader takes either. {some(twice)}."
    return (_problem("duplicate-tensor", where, text),)


def size_problem(
    index: Mapping[str, Any], entries: Sequence[Entry], name: str
) -> tuple[ReadProblem, ...]:
    """Return a problem if the total size that an index states is not that of the tensors."""
    metadata = index.get("metadata")
    stated = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(stated, bool) or not isinstance(stated, int | float):
        return ()
    found = sum(entry.size for entry in entries)
    if found == stated:
        return ()
    text = f"{name} states {stated:,} bytes of tensors, there are {found:,}."
    return (_problem("index-size", name, text),)


def some(names: Sequence[str]) -> str:
    """Return the first few of many names, for a message."""
    shown, more = ", ".join(name[:120] for name in names[:_SHOWN]), len(names) - _SHOWN
    return shown + (f" and {more} more" if more > 0 else "")


def _problem(code: str, where: str, detail: str) -> ReadProblem:
    return ReadProblem(code=code, where=where, detail=detail)
