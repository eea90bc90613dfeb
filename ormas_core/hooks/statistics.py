"""Tensors to numbers, left on their device. No function here copies to the host."""

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from ormas_core.hooks import _torch


def gradient_values(gradient: Tensor) -> Tensor:
    """Return the elements of a gradient as a real, dense tensor that shares its storage.

    Sparse gradients give their values, duplicates summed; complex ones real and imaginary parts.
    """
    values = gradient.detach()
    if values.layout is torch.sparse_coo:
        values = values.coalesce().values()
    elif values.layout is not torch.strided:
        values = values.values()
    return torch.view_as_real(values) if values.is_complex() else values


def wide(device: torch.device) -> torch.dtype:
    """Return the widest floating type of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


def norms(values: Sequence[Tensor]) -> list[Tensor]:
    """Return the Euclidean norm of each tensor, as scalars on the tensors' devices.

    Accumulated in float64, where squares of any float32 value (1e-45 to 3e38) are in range.
    Batched per device and type.
    """
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, value in enumerate(values):
        groups.setdefault((value.device, value.dtype), []).append(index)
    found: list[Tensor] = [torch.empty(0)] * len(values)
    for (device, _), members in groups.items():
        batch = _torch.foreach_norm([values[i] for i in members], wide(device))
        for index, norm in zip(members, batch, strict=True):
            found[index] = norm
    return found


def rescaled_norm(value: Tensor) -> Tensor:
    """Return the Euclidean norm of a finite tensor whose squares leave the range of its type."""
    peak = magnitude(value)
    if value.numel() == 0:
        return peak
    norm: Tensor = torch.linalg.vector_norm(value / peak.to(value.dtype)).to(peak.dtype) * peak
    return norm


def nonfinite(value: Tensor) -> Tensor:
    """Return the numbers of NaN and of infinite elements: shape (2,), int64."""
    return torch.stack([torch.isnan(value).sum(), torch.isinf(value).sum()])


def magnitude(value: Tensor) -> Tensor:
    """Return the largest absolute value as a scalar, NaN if there is one, 0 for no elements."""
    if value.numel() == 0:
        return torch.zeros((), dtype=wide(value.device), device=value.device)
    if value.is_complex():
        value = torch.view_as_real(value)
    peak: Tensor = torch.linalg.vector_norm(value, ord=math.inf).to(wide(value.device))
    return peak


def narrowest(types: Collection[torch.dtype]) -> str:
    """Return the name of the floating type with the smallest range, "" for none."""
    real = {dtype.to_real() if dtype.is_complex else dtype for dtype in types}
    floating = sorted((torch.finfo(d).max, str(d)) for d in real if d.is_floating_point)
    return floating[0][1].removeprefix("torch.") if floating else ""


def channel_dim(module: nn.Module, output: Tensor) -> int | None:
    """Return the channel dimension of the output of a Conv, Linear or BatchNorm module.

    None for every other module. Convolutions also take inputs without a batch dimension.
    """
    if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
        return output.dim() - 1  # Conv1D: the linear layer of GPT-2 in transformers
    if isinstance(module, _torch.CONVOLUTION):
        return 1 if output.dim() == len(module.kernel_size) + 2 else 0
    if isinstance(module, _torch.BATCH_NORM):
        return 1
    return None


def channel_maxima(module: nn.Module, output: Tensor) -> Tensor | None:
    """Return the maximum of each output channel, shape (channels,), or None where it has none."""
    dim = channel_dim(module, output)
    if dim is None or output.numel() == 0 or not output.is_floating_point() or output.dim() == 0:
        return None
    others = [d for d in range(output.dim()) if d != dim]
    detached = output.detach()
    return detached.amax(others) if others else detached.clone()
