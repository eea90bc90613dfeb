"""Compares the files of a model with what a seal, or the record itself, says of them."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from ormas_core.errors import RecordFormatError
from ormas_core.record.files import open_inside, open_named
from ormas_core.record.models import MAX_FILES, digest_of, folder_files
from ormas_core.record.statement import SealedModel
from ormas_core.terms import SavedFile


def difference_inside(run: Path, model: SealedModel, ignored: tuple[str, ...]) -> str:
    """Return how a model in the run folder differs; empty if it does not. No link is followed.

    Raises:
        RecordChangedError: a file was changed while it was being read.
    """
    for sealed in model.files:
        try:
            with open_inside(run, sealed.name) as file:
                found = _differs(
                    sealed, os.fstat(file.fileno()).st_size, lambda: digest_of(file)[1]
                )
        except FileNotFoundError:
            found = f"{sealed.name} is missing"
        except (RecordFormatError, OSError) as error:
            found = f"{error!s:.300}"
        if found:
            return found
    names = {file.name for file in model.files}
    if model.folder:
        for name in _names_below(run, model.name, frozenset(ignored)):
            if name not in names:
                return f"{name} is there and is not sealed"
    return ""


def difference(path: Path, model: SealedModel, ignored: tuple[str, ...]) -> str:
    """Return how the model at `path`, which the caller names, differs; empty if it does not.

    Raises:
        RecordChangedError: a file was changed while it was being read.
        FileNotFoundError: there is nothing at `path`.
    """
    path.stat()
    if path.is_dir() != model.folder:
        kinds = ("file", "folder")
        return f"{path} is a {kinds[path.is_dir()]}, and {model.name} a {kinds[model.folder]}"
    try:
        if not model.folder:
            return _file_difference(path, model.files[0], str(path))
        there = {f"{model.name}/{name}": file for file, name in folder_files(path, ignored)}
        for sealed in model.files:
            if sealed.name not in there:
                return f"{sealed.name} is missing in {path}"
            found = _file_difference(there.pop(sealed.name), sealed, sealed.name)
            if found:
                return found
    except (RecordFormatError, OSError) as error:
        return f"{error!s:.300}"
    return f"{min(there)} is there and is not sealed" if there else ""


def _file_difference(path: Path, sealed: SavedFile, shown: str) -> str:
    with open_named(path) as file:
        size = os.fstat(file.fileno()).st_size
        found = _differs(sealed, size, lambda: digest_of(file)[1])
    return found.replace(sealed.name, shown, 1)


def _differs(sealed: SavedFile, size: int, digest: Callable[[], str]) -> str:
    if size != sealed.bytes:
        return f"{sealed.name} has {size} bytes; sealed are {sealed.bytes}"
    found = digest()
    if found != sealed.sha256:
        return f"{sealed.name} has the digest {found[:12]}; sealed is {sealed.sha256[:12]}"
    return ""


def _names_below(run: Path, name: str, ignored: frozenset[str]) -> Iterator[str]:
    """Yield everything below a folder in the run folder that is no folder; follow no link."""
    waiting, seen = [name], 0
    while waiting:
        above = waiting.pop()
        seen += 1
        if seen > MAX_FILES:
            raise RecordFormatError(name, f"{name} has more than {MAX_FILES} folders")
        with os.scandir(run / above) as entries:
            for entry in entries:
                if entry.name in ignored:
                    continue
                inner = f"{above}/{entry.name}"
                if stat.S_ISDIR(entry.stat(follow_symlinks=False).st_mode):
                    waiting.append(inner)
                else:
                    yield inner
