"""Rules of matrix products."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from ormas_core.certificates import masks, signs
from ormas_core.certificates.graph import Node
from ormas_core.certificates.masks import MOST_ELEMENTS, Mask, Part, Shape
from ormas_core.certificates.rules.rule import Rule
from ormas_core.certificates.signs import Signs


def _swap(mask: Mask) -> Mask:
    axes = list(range(len(mask.shape)))
    axes[-2:] = axes[:-3:-1]
    return masks.permute(mask, axes)


def cover(a: Mask, b: Mask, shape: Shape) -> Mask:
    """Return the (n, o) for which every k has (n, k) in `a` or (k, o) in `b`.

    Shapes (..., N, K) and (..., K, O); the leading axes are equal, or 1.
    """
    parts: list[Part] = [masks.all_along(part, (-1,)) for part in a.parts]
    parts += [masks.all_along(part, (-2,)) for part in b.parts]
    for one in (*a.parts, *([a.dense()] if len(a.parts) > 1 else [])):
        if one.shape[-1] == 1:
            continue
        for other in (*b.parts, *([b.dense()] if len(b.parts) > 1 else [])):
            if other.shape[-2] == 1:
                continue
            size = max(one.size * other.shape[-1], other.size * one.shape[-2])
            if size <= MOST_ELEMENTS:
                both: Part = one[..., :, :, None] | other[..., None, :, :]
                parts.append(np.logical_and.reduce(both, axis=-2))
    return masks.union_of(shape, parts)


def _term_signs(a: Signs, b: Signs, shape: Shape) -> Signs:
    """Return the facts about the product: each term's sign, for sums over k of a[n,k] * b[k,o]."""
    nothing = masks.none(a.shape), masks.none(b.shape)
    zero = cover(a.zero, b.zero, shape)

    def both(one: Mask, other: Mask) -> Mask:
        left = cover(one, nothing[1], shape)
        return masks.meet(left, cover(nothing[0], other, shape))

    return signs.facts(
        zero,
        masks.join(both(a.neg, b.pos), both(a.pos, b.neg)),
        masks.join(both(a.neg, b.neg), both(a.pos, b.pos)),
    )


def _pair(node: Node, operands: Sequence[Signs], first: int) -> tuple[Signs, Signs]:
    """Return the facts about the two matrices; unknown for one outside the graph."""
    out = node.out_shapes[0]
    left, right = node.inputs[first : first + 2]
    inner = (
        node.in_shapes[first][-1]
        if left is not None
        else node.in_shapes[first + 1][-2]
        if right is not None
        else 1
    )
    a = operands[first] if left is not None else signs.unknown((*out[:-1], inner))
    b = operands[first + 1] if right is not None else signs.unknown((*out[:-2], inner, out[-1]))
    return a, b


def mm_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """mm, bmm: out[n, o] = sum over k of a[n, k] * b[k, o].

    Rule: zero where each term has a zero factor; of one sign where each term is.
    Requires: finite numbers.
    Rounding: sums of terms of one sign keep it, in any order and precision; zeros are exact.
    Source: IEEE 754; kernels of matrix products form only such sums.
    """
    a, b = _pair(node, operands, 0)
    return [_term_signs(a, b, node.out_shapes[0])]


def mm_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """mm, bmm: grad_a = grad @ b^T, grad_b = a^T @ grad.

    Rule: a[n, k]: every o is masked at (n, o) or b[k, o] is zero; likewise for b.
    Requires: finite numbers.
    Rounding: sums of zeros are exactly zero.
    Source: derivative of the matrix product.
    """
    a, b = _pair(node, operands, 0)
    return [
        cover(closed[0], _swap(b.zero), a.shape),
        cover(_swap(a.zero), closed[0], b.shape),
    ]


def addmm_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """addmm, baddbmm: beta * c + alpha * (a @ b).

    Rule: the sum of both terms' signs.
    Requires: alpha and beta as numbers, of either sign.
    Rounding: as for mm and add.
    Source: IEEE 754.
    """
    shape = node.out_shapes[0]
    a, b = _pair(node, operands, 1)
    matrix = signs.scaled(_term_signs(a, b, shape), float(node.attrs["alpha"]))
    beta = float(node.attrs["beta"])
    bias = signs.unknown(shape)
    if node.inputs[0] is not None or beta == 0:
        bias = signs.scaled(operands[0].map(lambda m: masks.spread(m, shape)), beta)
    return [signs.total(bias, matrix)]


def addmm_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """addmm, baddbmm: the matrices as in mm; c gets the gradient, summed over broadcast axes.

    Rule: c's element is masked where all its copies are.
    Requires: finite numbers.
    Rounding: sums of zeros are exactly zero.
    Source: derivative of the matrix product.
    """
    a, b = _pair(node, operands, 1)
    return [
        masks.gather(closed[0], node.in_shapes[0]),
        cover(closed[0], _swap(b.zero), a.shape),
        cover(_swap(a.zero), closed[0], b.shape),
    ]


def vector_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """mv, dot: as mm, with a single row or column.

    Rule: as mm.
    Requires: finite numbers.
    Rounding: as mm.
    Source: as mm.
    """
    a, b, _ = _as_matrices(node, operands)
    found = _term_signs(a, b, (a.shape[0], 1))
    return [found.map(lambda m: masks.reshape(m, node.out_shapes[0]))]


def vector_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """mv, dot: as mm, with a single row or column.

    Rule: as mm.
    Requires: finite numbers.
    Rounding: as mm.
    Source: as mm.
    """
    a, b, shapes = _as_matrices(node, operands)
    grad = masks.reshape(closed[0], (a.shape[0], 1))
    found = (cover(grad, _swap(b.zero), a.shape), cover(_swap(a.zero), grad, b.shape))
    return [masks.reshape(m, shape) for m, shape in zip(found, shapes, strict=True)]


def _as_matrices(node: Node, operands: Sequence[Signs]) -> tuple[Signs, Signs, tuple[Shape, Shape]]:
    """Return both factors as matrices (N, K) and (K, 1), and the shapes they have."""
    rows = node.out_shapes[0][0] if node.out_shapes[0] else 1
    inside = [edge is not None for edge in node.inputs]
    inner = node.in_shapes[1][0] if inside[1] else node.in_shapes[0][-1]
    matrices = ((rows, inner), (inner, 1))
    a, b = (
        operand.map(partial(masks.reshape, shape=shape)) if known else signs.unknown(shape)
        for operand, known, shape in zip(operands, inside, matrices, strict=True)
    )
    return a, b, ((rows, inner) if node.out_shapes[0] else (inner,), (inner,))


RULES = {
    "MvBackward0": Rule(vector_forward, vector_backward),
    "DotBackward0": Rule(vector_forward, vector_backward),
    "MmBackward0": Rule(mm_forward, mm_backward),
    "BmmBackward0": Rule(mm_forward, mm_backward),
    "AddmmBackward0": Rule(addmm_forward, addmm_backward, ("alpha", "beta")),
    "BaddbmmBackward0": Rule(addmm_forward, addmm_backward, ("alpha", "beta")),
}
