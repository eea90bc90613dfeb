"""Sets of tensor elements, held as a union of factored arrays.

A part has the rank of the tensor, and along each axis either its full size or 1, which means that
membership does not vary there; so the batch and position axes of activations and one axis of a
weight matrix never materialise. Every operation may lose elements of a set and never adds one: a
mask says "for sure", and dropping what is too large to hold is sound.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

Part = NDArray[np.bool_]
Shape = tuple[int, ...]

MOST_ELEMENTS: Final = 1 << 18
"""Largest part that is held."""
MOST_PARTS: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """A set of elements of a tensor of `shape`."""

    shape: Shape
    parts: tuple[Part, ...] = ()

    @property
    def is_all(self) -> bool:
        """Whether the set is the whole tensor."""
        return len(self.parts) == 1 and self.parts[0].size == 1

    def dense(self) -> Part:
        """Return the set as one array that broadcasts to `shape`; all parts together."""
        if not self.parts:
            return np.zeros((1,) * len(self.shape), dtype=np.bool_)
        found = self.parts[0]
        for part in self.parts[1:]:
            found = found | part
        return found

    def same(self, other: "Mask") -> bool:
        """Whether both hold the same parts."""
        return len(self.parts) == len(other.parts) and all(
            a.shape == b.shape and bool((a == b).all())
            for a, b in zip(self.parts, other.parts, strict=True)
        )


@lru_cache(maxsize=4096)
def none(shape: Shape) -> Mask:
    """Return the empty set."""
    return Mask(shape)


@lru_cache(maxsize=4096)
def everything(shape: Shape) -> Mask:
    """Return the whole tensor."""
    part = np.ones((1,) * len(shape), dtype=np.bool_)
    part.flags.writeable = False  # every caller gets the same one
    return Mask(shape, (part,))


def union_of(shape: Shape, parts: Iterable[Part]) -> Mask:
    """Return the union of `parts`, in normal form: one part for each pattern of axes."""
    by_pattern: dict[Shape, Part] = {}
    merged = False
    for part in parts:
        if part.size > MOST_ELEMENTS:
            continue
        count = np.count_nonzero(part)
        if count == part.size:
            return everything(shape)
        if count:
            held = by_pattern.get(part.shape)
            merged = merged or held is not None
            by_pattern[part.shape] = part if held is None else held | part
    if merged and any(part.all() for part in by_pattern.values()):
        return everything(shape)
    if len(by_pattern) > 1:
        kept = sorted(by_pattern.values(), key=lambda part: part.size)[:MOST_PARTS]
        return Mask(shape, tuple(kept))
    return Mask(shape, tuple(by_pattern.values()))


def join(*masks: Mask) -> Mask:
    """Return the elements that are in any of the masks, which have one shape."""
    filled = [mask for mask in masks if mask.parts]
    if not filled:
        return masks[0]
    if len(filled) == 1:
        return filled[0]
    for mask in filled:
        if mask.is_all:
            return mask
    return union_of(masks[0].shape, (part for mask in filled for part in mask.parts))


def meet(a: Mask, b: Mask) -> Mask:
    """Return the elements that are in both masks, which have one shape."""
    if not a.parts or b.is_all:
        return a
    if not b.parts or a.is_all:
        return b
    return union_of(
        a.shape,
        (
            one & other
            for one in a.parts
            for other in b.parts
            if _joint_size(one.shape, other.shape) <= MOST_ELEMENTS
        ),
    )


def all_over(mask: Mask, axes: Sequence[int]) -> Mask:
    """Return, with size 1 along `axes`, where every element along them is in the mask."""
    dims = {axis % len(mask.shape) for axis in axes} if mask.shape else set()
    shape = tuple(1 if d in dims else size for d, size in enumerate(mask.shape))
    if not mask.parts:
        return Mask(shape)
    if mask.is_all:
        return everything(shape)
    over = tuple(sorted(dims))
    parts = [all_along(part, over) for part in mask.parts]
    if len(mask.parts) > 1:
        size = math.prod(np.broadcast_shapes(*(part.shape for part in mask.parts)))
        if size <= MOST_ELEMENTS:
            parts.append(all_along(mask.dense(), over))
    return union_of(shape, parts)


def all_along(part: Part, axes: tuple[int, ...]) -> Part:
    """Return, with size 1 along `axes`, where every element along them is set."""
    found: Part = np.logical_and.reduce(part, axis=axes, keepdims=True)
    return found


def spread(mask: Mask, shape: Shape) -> Mask:
    """Broadcast: the same set seen in a tensor of `shape`."""
    if mask.shape == shape:
        return mask
    lead = len(shape) - len(mask.shape)
    return Mask(shape, tuple(part.reshape((1,) * lead + part.shape) for part in mask.parts))


def gather(mask: Mask, shape: Shape) -> Mask:
    """Undo a broadcast: the elements of a tensor of `shape` all of whose copies are in the mask."""
    if mask.shape == shape:
        return mask
    lead = len(mask.shape) - len(shape)
    axes = [d for d in range(len(mask.shape)) if d < lead or shape[d - lead] != mask.shape[d]]
    reduced = all_over(mask, axes) if axes else mask
    return Mask(shape, tuple(part.reshape(part.shape[lead:]) for part in reduced.parts))


def permute(mask: Mask, axes: Sequence[int]) -> Mask:
    """Reorder the axes as `torch.permute` does."""
    shape = tuple(mask.shape[axis] for axis in axes)
    return Mask(shape, tuple(part.transpose(axes) for part in mask.parts))


def reshape(mask: Mask, shape: Shape) -> Mask:
    """Give the elements another shape, in row-major order."""
    if mask.shape == shape:
        return mask
    if not mask.parts:
        return Mask(shape)
    if mask.is_all:
        return everything(shape)
    groups = _groups(mask.shape, shape)
    if groups is None:
        return Mask(shape)
    return union_of(
        shape,
        (
            moved
            for part in mask.parts
            if (moved := _regroup(part, mask.shape, shape, groups)) is not None
        ),
    )


def take(mask: Mask, axis: int, index: slice) -> Mask:
    """Return the set inside `tensor[..., index, ...]`."""
    size = len(range(*index.indices(mask.shape[axis])))
    shape = (*mask.shape[:axis], size, *mask.shape[axis + 1 :])
    at = (slice(None),) * axis
    return union_of(
        shape, (part if part.shape[axis] == 1 else part[(*at, index)] for part in mask.parts)
    )


def put(mask: Mask, axis: int, index: slice, size: int) -> Mask:
    """Return the set in the tensor of `size` along `axis` it was cut from; all else is in it."""
    shape = (*mask.shape[:axis], size, *mask.shape[axis + 1 :])
    if mask.is_all:
        return everything(shape)
    at = (slice(None),) * axis
    outside = np.ones((1,) * axis + (size,) + (1,) * (len(shape) - axis - 1), dtype=np.bool_)
    outside[(*at, index)] = False
    parts = [outside]
    for part in mask.parts:
        grown = np.ones((*part.shape[:axis], size, *part.shape[axis + 1 :]), dtype=np.bool_)
        grown[(*at, index)] = part
        parts.append(grown)
    return union_of(shape, parts)


def concatenate(masks: Sequence[Mask], axis: int) -> Mask:
    """Return the set in the concatenation along `axis`."""
    total = sum(mask.shape[axis] for mask in masks)
    shape = (*masks[0].shape[:axis], total, *masks[0].shape[axis + 1 :])
    if all(mask.is_all for mask in masks):
        return everything(shape)
    parts: list[Part] = []
    start = 0
    at = (slice(None),) * axis
    for mask in masks:
        size = mask.shape[axis]
        for part in mask.parts:
            grown = np.zeros((*part.shape[:axis], total, *part.shape[axis + 1 :]), dtype=np.bool_)
            grown[(*at, slice(start, start + size))] = part
            parts.append(grown)
        start += size
    return union_of(shape, parts)


def _joint_size(a: Shape, b: Shape) -> int:
    return math.prod(max(x, y) for x, y in zip(a, b, strict=True))


@lru_cache(maxsize=4096)
def _groups(old: Shape, new: Shape) -> tuple[tuple[range, range], ...] | None:
    """Pair runs of axes of both shapes with equal numbers of elements; None where it is empty."""
    if math.prod(old) == 0 or math.prod(old) != math.prod(new):
        return None
    found = []
    i = j = 0
    while i < len(old) or j < len(new):
        first_i, first_j = i, j
        have = old[i] if i < len(old) else 1
        want = new[j] if j < len(new) else 1
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        while have != want:
            if have < want:
                have *= old[i]
                i += 1
            else:
                want *= new[j]
                j += 1
        found.append((range(first_i, i), range(first_j, j)))
    return tuple(found)


def _regroup(
    part: Part, old: Shape, new: Shape, groups: tuple[tuple[range, range], ...]
) -> Part | None:
    full = list(part.shape)
    target = [1] * len(new)
    for before, after in groups:
        if any(part.shape[d] > 1 for d in before):
            for d in before:
                full[d] = old[d]
            for d in after:
                target[d] = new[d]
    if math.prod(full) > MOST_ELEMENTS:
        return None
    moved: Part = np.broadcast_to(part, full).reshape(target)
    return moved
