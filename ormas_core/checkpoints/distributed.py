"""Folders of `torch.distributed.checkpoint`, read through torch's own reader, without a group.

That reader unpickles the file `.metadata`, which could run code. So it is looked through first, as
text, and opened only if it names nothing but what such a file consists of.
"""

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from ormas_core.checkpoints.bounded import bounded
from ormas_core.checkpoints.dtypes import bytes_of, layout_of
from ormas_core.checkpoints.files import Opened, inside
from ormas_core.checkpoints.opened import Checkpoint, Entry, Kind, ReadProblem
from ormas_core.checkpoints.pickles import PickleFormatError, read_pickle
from ormas_core.checkpoints.weights import DTYPES, PLAIN
from ormas_core.errors import CheckpointError

METADATA: Final = ".metadata"
_MODULE: Final = "torch.distributed.checkpoint"
_PARTS: Final = PLAIN | {
    f"{_MODULE}.metadata.BytesStorageMetadata",
    f"{_MODULE}.metadata.ChunkStorageMetadata",
    f"{_MODULE}.metadata.Metadata",
    f"{_MODULE}.metadata.MetadataIndex",
    f"{_MODULE}.metadata.StorageMeta",
    f"{_MODULE}.metadata.TensorProperties",
    f"{_MODULE}.metadata.TensorStorageMetadata",
    f"{_MODULE}.metadata._MEM_FORMAT_ENCODING",
    f"{_MODULE}.filesystem._StorageInfo",
    "pathlib.PosixPath",
    "pathlib.WindowsPath",
}
"""What a `.metadata` consists of: whole names, since a prefix would let `metadata.os.system` in."""

_ONE_AT_A_TIME: Final = threading.Lock()
"""Filters of warnings belong to the whole process."""

_MAX_METADATA: Final = 256 * 2**20
_ASIDE: Final = ("optim", "lr_scheduler", "rng", "dataloader", "train_state")


def open_distributed(folder: Path) -> Checkpoint:
    """Return what is in a folder that has a `.metadata`, or parts that it should list."""
    empty = Checkpoint(path=folder, folder=folder, kind=Kind.DISTRIBUTED)
    try:
        with Opened(inside(folder, METADATA)) as file:
            stamp = file.stamp
            raw = file.read(0, _MAX_METADATA)
        names = _require_harmless(raw)
        return replace(_read(folder, empty), globals=names, stamps={METADATA: stamp})
    except FileNotFoundError:
        text = "It lists the tensors of the parts, and is written last: the save was not finished."
        return replace(empty, problems=(_problem("missing-file", METADATA, text),))
    except (CheckpointError, OSError) as error:
        return replace(empty, problems=(_problem("unreadable", METADATA, f"{error!s:.400}"),))


def _require_harmless(raw: bytes) -> tuple[str, ...]:
    """Return what a `.metadata` would import.

    Raises:
        CheckpointError: it is damaged, or names more than such a file needs.
    """
    names: set[str] = set()
    try:
        read_pickle(BytesIO(raw), lambda call: call, names)
    except PickleFormatError as error:
        raise CheckpointError(METADATA, f"The file cannot be read: {error}") from None
    strange = sorted(names - _PARTS)
    if strange:
        raise CheckpointError(
            METADATA,
            f"The file would import {', '.join(strange)[:300]}, which no such file needs: not "
            "opened, since that could run code.",
        )
    return tuple(sorted(names))


