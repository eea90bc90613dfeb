"""One file of any format, listed."""

from dataclasses import replace
from pathlib import Path

from ormas_core.checkpoints.files import Opened
from ormas_core.checkpoints.header import header_size, parse_header
from ormas_core.checkpoints.listing import Listing
from ormas_core.checkpoints.opened import Kind, ReadProblem
from ormas_core.checkpoints.sniff import LOOKED_AT, sniff
from ormas_core.errors import CheckpointError

_UNSUPPORTED = frozenset((Kind.GGUF, Kind.HDF5, Kind.NUMPY, Kind.TAR, Kind.ONNX))


def list_file(path: Path, name: str) -> Listing:
    """Return what is in a file; what is wrong with it is among the problems of the result.

    Args:
        path: where it is.
        name: what it is called in entries and problems.
    """
    try:
        with Opened(path) as file:
            return replace(_list(file, name), stamp=file.stamp)
    except CheckpointError as error:
        return _refused(Kind.UNKNOWN, "unsafe-path", name, str(error))
    except FileNotFoundError:
        return _refused(Kind.UNKNOWN, "missing-file", name, f"There is no file {name}.")
    except (OSError, MemoryError) as error:
        return _refused(Kind.UNKNOWN, "unreadable", name, f"It cannot be read: {error!s:.200}.")


def _list(file: Opened, name: str) -> Listing:
    first = file.read(0, LOOKED_AT)
    look = sniff(first, file.size)
    if look.kind is Kind.SAFETENSORS:
        return _safetensors(file, first, name)
    if look.kind is Kind.ZIP:
        from ormas_core.checkpoints.zips import list_zip

        return list_zip(file, name)
    if look.kind is Kind.LEGACY:
        from ormas_core.checkpoints.pickled import list_legacy

        return list_legacy(file, name)
    if look.kind is Kind.PICKLE:
        from ormas_core.checkpoints.pickled import list_bare

        return list_bare(file, name)
    code = "unsupported" if look.kind in _UNSUPPORTED else "not-a-checkpoint"
    return _refused(look.kind, code, name, look.detail)


def _safetensors(file: Opened, first: bytes, name: str) -> Listing:
    size = header_size(first[:8], file.size)
    if isinstance(size, str):
        text = f"It begins as a safetensors file, but {size}. Save or download it again."
        code = "truncated" if "the file has" in size else "malformed"
        return _refused(Kind.SAFETENSORS, code, name, text)
    header = parse_header(file.read(8, size), file.size, name)
    return Listing(
        kind=Kind.SAFETENSORS,
        entries=header.entries,
        metadata=header.metadata,
        problems=header.problems + header.notes,
    )


def _refused(kind: Kind, code: str, name: str, detail: str) -> Listing:
    return Listing(kind=kind, problems=(ReadProblem(code=code, where=name, detail=detail),))
