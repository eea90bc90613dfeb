"""PyTorch files: where the bytes are of the tensors that a pickle describes. Nothing is run."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from io import BytesIO
from typing import Any, Final

from ormas_core.checkpoints.bounded import bounded
from ormas_core.checkpoints.dtypes import bytes_of, layout_of
from ormas_core.checkpoints.files import Opened
from ormas_core.checkpoints.listing import Listing
from ormas_core.checkpoints.opened import Entry, Kind, ReadProblem
from ormas_core.checkpoints.pickles import PickleFormatError, read_pickle
from ormas_core.checkpoints.weights import PLAIN, Tensor, as_tensor, model_tensors, tensors_in

MAX_PICKLE: Final = 64 * 2**20
"""Largest pickle that is looked at, in bytes."""

DANGEROUS: Final = (
    "os.", "posix.", "nt.", "subprocess.", "sys.", "shutil.", "socket.", "importlib.", "runpy.",
    "ctypes.", "pty.", "code.", "pickle.", "marshal.", "types.", "requests.", "urllib.", "http.",
    "webbrowser.", "multiprocessing.", "operator.", "functools.", "builtins.eval", "builtins.exec",
    "builtins.compile", "builtins.open", "builtins.getattr", "builtins.setattr", "asyncio.",
    "builtins.__import__", "builtins.globals", "builtins.input", "commands.", "torch.hub.",
    "torch.load", "torch.jit.", "torch.storage._load_from_bytes", "numpy.load", "cProfile.",
    "timeit.", "pdb.", "bdb.", "pip.", "venv.", "platform.", "tempfile.", "pathlib.", "io.", "_io.",
)  # fmt: skip
"""Beginnings of names that no pickle of weights needs, and that could run anything."""

HARMLESS: Final = frozenset(
    {"types.SimpleNamespace"}
    | {
        f"{module}.{kind}Path"
        for module in ("pathlib", "pathlib._local")
        for kind in ("", "Posix", "Windows", "Pure", "PurePosix", "PureWindows")
    }
)
"""Whole names that begin so and only hold values, as settings in a checkpoint often do."""

_SCRIPT: Final = ("__torch__.", "torch.jit._pickle.")
"""Types of TorchScript code, which is compiled and not imported."""

_SHOWN: Final = 8
Place = Callable[[str], tuple[int, int] | str]
"""Key of a storage -> its first byte in the file and its size, or why it cannot be read."""


def list_legacy(file: Opened, name: str) -> Listing:
    """Return the tensors of a file of `torch.save` before version 1.6."""
    stream = BytesIO(file.read(0, MAX_PICKLE))
    names: set[str] = set()
    try:
        for _ in range(3):  # the magic number, the version, sizes of the machine's types
            read_pickle(stream, as_tensor, names)
        root = read_pickle(stream, as_tensor, names)
        keys = read_pickle(stream, as_tensor, names)
    except PickleFormatError as error:
        problem = _malformed(name, str(error))
        return Listing(kind=Kind.LEGACY, problems=(problem,), globals=tuple(sorted(names)))
    sizes = _sizes(root)
    places: dict[str, tuple[int, int]] = {}
    at = stream.tell()
    for key in keys if isinstance(keys, list) else []:
        size = sizes.get(key) if isinstance(key, str) else None
        if size is None:
            count = int.from_bytes(file.read(at, 8), "little")
            return _listed(Kind.LEGACY, root, names, name, file.size, _known(places, count))
        places[key] = (at + 8, size)
        at += 8 + size
    return _listed(Kind.LEGACY, root, names, name, file.size, _known(places, 0))


def list_bare(file: Opened, name: str) -> Listing:
    """Return what is in a pickle that nothing follows: no tensor that can be read here."""
    raw = file.read(0, MAX_PICKLE)
    reason = "its elements are not in the file as PyTorch stores them"
    found = list_pickle(Kind.PICKLE, raw, name, file.size, lambda _: reason)
    if not raw.startswith(b"\x80") and any(p.code == "malformed" for p in found.problems):
        text = f"Its first bytes, {raw[:16].hex(' ')}, are of no format known here."
        return Listing(kind=Kind.UNKNOWN, problems=(_not_one(name, text),))
    if found.entries or any(problem.code == "malformed" for problem in found.problems):
        return found
    text = "It is a Python pickle without tensors, such as arguments or a random state."
    return replace(found, problems=(*found.problems, _not_one(name, text)))


def list_pickle(
    kind: Kind, raw: bytes, name: str, size: int, place: Place, *, whole: bool = True
) -> Listing:
    """Return the tensors that a pickle describes whose storages are elsewhere in the file.

    Args:
        kind: what the file is.
        raw: the pickle.
        name: the file's name.
        size: bytes of the file.
        place: where the storages are.
        whole: whether the pickle is all of it.
    """
    names: set[str] = set()
    if not whole:
        text = f"its pickle has more than {MAX_PICKLE:,} bytes"
        return Listing(kind=kind, problems=(_malformed(name, text),))
    try:
        root = read_pickle(BytesIO(raw), as_tensor, names)
    except PickleFormatError as error:
        problems = (_malformed(name, str(error)), *_refusals(names, set(), name))
        return Listing(kind=kind, problems=problems, globals=tuple(sorted(names)))
    return _listed(kind, root, names, name, size, place)


def _listed(kind: Kind, root: Any, names: set[str], file: str, size: int, place: Place) -> Listing:
    found = tensors_in(root)
    tensors, aside = model_tensors(found, root)
    listed = (_entry(name, tensor, file, size, place) for name, tensor in tensors.items())
    entries = tuple(bounded(listed, size))
    problems = list(_refusals(names, found.calls, file))
    if aside:
        text = f"Beside the weights: {', '.join(aside)[:300]}. These are not judged."
        problems.append(ReadProblem(code="not-judged", where=file, detail=text))
    if not found.complete:
        text = "Its objects are nested too deep or too many; not all was looked through."
        problems.append(ReadProblem(code="refused-tensors", where=file, detail=text))
    cut = [entry for entry in entries if entry.missing.startswith("its bytes end")]
    if cut:
        text = (
            f"{len(cut)} of {len(entries)} tensors are beyond the end of the file, the first is "
            f"{cut[0].name!r:.200}. Download or copy the file again."
        )
        problems.append(ReadProblem(code="truncated", where=file, detail=text))
    return Listing(
        kind=kind, entries=entries, globals=tuple(sorted(names)), problems=tuple(problems)
    )


def _entry(name: str, tensor: Tensor, file: str, size: int, place: Place) -> Entry:
    entry = Entry(
        name=name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        file=file,
        placeholder=tensor.stored is None,
        packed=tensor.packed,
    )
    if tensor.stored is None or layout_of(tensor.dtype) is None:
        return entry
    if math.prod(tensor.shape) >= 2**62:
        return replace(entry, missing=f"its shape {list(tensor.shape)!s:.80} is too large")
    found = place(tensor.stored.key)
    if isinstance(found, str):
        return replace(entry, missing=found)
    start, length = found
    item = bytes_of(tensor.dtype, 1)
    span = tensor.span
    if tensor.offset * item + span > length:
        return replace(
            entry, missing=f"it needs {tensor.offset * item + span:,} bytes of {length:,} stored"
        )
    at = start + tensor.offset * item
    if at + span > size:
        return replace(entry, missing=f"its bytes end at {at + span:,}, the file at {size:,}")
    strides = None if tensor.contiguous else tensor.strides
    return replace(entry, offset=at, size=span, strides=strides)


def _refusals(names: set[str], calls: set[str], file: str) -> list[ReadProblem]:
    strange = sorted(name for name in names - PLAIN if not name.startswith(_SCRIPT))
    dangerous = [n for n in strange if n.startswith(DANGEROUS) and n not in HARMLESS]
    problems = []
    if dangerous:
        text = (
            f"Loading it could run code: it would import {_some(dangerous)}. Nothing was run. Do "
            "not load it outside a sandbox unless you trust its author."
        )
        problems.append(ReadProblem(code="dangerous-objects", where=file, detail=text))
    others = [name for name in strange if name not in dangerous]
    if others:
        text = (
            f"It holds objects of {_some(others)}; none was made. torch.load with weights_only "
            "refuses such a file: save the state_dict alone, best as safetensors."
        )
        problems.append(ReadProblem(code="refused-objects", where=file, detail=text))
    makers = sorted(call for call in calls if "_rebuild" in call or "load_from_bytes" in call)
    if makers:
        text = f"Tensors made by {_some(makers)} were not read, since that would run code."
        problems.append(ReadProblem(code="refused-tensors", where=file, detail=text))
    return problems


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(name[:80] for name in names[:_SHOWN]) + (f" and {more} more" * (more > 0))


def _not_one(file: str, what: str) -> ReadProblem:
    return ReadProblem(code="not-a-checkpoint", where=file, detail=what)


def _malformed(file: str, what: str) -> ReadProblem:
    return ReadProblem(
        code="malformed",
        where=file,
        detail=f"Its pickle cannot be read: {what}. Save or download the file again.",
    )


def _sizes(root: Any) -> Mapping[str, int]:
    """Return the bytes of each storage that the tensors of a pickle refer to."""
    found = tensors_in(root).tensors.values()
    stored = [tensor.stored for tensor in found if tensor.stored is not None]
    return {one.key: bytes_of(one.dtype, one.elements) for one in stored}


def _known(places: Mapping[str, tuple[int, int]], left: int) -> Place:
    reason = "where its bytes are cannot be told"
    if left:
        reason += f", since {left:,} elements of an object that was not made come first"
    return lambda key: places.get(key, reason)
