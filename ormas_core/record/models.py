"""The files of a model: which they are, and their digests."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from ormas_core.errors import RecordFormatError
from ormas_core.record.files import open_named
from ormas_core.terms import SavedFile

IGNORED: Final = (".git", ".gitattributes", ".gitignore", ".cache")
"""Names in a model folder that are no part of the model; those that a seal repeats count there."""

MAX_FILES: Final = 10_000
_BLOCK: Final = 2**20


def model_files(
    path: str | os.PathLike[str], run: str | os.PathLike[str] | None = None
) -> tuple[SavedFile, ...]:
    """Return every file of a model, which is a file or a folder, with its size and SHA-256.

    Names start with that of the file or folder itself. A link is followed where it stays in the
    folder, or leads from a snapshot of a hub cache into the blobs beside it.

    Args:
        path: the model.
        run: the run folder that is to name it, which must not be a part of it.

    Raises:
        RecordFormatError: nothing is there to hash, a link leads elsewhere, a name cannot be
            recorded, the run folder is in it, or there is something that is neither file nor
            folder.
        RecordChangedError: a file was changed while it was being read.
        OSError: a file cannot be read.
    """
    given = Path(path)
    name = Path(os.path.abspath(given)).name  # noqa: PTH100 - a link keeps the name it was given by
    _require_name(name)
    if not given.is_dir():
        return (_saved(given, name),)
    if run is not None and Path(run).resolve().is_relative_to(given.resolve()):
        raise RecordFormatError(
            str(path),
            f"{path} holds the run folder {run}, whose files change when it is sealed. Name the "
            "model's own files or folder.",
        )
    found = [_saved(file, f"{name}/{inner}") for file, inner in folder_files(given, IGNORED)]
    if not found:
        raise RecordFormatError(
            str(path), f"{path} holds no file. Name the model's file or folder."
        )
    return tuple(found)


def folder_files(folder: Path, ignored: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    """Yield the files of a model folder, and their names in it, in order of names.

    Raises: as `model_files`.
    """
    root = folder.resolve()
    roots = [root]
    if root.parent.name == "snapshots":
        roots.append(root.parent.parent / "blobs")
    count = 0
    for above, folders, names in os.walk(root, onerror=_raise):
        folders[:] = sorted(set(folders) - set(ignored))
        for linked in (name for name in folders if (Path(above) / name).is_symlink()):
            raise RecordFormatError(linked, f"{Path(above) / linked} is a link to a folder")
        for name in sorted(set(names) - set(ignored)):
            path = Path(above) / name
            if path.is_symlink():
                _require_within(path, roots)
            count += 1
            if count > MAX_FILES:
                raise RecordFormatError(str(folder), f"{folder} has more than {MAX_FILES} files")
            inner = path.relative_to(root).as_posix()
            _require_name(inner)
            yield path, inner


def digest_of(file: BinaryIO) -> tuple[int, str]:
    """Return the size and the SHA-256 of what is left to read of a file."""
    found, size = hashlib.sha256(), 0
    while block := file.read(_BLOCK):
        found.update(block)
        size += len(block)
    return size, found.hexdigest()


def _require_name(name: str) -> None:
    """Refuse a name that is no text or reads as another path elsewhere: no seal can bear it."""
    try:
        name.encode()
        fine = "\\" not in name
    except UnicodeEncodeError:
        fine = False
    if not fine:
        raise RecordFormatError(
            name,
            f"The file name {name!r} cannot be recorded: it holds a backslash, or bytes that "
            "are no UTF-8. Rename the file.",
        )


def _saved(path: Path, name: str) -> SavedFile:
    with open_named(path) as file:
        size, digest = digest_of(file)
    return SavedFile(name=name, bytes=size, sha256=digest)


def _require_within(link: Path, roots: list[Path]) -> None:
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise RecordFormatError(
            str(link), f"{link} is a link that leads nowhere: {error}"
        ) from None
    if not any(target.is_relative_to(root) for root in roots):
        raise RecordFormatError(
            str(link),
            f"{link} leads to {target}, outside of the model's folder. Name the folder that holds "
            "the files themselves.",
        )


def _raise(error: OSError) -> None:
    raise error
