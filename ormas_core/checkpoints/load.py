"""Puts the weights of a checkpoint into a model, for what only a running model can show."""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from ormas_core.checkpoints.files import Opened
from ormas_core.checkpoints.opened import Checkpoint, Entry
from ormas_core.checkpoints.wire import aligned
from ormas_core.errors import CheckpointError

_TYPES: Final[Mapping[str, torch.dtype]] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def load(model: nn.Module, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Copy the tensors of a checkpoint into a model; return the names that it leaves as they were.

    Raises:
        CheckpointError: a tensor has another shape, or cannot be read as numbers.
    """
    state = model.state_dict(keep_vars=True)
    shapes = {
        name: entry.shape for name, entry in zip(checkpoint.names, checkpoint.entries, strict=True)
    }
    own = aligned(shapes, {name: tuple(tensor.shape) for name, tensor in state.items()})
    files: dict[str, Opened] = {}
    try:
        for name, entry in zip(checkpoint.names, checkpoint.entries, strict=True):
            if name not in own:
                continue
            target = state[own[name]]
            if tuple(target.shape) != entry.shape:
                raise CheckpointError(
                    name,
                    f"{name} is {entry.shape} in the file, {tuple(target.shape)} in the model",
                )
            if entry.file not in files:
                files[entry.file] = Opened(checkpoint.place(entry.file))
            with torch.no_grad():
                target.copy_(_tensor(files[entry.file], entry))
    finally:
        for file in files.values():
            file.close()
    return tuple(sorted(set(state) - set(own.values())))


def _tensor(file: Opened, entry: Entry) -> Tensor:
    kind = _TYPES.get(entry.dtype)
    if kind is None or entry.source is not None or entry.packed or entry.missing:
        why = entry.packed or entry.missing or f"it is {entry.dtype}, of a format read by a library"
        raise CheckpointError(entry.name, f"{entry.name} cannot be put into a model: {why}")
    if not entry.size:
        return torch.empty(entry.shape, dtype=kind)
    raw = bytearray(entry.size)
    file.read_into(memoryview(raw), entry.offset)
    flat = torch.frombuffer(raw, dtype=kind)
    if entry.strides is None:
        return flat.reshape(entry.shape)
    return flat.as_strided(entry.shape, entry.strides)
