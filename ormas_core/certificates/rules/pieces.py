"""Rules of operations that cut tensors apart and put them together."""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

from ormas_core.certificates import masks, signs
from ormas_core.certificates.graph import Node
from ormas_core.certificates.masks import Mask, Shape
from ormas_core.certificates.rules.rule import Rule, forget
from ormas_core.certificates.signs import Signs


def _axis(value: int, rank: int) -> int:
    return value % rank


def pad_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """constant_pad_nd: the gradient of the part that was kept; negative pads cut off.

    Rule: padding is outside the graph. The value put in is not recorded, so no fact passes.
    Requires: the recorded pads.
    Rounding: none.
    Source: definition of constant_pad_nd.
    """
    mask = closed[0]
    pads = [int(pad) for pad in node.attrs["pad"]]
    for i in range(0, len(pads), 2):
        axis = len(mask.shape) - 1 - i // 2
        size, before = node.in_shapes[0][axis], pads[i]
        kept = masks.take(
            mask, axis, slice(max(before, 0), max(before, 0) + _kept(size, pads[i : i + 2]))
        )
        cut = max(-before, 0)
        mask = masks.put(kept, axis, slice(cut, cut + kept.shape[axis]), size)
    return [mask]


def _kept(size: int, pads: Sequence[int]) -> int:
    return size + sum(min(pad, 0) for pad in pads)


def _pieces(node: Node) -> tuple[int, list[slice]]:
    shape = node.in_shapes[0]
    axis = _axis(int(node.attrs["dim"]), len(shape))
    ends = list(accumulate(out[axis] for out in node.out_shapes))
    return axis, [
        slice(end - out[axis], end) for end, out in zip(ends, node.out_shapes, strict=True)
    ]


def split_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """split, chunk: consecutive pieces along one axis.

    Rule: every output element is an element of the operand.
    Requires: the recorded axis.
    Rounding: none.
    Source: definition of split.
    """
    axis, pieces = _pieces(node)
    return [operands[0].map(partial(masks.take, axis=axis, index=piece)) for piece in pieces]


def split_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """split, chunk: the pieces' masks side by side.

    Rule: each element has the gradient of its place in one piece.
    Requires: the recorded axis.
    Rounding: none.
    Source: definition of split.
    """
    axis, _ = _pieces(node)
    return [masks.concatenate(closed, axis)]


def unbind_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """unbind: one output for each index along one axis.

    Rule: every output element is an element of the operand.
    Requires: the recorded axis.
    Rounding: none.
    Source: definition of unbind.
    """
    axis = _axis(int(node.attrs["dim"]), len(node.in_shapes[0]))
    return [
        operands[0].map(partial(_index, axis=axis, place=i, shape=shape))
        for i, shape in enumerate(node.out_shapes)
    ]


def _index(mask: Mask, axis: int, place: int, shape: Shape) -> Mask:
    return masks.reshape(masks.take(mask, axis, slice(place, place + 1)), shape)


def unbind_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """unbind: the outputs' masks stacked.

    Rule: each element has the gradient of its place in one output.
    Requires: the recorded axis.
    Rounding: none.
    Source: definition of unbind.
    """
    axis = _axis(int(node.attrs["dim"]), len(node.in_shapes[0]))
    return [masks.concatenate([_thin(mask, axis) for mask in closed], axis)]


def _thin(mask: Mask, axis: int) -> Mask:
    return masks.reshape(mask, (*mask.shape[:axis], 1, *mask.shape[axis:]))


def _places(node: Node, axis: int) -> list[slice] | None:
    """Return where each operand lies along the axis; None where that is not known.

    The size of an operand outside the graph is not recorded: it is what the others leave.
    """
    known = [
        None if edge is None else shape[axis]
        for edge, shape in zip(node.inputs, node.in_shapes, strict=True)
    ]
    left = node.out_shapes[0][axis] - sum(size for size in known if size is not None)
    if left and known.count(None) != 1:
        return None
    sizes = [left if size is None else size for size in known]
    return [slice(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]


def cat_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """cat: the operands side by side.

    Rule: every output element is an element of one operand.
    Requires: at most one operand of unknown size outside the graph.
    Rounding: none.
    Source: definition of cat.
    """
    shape = node.out_shapes[0]
    axis = _axis(int(node.attrs["dim"]), len(shape))
    places = _places(node, axis)
    if places is None:
        return forget(node, operands)
    pieces = [
        operand
        if edge is not None
        else signs.unknown((*shape[:axis], place.stop - place.start, *shape[axis + 1 :]))
        for edge, operand, place in zip(node.inputs, operands, places, strict=True)
    ]
    zero, neg, pos = (
        masks.concatenate([getattr(piece, fact) for piece in pieces], axis)
        for fact in ("zero", "neg", "pos")
    )
    return [Signs(zero, neg, pos)]


def cat_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """cat: each operand gets its piece.

    Rule: each element has the gradient of its one place.
    Requires: at most one operand of unknown size outside the graph; otherwise only what is masked
        all along the axis passes.
    Rounding: none.
    Source: definition of cat.
    """
    axis = _axis(int(node.attrs["dim"]), len(node.out_shapes[0]))
    places = _places(node, axis)
    if places is None:
        along = masks.all_over(closed[0], (axis,))
        return [masks.Mask(shape, along.parts) for shape in node.in_shapes]
    return [masks.take(closed[0], axis, place) for place in places]


def stack_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """stack: the operands along a new axis.

    Rule: every output element is an element of one operand.
    Requires: operands in the graph.
    Rounding: none.
    Source: definition of stack.
    """
    axis = _axis(int(node.attrs["dim"]), len(node.out_shapes[0]))
    if any(edge is None for edge in node.inputs):
        return forget(node, operands)
    zero, neg, pos = (
        masks.concatenate([_thin(getattr(operand, fact), axis) for operand in operands], axis)
        for fact in ("zero", "neg", "pos")
    )
    return [Signs(zero, neg, pos)]


def stack_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """stack: each operand gets its slice.

    Rule: each element has the gradient of its one place.
    Requires: the recorded axis.
    Rounding: none.
    Source: definition of stack.
    """
    axis = _axis(int(node.attrs["dim"]), len(node.out_shapes[0]))
    shape = node.out_shapes[0]
    piece = (*shape[:axis], *shape[axis + 1 :])
    return [
        masks.reshape(masks.take(closed[0], axis, slice(i, i + 1)), piece)
        for i in range(len(node.inputs))
    ]


RULES = {
    "ConstantPadNdBackward0": Rule(forget, pad_backward, ("pad",)),
    "SplitBackward0": Rule(split_forward, split_backward, ("dim",), outputs=1 << 30),
    "SplitWithSizesBackward0": Rule(split_forward, split_backward, ("dim",), outputs=1 << 30),
    "UnbindBackward0": Rule(unbind_forward, unbind_backward, ("dim",), outputs=1 << 30),
    "CatBackward0": Rule(cat_forward, cat_backward, ("dim",)),
    "StackBackward0": Rule(stack_forward, stack_backward, ("dim",)),
}
