"""PyTorch zip files: their pickle, and where in the file their storages are."""

import zipfile
from collections import Counter
from collections.abc import Mapping
from io import RawIOBase
from typing import Final

from ormas_core.checkpoints.files import Opened
from ormas_core.checkpoints.listing import Listing
from ormas_core.checkpoints.opened import Kind, ReadProblem
from ormas_core.checkpoints.pickled import MAX_PICKLE, list_pickle

_LOCAL: Final = b"PK\x03\x04"
_LOCAL_SIZE: Final = 30
_MAX_READ: Final = 32 * 2**20
"""Largest directory, in bytes: a third of a million members, ten times what a model has."""


_MOST_PICKLES: Final = 8
_OBJECTS: Final = frozenset(("dangerous-objects", "refused-objects"))


def list_zip(file: Opened, name: str) -> Listing:
    """Return the tensors of a zip file that `torch.save` or `torch.jit.save` has written."""
    try:
        with zipfile.ZipFile(_Stream(file)) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        return _refused(
            Kind.ZIP,
            "truncated",
            name,
            f"It begins as a zip file and has no directory at its end ({error!s:.100}): it was cut "
            "off, when it was downloaded or because the disk was full. Save or download it again.",
        )
    members = {info.filename: info for info in infos}
    if front := min((info.header_offset for info in infos), default=0):
        text = (
            f"Its directory leaves out the first {front:,} bytes, as of several zip files in a "
            "row. A part of a torch.distributed.checkpoint folder is such a file: check the folder."
        )
        return _refused(Kind.ZIP, "unsupported", name, text)
    if len(members) < len(infos):
        return _ambiguous(file, infos, name)
    pickle = next((inner for inner in members if _is_data(inner)), None)
    if pickle is None:
        return _without_pickle(members, name)
    root = pickle.removesuffix("data.pkl")
    kind = Kind.TORCHSCRIPT if f"{root}constants.pkl" in members else Kind.ZIP
    if f"{root}byteorder" in members and _content(file, members[f"{root}byteorder"]) == b"big":
        text = "Its numbers are big-endian, which is not read here. Save it on a usual machine."
        return _refused(kind, "unsupported", name, text)

    def place(key: str) -> tuple[int, int] | str:
        info = members.get(f"{root}data/{key}") or members.get(f"{root}tensors/{key}")
        if info is None:
            return f"its storage data/{key:.80} is not in the file"
        return _place(file, info)

    raw = _content(file, members[pickle])
    if isinstance(raw, str):
        return _refused(kind, "malformed", name, f"Its pickle cannot be read: {raw}.")
    return list_pickle(kind, raw, name, file.size, place)


def _ambiguous(file: Opened, infos: list[zipfile.ZipInfo], name: str) -> Listing:
    """Return what is said of a file with two members of one name: no tensor, and all its code."""
    twice = next(inner for inner, n in Counter(i.filename for i in infos).items() if n > 1)
    text = f"Two of its members are called {twice!r:.90}: which of them is loaded is left open."
    raws = [_content(file, info) for info in infos if _is_data(info.filename)]
    found = [
        list_pickle(Kind.ZIP, raw, name, file.size, lambda _: text)
        for raw in raws[:_MOST_PICKLES]
        if isinstance(raw, bytes)
    ]
    problems = [p for one in found for p in one.problems if p.code in _OBJECTS]
    return Listing(
        kind=Kind.ZIP,
        problems=(ReadProblem(code="malformed", where=name, detail=text), *problems),
        globals=tuple(sorted({inner for one in found for inner in one.globals})),
    )


def _is_data(name: str) -> bool:
    return name == "data.pkl" or (name.count("/") == 1 and name.endswith("/data.pkl"))


def _place(file: Opened, info: zipfile.ZipInfo) -> tuple[int, int] | str:
    """Return where the bytes of a member are, or why they cannot be read."""
    if info.compress_type != zipfile.ZIP_STORED:
        return f"{info.filename:.80} is compressed, as PyTorch never does"
    if info.flag_bits & 0x1:
        return f"{info.filename:.80} is encrypted"
    local = file.read(info.header_offset, _LOCAL_SIZE)
    if len(local) < _LOCAL_SIZE or not local.startswith(_LOCAL):
        return f"{info.filename:.80} is not where the directory says"
    extra = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
    start = info.header_offset + _LOCAL_SIZE + extra
    if start + info.file_size > file.size:
        return f"{info.filename:.80} goes beyond the end of the file"
    return start, info.file_size


def _content(file: Opened, info: zipfile.ZipInfo) -> bytes | str:
    """Return a small member, or why it cannot be read."""
    place = _place(file, info)
    if isinstance(place, str):
        return place
    start, size = place
    return file.read(start, size) if size <= MAX_PICKLE else f"it has {size:,} bytes"


def _without_pickle(members: Mapping[str, zipfile.ZipInfo], name: str) -> Listing:
    if any(inner.endswith(".npy") for inner in members):
        text = "It is a NumPy archive (.npz). Save its arrays as safetensors to have them checked."
        return _refused(Kind.NUMPY, "unsupported", name, text)
    some = ", ".join(sorted(members)[:3])[:200]
    text = (
        f"It is a zip file without data.pkl, so not one of PyTorch. It holds: {some or 'nothing'}."
    )
    return _refused(Kind.UNKNOWN, "not-a-checkpoint", name, text)


def _refused(kind: Kind, code: str, name: str, detail: str) -> Listing:
    return Listing(kind=kind, problems=(ReadProblem(code=code, where=name, detail=detail),))


class _Stream(RawIOBase):
    """A file as a stream, of which nothing is asked that it does not have."""

    def __init__(self, file: Opened) -> None:
        super().__init__()
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._file.size)[whence]
        if self._at < 0:
            raise ValueError("a place before the beginning of the file")
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        left = max(0, self._file.size - self._at)
        size = left if size < 0 else min(size, left)
        if size > _MAX_READ:
            raise OSError(f"a directory of {size:,} bytes")
        found = self._file.read(self._at, size)
        self._at += len(found)
        return found
