"""Rules of operations that only move elements: replayed on facts, and backwards on masks."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from ormas_core.certificates import masks
from ormas_core.certificates.graph import Node
from ormas_core.certificates.masks import Mask, Shape
from ormas_core.certificates.rules.rule import Rule
from ormas_core.certificates.signs import Signs

_Move = Callable[[Node, Mask], Mask]


def _rule(there: _Move, back: _Move, *settings: str) -> Rule:
    def forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
        """Move the facts as the operation moves the elements.

        Rule: every output element is an element of the operand.
        Requires: the recorded settings.
        Rounding: none; values are copied.
        Source: definition of the operation.
        """
        return [operands[0].map(lambda mask: there(node, mask))]

    def backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
        """Move the masks back; elements that the operation leaves out have a zero gradient.

        Rule: the gradient of an element is the sum over its copies.
        Requires: the recorded settings.
        Rounding: sums of zeros are exactly zero.
        Source: derivative of the operation.
        """
        return [back(node, closed[0]), *(masks.none(shape) for shape in node.in_shapes[1:])]

    return Rule(forward, backward, settings)


def _axis(value: int, rank: int) -> int:
    return value % rank


def _reshape(node: Node, mask: Mask) -> Mask:
    return masks.reshape(mask, node.out_shapes[0])


def _reshape_back(node: Node, mask: Mask) -> Mask:
    return masks.reshape(mask, node.in_shapes[0])


def _transpose(node: Node, mask: Mask) -> Mask:
    axes = list(range(len(mask.shape)))
    if len(axes) > 1:
        a, b = (_axis(int(node.attrs[name]), len(axes)) for name in ("dim0", "dim1"))
        axes[a], axes[b] = axes[b], axes[a]
    return masks.permute(mask, axes)


def _t(node: Node, mask: Mask) -> Mask:
    return masks.permute(mask, range(len(mask.shape))[::-1])


def _permutation(node: Node) -> list[int]:
    dims = node.attrs["dims"]
    return [_axis(int(dim), len(dims)) for dim in dims]


def _permute(node: Node, mask: Mask) -> Mask:
    return masks.permute(mask, _permutation(node))


def _permute_back(node: Node, mask: Mask) -> Mask:
    axes = _permutation(node)
    return masks.permute(mask, sorted(range(len(axes)), key=axes.__getitem__))


def _expand(node: Node, mask: Mask) -> Mask:
    return masks.spread(mask, node.out_shapes[0])


def _expand_back(node: Node, mask: Mask) -> Mask:
    return masks.gather(mask, node.in_shapes[0])


def _repeat(node: Node, mask: Mask) -> Mask:
    out = node.out_shapes[0]
    return masks.reshape(masks.spread(_with_copies(node, mask), _split(node)), out)


def _repeat_back(node: Node, mask: Mask) -> Mask:
    split = masks.reshape(mask, _split(node))
    copies = range(0, len(split.shape), 2)
    return masks.reshape(masks.all_over(split, copies), node.in_shapes[0])


def _split(node: Node) -> Shape:
    """Return the output's shape with a separate axis for the copies before each axis."""
    rank = len(node.out_shapes[0])
    own = (1,) * (rank - len(node.in_shapes[0])) + node.in_shapes[0]
    repeats = [int(count) for count in node.attrs["repeats"]]
    return tuple(size for pair in zip(repeats, own, strict=True) for size in pair)


def _with_copies(node: Node, mask: Mask) -> Mask:
    rank = len(node.out_shapes[0])
    own = (1,) * (rank - len(mask.shape)) + mask.shape
    return masks.reshape(mask, tuple(size for axis in own for size in (1, axis)))


def _piece(node: Node) -> tuple[int, slice, int]:
    shape = node.in_shapes[0]
    axis = _axis(int(node.attrs["dim"]), len(shape))
    start, end, step = (int(node.attrs[name]) for name in ("start", "end", "step"))
    return axis, slice(*slice(start, end, step).indices(shape[axis])), shape[axis]


def _slice(node: Node, mask: Mask) -> Mask:
    axis, index, _ = _piece(node)
    return masks.take(mask, axis, index)


def _slice_back(node: Node, mask: Mask) -> Mask:
    axis, index, size = _piece(node)
    return masks.put(mask, axis, index, size)


def _row(node: Node) -> tuple[int, slice, int]:
    shape = node.in_shapes[0]
    axis = _axis(int(node.attrs["dim"]), len(shape))
    index = _axis(int(node.attrs["index"]), shape[axis])
    return axis, slice(index, index + 1), shape[axis]


