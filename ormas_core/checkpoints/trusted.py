"""With `--trust`: tensors that only the code of a pickle can make, made by running it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ormas_core.checkpoints.listing import Listing
from ormas_core.checkpoints.opened import Entry, Kind, ReadProblem
from ormas_core.checkpoints.weights import DTYPES

_WITHOUT = frozenset(("refused-tensors", "unsupported", "not-a-checkpoint", "malformed"))


def complete(listing: Listing, path: Path, name: str) -> Listing:
    """Return a listing with what loading the file adds: nothing if all its tensors are known.

    Args:
        listing: what was found without running anything.
        path: the file, whose code is run.
        name: what it is called in entries.
    """
    lacking = [p for p in listing.problems if p.code in _WITHOUT]
    if not lacking or listing.kind is Kind.TORCHSCRIPT:
        return listing
    import torch

    try:
        root = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:  # noqa: BLE001 - whatever code of a stranger raises
        text = f"torch.load cannot load it either: {type(error).__name__}: {error!s:.200}"
        problem = ReadProblem(code="unreadable", where=name, detail=text)
        return replace(listing, problems=(*listing.problems, problem))
    known = {entry.name for entry in listing.entries}
    added = [_entry(key, value, name) for key, value in _tensors(root) if key not in known]
    rest = tuple(p for p in listing.problems if p not in lacking) if added else listing.problems
    return replace(listing, entries=(*listing.entries, *added), problems=rest)


def _tensors(root: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    import torch

    if isinstance(root, torch.nn.Module):
        yield from ((f"{prefix}{name}", value) for name, value in root.state_dict().items())
    elif isinstance(root, torch.Tensor):
        yield prefix.removesuffix(".") or "tensor", root
    elif isinstance(root, Mapping) and depth < 8:  # noqa: PLR2004 - deeper are no weights
        for key, value in root.items():
            yield from _tensors(value, f"{prefix}{key}.", depth + 1)


def _entry(name: str, tensor: Any, file: str) -> Entry:
    dtype = str(tensor.dtype).removeprefix("torch.")

    def load() -> Any:
        import torch

        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        return plain.reshape(-1).view(torch.uint8).numpy()

    return Entry(
        name=name,
        dtype=DTYPES.get(dtype, dtype),
        shape=tuple(tensor.shape),
        file=file,
        size=tensor.numel() * tensor.element_size(),
        placeholder=tensor.is_meta,
        source=load,
    )
