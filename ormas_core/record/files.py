"""Opens files of a folder that a stranger may have filled: no link, pipe or device is followed."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from ormas_core.errors import RecordChangedError, RecordFormatError

_FILE: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
_FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)

_KINDS: Final = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@contextmanager
def open_inside(folder: Path, name: str, *, steady: bool = True) -> Iterator[BinaryIO]:
    """Open the regular file `name` (parts split by `/`) of `folder`, which may itself be a link.

    Args:
        folder: where the file is.
        name: the file.
        steady: whether the file must not change while it is open.

    Raises:
        RecordFormatError: `name` leaves the folder, goes through a link, or is no regular file.
        RecordChangedError: the file was changed while it was open.
        FileNotFoundError: there is no such file.
        OSError: it cannot be opened.
    """
    try:
        descriptor = _open_below(folder, require_inside(name), name)
    except OSError as error:  # says which folder, too
        raise type(error)(error.errno, error.strerror, str(folder / name)) from None
    with os.fdopen(descriptor, "rb") as file:
        before = os.fstat(descriptor)
        _require(before.st_mode, name)
        yield file
        if steady:
            _require_unchanged(before, os.fstat(descriptor), name)


def _open_below(folder: Path, parts: list[str], name: str) -> int:
    """Return a descriptor of a regular file, reached from folder to folder without a link."""
    *above, last = parts
    at = os.open(folder, _FOLDER)
    try:
        for part in above:
            _require(os.stat(part, dir_fd=at, follow_symlinks=False).st_mode, name, folder=True)
            inner = os.open(part, _FOLDER | _NO_LINK, dir_fd=at)
            os.close(at)
            at = inner
        _require(os.stat(last, dir_fd=at, follow_symlinks=False).st_mode, name)
        return os.open(last, _FILE, dir_fd=at)
    finally:
        os.close(at)


@contextmanager
def open_named(path: Path) -> Iterator[BinaryIO]:
    """Open a file that the caller has named: a link is followed, a pipe or a device is not opened.

    Raises: as `open_inside`.
    """
    _require(path.stat().st_mode, str(path))
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        before = os.fstat(descriptor)
        _require(before.st_mode, str(path))
        yield file
        _require_unchanged(before, os.fstat(descriptor), str(path))


def require_inside(name: str) -> list[str]:
    """Return the parts of a relative path.

    Raises:
        RecordFormatError: the path is absolute, or leaves its folder, or is no plain path.
    """
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or {"\0", "\\"} & set(name):
        raise RecordFormatError(name, f"{name!r} is no path inside the folder")
    return parts


def _require(mode: int, name: str, *, folder: bool = False) -> None:
    if stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode):
        return
    kind = next((what for test, what in _KINDS if test(mode)), "something else")
    wanted = "folder" if folder else "regular file"
    raise RecordFormatError(
        name,
        f"{name} goes through {kind}, no {wanted}"
        if folder
        else f"{name} is {kind}, not a regular file",
    )


def _require_unchanged(before: os.stat_result, after: os.stat_result, name: str) -> None:
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise RecordChangedError(
            name,
            f"{name} was changed while it was being read ({before.st_size} bytes, then "
            f"{after.st_size}): the result is void. Run the command again when nobody writes.",
        )