def _select(node: Node, mask: Mask) -> Mask:
    axis, index, _ = _row(node)
    return masks.reshape(masks.take(mask, axis, index), node.out_shapes[0])


def _select_back(node: Node, mask: Mask) -> Mask:
    axis, index, size = _row(node)
    shape = node.in_shapes[0]
    thin = (*shape[:axis], 1, *shape[axis + 1 :])
    return masks.put(masks.reshape(mask, thin), axis, index, size)


def _flip(node: Node, mask: Mask) -> Mask:
    rank = len(mask.shape)
    axes = {_axis(int(dim), rank) for dim in node.attrs["dims"]}
    index = tuple(slice(None, None, -1 if axis in axes else 1) for axis in range(rank))
    return masks.Mask(mask.shape, tuple(part[index] for part in mask.parts))


def _rolled(node: Node, mask: Mask, sign: int) -> Mask:
    shifts, dims = node.attrs["shifts"], node.attrs["dims"]
    if not dims:
        flat = masks.reshape(mask, (math.prod(mask.shape),))
        parts = tuple(np.roll(p, sign * int(shifts[0])) if p.size > 1 else p for p in flat.parts)
        return masks.reshape(masks.Mask(flat.shape, parts), mask.shape)
    parts = mask.parts
    for shift, dim in zip(shifts, dims, strict=True):
        axis = _axis(int(dim), len(mask.shape))
        parts = tuple(np.roll(part, sign * int(shift), axis) for part in parts)
    return masks.Mask(mask.shape, parts)


def _roll(node: Node, mask: Mask) -> Mask:
    return _rolled(node, mask, 1)


def _roll_back(node: Node, mask: Mask) -> Mask:
    return _rolled(node, mask, -1)


def _tiles(node: Node) -> tuple[Shape, Shape, Shape]:
    """Return the images seen as (..., C, r, r, H, W), as (..., C, H, r, W, r), and as both are."""
    many, few = node.in_shapes[0], node.out_shapes[0]
    if many[-1] > few[-1]:
        many, few = few, many
    r, (height, width) = few[-1] // many[-1], many[-2:]
    lead = few[:-2]
    return (*lead, r, r, height, width), (*lead, height, r, width, r), few


def _shuffle(node: Node, mask: Mask) -> Mask:
    apart, _, image = _tiles(node)
    split = masks.reshape(mask, apart)
    rank = len(apart)
    axes = [*range(rank - 4), rank - 2, rank - 4, rank - 1, rank - 3]
    return masks.reshape(masks.permute(split, axes), image)


def _unshuffle(node: Node, mask: Mask) -> Mask:
    _, together, image = _tiles(node)
    split = masks.reshape(mask, together)
    rank = len(together)
    axes = [*range(rank - 4), rank - 3, rank - 1, rank - 4, rank - 2]
    r = together[-1]
    many = (*image[:-3], image[-3] * r * r, *together[-4::2])
    return masks.reshape(masks.permute(split, axes), many)


_RESHAPE = _rule(_reshape, _reshape_back)

RULES = {
    **dict.fromkeys(
        (
            "ViewBackward0",
            "UnsafeViewBackward0",
            "ReshapeAliasBackward0",
            "AliasBackward0",
            "CloneBackward0",
            "SqueezeBackward0",
            "SqueezeBackward1",
            "SqueezeBackward2",
            "UnsqueezeBackward0",
        ),
        _RESHAPE,
    ),
    "TBackward0": _rule(_t, _t),
    "TransposeBackward0": _rule(_transpose, _transpose, "dim0", "dim1"),
    "PermuteBackward0": _rule(_permute, _permute_back, "dims"),
    "ExpandBackward0": _rule(_expand, _expand_back),
    "RepeatBackward0": _rule(_repeat, _repeat_back, "repeats"),
    "SliceBackward0": _rule(_slice, _slice_back, "dim", "start", "end", "step"),
    "SelectBackward0": _rule(_select, _select_back, "dim", "index"),
    "FlipBackward0": _rule(_flip, _flip, "dims"),
    "RollBackward0": _rule(_roll, _roll_back, "shifts", "dims"),
    "PixelShuffleBackward0": _rule(_shuffle, _unshuffle),
    "PixelUnshuffleBackward0": _rule(_unshuffle, _shuffle),
}
