"""Opens files that a stranger may have filled: inside their folder only, and never a pipe."""

import os
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ormas_core.errors import CheckpointError

_READ: Final = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)

MAX_SETTINGS: Final = 64 * 2**20
"""No settings file, index or tokenizer is larger than this."""

MAX_PARTS: Final = 4_000_000
"""Most brackets in one: empty lists take twenty times their size in memory."""


def stamp_of(found: os.stat_result) -> tuple[int, ...]:
    """Return what tells a file from another, or from itself after a change."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def inside(folder: Path, name: str) -> Path:
    """Return the path of the file `name` of a folder.

    A link may lead to another file of the folder, or from a snapshot of a hub cache to the blobs
    beside it.

    Raises:
        CheckpointError: `name` is absolute or leads out of the folder.
        OSError: there is no such file.
    """
    parts = name.replace("\\", "/").split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in name or Path(name).is_absolute():
        raise CheckpointError(name, f"{name!r} leads out of the folder; it was not opened")
    path, root = folder / name, folder.resolve()
    real = path.resolve(strict=True)
    roots = [root]
    if root.parent.name == "snapshots":
        roots.append(root.parent.parent / "blobs")
    if not any(real.is_relative_to(allowed) for allowed in roots):
        raise CheckpointError(
            name, f"{name!r} is a link to {real}, outside the folder; it was not opened"
        )
    return path


def open_regular(path: Path) -> int:
    """Return a descriptor of a regular file.

    Raises:
        CheckpointError: it is a folder, a pipe or a device.
        OSError: it cannot be opened.
    """
    _require_regular(path.stat().st_mode, path)
    descriptor = os.open(path, _READ)
    try:
        _require_regular(os.fstat(descriptor).st_mode, path)
    except CheckpointError:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
        raise CheckpointError(path.name, f"{path.name} is {what}, no regular file; not opened")


class Opened:
    """A regular file, read at given places by any number of threads.

    Attributes:
        size: bytes in it when it was opened.
        stamp: what it was then.
    """

    def __init__(self, path: Path) -> None:
        """Raises: as `open_regular`."""
        self._descriptor = open_regular(path)
        found = os.fstat(self._descriptor)
        self.size, self.stamp = found.st_size, stamp_of(found)
        self._lock = threading.Lock()

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes; fewer at the end of the file. Nothing is asked for beyond it.

        Raises:
            OSError: the file cannot be read.
        """
        found = bytearray(max(0, min(size, self.size - offset)))
        return bytes(found[: self.read_into(found, offset)])

    def read_into(self, buffer: Any, offset: int) -> int:
        """Fill a buffer of bytes; return how many there were.

        Raises:
            OSError: the file cannot be read.
        """
        if not 0 <= offset <= self.size:
            return 0
        view, done = memoryview(buffer), 0
        while done < len(view):
            count = self._some(view[done:], offset + done)
            if count == 0:
                break
            done += count
        return done

    def _some(self, view: memoryview, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._descriptor, [view], offset)
        with self._lock:
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            found = os.read(self._descriptor, len(view))
        view[: len(found)] = found
        return len(found)

    def close(self) -> None:
        """Close it; once is enough."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_small(folder: Path, name: str) -> bytes:
    """Return what a settings file of the folder holds.

    Raises:
        CheckpointError: it is too large, no regular file, or leads out of the folder.
        OSError: it cannot be read.
    """
    with Opened(inside(folder, name)) as file:
        if file.size > MAX_SETTINGS:
            raise CheckpointError(name, f"{name} has {file.size:,} bytes, too many for settings")
        raw = file.read(0, file.size)
    parts = raw.count(b"{") + raw.count(b"[")
    if parts > MAX_PARTS:
        raise CheckpointError(name, f"{name} has {parts:,} brackets, too many for settings")
    return raw


def read_settings(folder: Path, name: str) -> Mapping[str, Any] | None:
    """Return the JSON object in a file of the folder; None if there is no such file.

    Raises:
        CheckpointError: it is no JSON object, too large, or leads out of the folder.
        OSError: it cannot be read.
    """
    import json

    try:
        raw = read_small(folder, name)
    except FileNotFoundError:
        return None
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(name, f"{name} is no JSON: {error!s:.200}") from None
    if not isinstance(found, dict):
        raise CheckpointError(name, f"{name} holds no JSON object but a {type(found).__name__}")
    return found