def _read(folder: Path, empty: Checkpoint) -> Checkpoint:
    try:
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    except ImportError as error:
        raise CheckpointError(
            str(folder), f"Such a folder is read by torch, which cannot be imported: {error}"
        ) from None
    try:
        metadata = FileSystemReader(folder).read_metadata()
        described = dict(metadata.state_dict_metadata)
        places: dict[str, set[str]] = {}
        for index, info in metadata.storage_data.items():
            places.setdefault(index.fqn, set()).add(str(info.relative_path))
    except Exception as error:  # noqa: BLE001 - whatever unpickling raises
        raise CheckpointError(METADATA, f"torch cannot read the file: {error!s:.200}") from None
    files = sorted(set().union(*places.values()))
    missing, unsafe, room = _files(folder, files)
    entries: list[Entry] = []
    aside: list[str] = []
    for name, about in described.items():
        if not isinstance(about, TensorStorageMetadata):
            continue
        if name.lower().startswith(_ASIDE):
            aside.append(name)
            continue
        entries.append(_entry(folder, name, about, places.get(name, set()), missing | unsafe, room))
    entries = list(bounded(entries, room))
    problems = [_problem("missing-file", file, text) for file, text in missing.items()]
    problems += [_problem("unsafe-path", file, text) for file, text in unsafe.items()]
    if aside:
        text = f"{len(aside)} tensors of optimizers and the like, not judged."
        problems.append(_problem("not-judged", METADATA, text))
    if not entries:
        problems.append(_problem("no-tensors", METADATA, "It describes no tensor of a model."))
    return replace(
        empty,
        files=tuple(files),
        entries=tuple(_without_wrapper(entries)),
        size=sum(entry.size for entry in entries),
        problems=tuple(problems),
    )


def _files(folder: Path, names: list[str]) -> tuple[dict[str, str], dict[str, str], int]:
    """Return which files are not there, which are not to be opened, and the bytes of the others."""
    missing, unsafe, room = {}, {}, 0
    for name in names:
        try:
            with Opened(inside(folder, name)) as file:
                room += file.size
        except CheckpointError as error:
            unsafe[name] = f"The metadata names it: {error}."
        except (OSError, ValueError, RuntimeError):
            missing[name] = f"The metadata names {name:.200}, which is not there or not readable."
    return missing, unsafe, room


def _entry(
    folder: Path, name: str, about: Any, files: set[str], bad: Mapping[str, str], room: int
) -> Entry:
    dtype = str(about.properties.dtype).removeprefix("torch.")
    dtype, shape = DTYPES.get(dtype, dtype), tuple(int(n) for n in about.size)
    elements = 1
    for length in shape:
        elements *= length
    size = bytes_of(dtype, elements) if layout_of(dtype) else 0
    reason = next((bad[file] for file in sorted(files) if file in bad), "")
    if size > room and not reason:
        reason = f"it would take {size:,} bytes, the files have {room:,}"
    return Entry(
        name=name,
        dtype=dtype,
        shape=shape,
        file=min(files, default=METADATA),
        size=size,
        missing=reason,
        source=_source(folder, name, shape, about.properties.dtype),
    )


def _source(folder: Path, name: str, shape: tuple[int, ...], dtype: Any) -> Callable[[], Any]:
    """Return what loads one tensor: its bytes, `(n,)` of uint8."""

    def bytes_of_it() -> Any:
        import torch
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict_loader import load

        try:
            tensor = torch.empty(shape, dtype=dtype)
            with _ONE_AT_A_TIME, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that there is no process group: there is none
                load({name: tensor}, storage_reader=FileSystemReader(folder), no_dist=True)
        except Exception as error:  # noqa: BLE001 - whatever that reader raises
            raise OSError(f"torch cannot read it: {error!s:.200}") from None
        return tensor.reshape(-1).view(torch.uint8).numpy()

    return bytes_of_it


def _without_wrapper(entries: list[Entry]) -> list[Entry]:
    """Return entries with the names that the model itself gives, if all are in one wrapper.

    The name in `source` stays that of the file.
    """
    for wrapper in ("model.", "state_dict.", "module."):
        if entries and all(entry.name.startswith(wrapper) for entry in entries):
            return [replace(entry, name=entry.name.removeprefix(wrapper)) for entry in entries]
    return entries


def _problem(code: str, where: str, detail: str) -> ReadProblem:
    return ReadProblem(code=code, where=where, detail=detail)
