"""Re-initialises channels, with the same bits on every rank and no other element touched.

Numbers are drawn on the CPU from generators of their own, seeded by (seed, step, layer), so torch's
global state stays as it is and every rank draws the same. Writing goes through `.data`: a graph
that is kept for another backward pass does not fail over it.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

_KAIMING: Final = 2.0
"""Kaiming-normal: variance 2 / fan-in, which keeps the size of signals through ReLU."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Elements of one parameter or buffer that a repair writes.

    Attributes:
        name: its full name.
        tensor: the parameter or buffer.
        axis: the axis of output features.
        rows: indices along it.
        value: what is written; None draws Kaiming-normal numbers.
        states: the optimizer's state tensors of this parameter, by name.
    """

    name: str
    tensor: Tensor
    axis: int
    rows: tuple[int, ...]
    value: float | None
    states: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """What is repaired of one layer for one cause.

    Attributes:
        layer: the module that owns the weight.
        cause: `certified`, `flat`, `decayed` or `silent`.
        units: rows of its weight.
        parts: everything that is written.
    """

    layer: str
    cause: str
    units: tuple[int, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """How much a repair changed.

    Attributes:
        delta: Euclidean norm of the change of everything that was written.
        relative: `delta` over the norm of those tensors before; infinite where that was zero.
    """

    delta: float
    relative: float


def obstacle(part: Part) -> str:
    """Return why a part cannot be written channel by channel; empty if it can be."""
    tensor = part.tensor
    if type(tensor) not in {nn.Parameter, Tensor}:
        return f"{part.name} is a {type(tensor).__name__}, which cannot be written per channel"
    if not tensor.is_leaf or ".parametrizations." in f".{part.name}":
        return f"{part.name} is computed from other tensors (parametrized)"
    if not tensor.is_floating_point():
        return f"{part.name} holds {_dtype(tensor)}: quantised weights cannot be drawn"
    if isinstance(tensor, nn.Parameter) and not tensor.requires_grad:
        return f"{part.name} is frozen"
    gradient = tensor.grad
    if gradient is not None and gradient.layout is not torch.strided:
        return f"the gradient of {part.name} is sparse"
    for name, state in part.states.items():
        if state.shape == tensor.shape and not state.is_floating_point():
            return f"the optimizer state {name!r} of {part.name} holds {_dtype(state)}: quantised"
    return ""


def draw(sites: Iterable[Site], *, seed: int, step: int) -> list[list[Tensor]]:
    """Return what each part of each site becomes, on the CPU; the same on every rank.

    Args:
        sites: what is to be repaired, in an order that all ranks share.
        seed: the run's seed.
        step: optimizer updates completed.
    """
    generators: dict[str, torch.Generator] = {}
    found = []
    for site in sites:
        generator = generators.get(site.layer)
        if generator is None:
            generator = generators[site.layer] = _generator(seed, step, site.layer)
        found.append([_values(part, generator) for part in site.parts])
    return found


def digest(sites: Sequence[Site], values: Sequence[Sequence[Tensor]]) -> bytes:
    """Return a hash of what would be written where, 16 bytes; ranks compare it before writing."""
    found = hashlib.blake2b(digest_size=16)
    for site, drawn in zip(sites, values, strict=True):
        found.update(repr((site.layer, site.cause, site.units)).encode())
        for part, value in zip(site.parts, drawn, strict=True):
            shape = tuple(part.tensor.shape)
            found.update(repr((part.name, shape, part.axis, part.rows)).encode())
            found.update(value.contiguous().numpy().tobytes())
    return found.digest()


def write(site: Site, values: Sequence[Tensor]) -> Change:
    """Write one site: values, zero gradients and zero optimizer state of exactly those elements.

    A state tensor that equals the parameter is a copy of it (an average, or master weights) and
    is written alike.
    """
    change = before = 0.0
    with torch.no_grad():
        for part, value in zip(site.parts, values, strict=True):
            tensor = part.tensor.data
            rows = torch.tensor(part.rows, device=tensor.device)
            before += _square(tensor)
            # Before the parameter changes: afterwards no copy would be known.
            copies = {name for name, state in part.states.items() if _is_copy(state, tensor)}
            old = tensor.index_select(part.axis, rows).cpu()
            _put(tensor, part.axis, rows, value)
            new = tensor.index_select(part.axis, rows).cpu()
            change += _square(new.double() - old.double())
            for name, state in part.states.items():
                if state.shape == tensor.shape:
                    own = value if name in copies else torch.zeros_like(value)
                    _put(state.data, part.axis, rows.to(state.device), own)
            gradient = part.tensor.grad
            if gradient is not None:
                _put(gradient.data, part.axis, rows, torch.zeros_like(value))
    delta, norm = math.sqrt(change), math.sqrt(before)
    return Change(delta, delta / norm if norm > 0 else math.inf)


def _generator(seed: int, step: int, layer: str) -> torch.Generator:
    text = f"{seed} {step} {layer}".encode()
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
    generator = torch.Generator(device="cpu")
    generator.manual_seed(number)
    return generator


def _values(part: Part, generator: torch.Generator) -> Tensor:
    """Return the new elements in float32, in the layout of `tensor.index_select(axis, rows)`."""
    shape = list(part.tensor.shape)
    del shape[part.axis]
    count, fan_in = len(part.rows), max(math.prod(shape), 1)
    if part.value is not None:
        found = torch.full((count, *shape), part.value, dtype=torch.float32, device="cpu")
    else:
        found = torch.randn(
            (count, *shape), generator=generator, dtype=torch.float32, device="cpu"
        ) * math.sqrt(_KAIMING / fan_in)
    return found.movedim(0, part.axis)


def _put(tensor: Tensor, axis: int, rows: Tensor, value: Tensor) -> None:
    tensor.index_copy_(axis, rows, value.to(device=tensor.device, dtype=tensor.dtype))


def _is_copy(state: Tensor, tensor: Tensor) -> bool:
    if state.shape != tensor.shape or state.device != tensor.device:
        return False
    return bool(torch.equal(state.data.to(tensor.dtype), tensor) and tensor.any())


def _square(tensor: Tensor) -> float:
    wide = torch.float64 if tensor.dtype is torch.float64 else torch.float32
    return float(torch.linalg.vector_norm(tensor, dtype=wide)) ** 2


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).rpartition(".")[2]
