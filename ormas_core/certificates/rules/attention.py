"""Rules of the fused scaled dot-product attention kernels."""

from collections.abc import Sequence

from ormas_core.certificates import masks, signs
from ormas_core.certificates.graph import Node
from ormas_core.certificates.masks import Mask, Shape
from ormas_core.certificates.rules.rule import Rule
from ormas_core.certificates.signs import Signs

_HEADS = 1


def _operands(node: Node, operands: Sequence[Signs]) -> tuple[Signs, Signs, Signs]:
    """Return q, k, v; unknown for one outside the graph, in the shape that matters least."""
    found = [
        operand if edge is not None else signs.unknown(shape)
        for operand, edge, shape in zip(operands, node.inputs[:3], node.in_shapes[:3], strict=True)
    ]
    return found[0], found[1], found[2]


def _all_heads(mask: Mask, heads: int) -> Mask:
    """Return, for each of `heads` groups of query heads, where all of them are in the mask."""
    have = mask.shape[_HEADS]
    if have == heads:
        return mask
    shape = mask.shape
    split = masks.reshape(mask, (shape[0], heads, have // heads, *shape[2:]))
    grouped = masks.all_over(split, (2,))
    return masks.reshape(grouped, (shape[0], heads, *shape[2:]))


def _each_head(mask: Mask, heads: int) -> Mask:
    """Repeat the mask of each key head for the query heads of its group."""
    have = mask.shape[_HEADS]
    if have == heads:
        return mask
    shape = mask.shape
    split = masks.reshape(mask, (shape[0], have, 1, *shape[2:]))
    spread = masks.Mask((shape[0], have, heads // have, *shape[2:]), split.parts)
    return masks.reshape(spread, (shape[0], heads, *shape[2:]))


def _whole_heads(mask: Mask) -> Mask:
    """Return the heads of which everything is in the mask, as (B, H, 1, 1)."""
    return masks.all_over(mask, (2, 3))


def _in(mask: Mask, shape: Shape) -> Mask:
    return masks.Mask(shape, mask.parts)


def attention_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """softmax(q k^T) v: a convex combination of the rows of v.

    Rule: where feature d of a head's v is zero (<= 0, >= 0) at every position, the output's is.
    Requires: v in the graph, of four axes (batch, heads, positions, features).
    Rounding: sums of products with weights >= 0 keep their sign; zeros are exact.
    Source: definition of attention; the fused kernels form only such sums.
    """
    shape = node.out_shapes[0]
    rest = [signs.unknown(other) for other in node.out_shapes[1:]]
    if len(shape) != 4 or node.inputs[2] is None:  # noqa: PLR2004
        return [signs.unknown(shape), *rest]
    v = operands[2]

    def over_positions(mask: Mask) -> Mask:
        return _in(_each_head(masks.all_over(mask, (2,)), shape[_HEADS]), shape)

    return [v.map(over_positions), *rest]


def attention_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """softmax(q k^T) v, with query heads in groups that share one head of k and v.

    Rule: v[s, d]: masked at d for all queries and all query heads of the group. q[t]: the output's
        row t is masked in all features, or k or v is exactly zero for the head. k: every row of
        every query head of the group is masked, or v is zero, or q is exactly zero for all of them.
        A float mask that needs a gradient: all heads masked, or v zero throughout.
    Requires: four axes; finite numbers.
    Rounding: the gradient of the scores is p * (dp - sum(p * dp)) with dp = grad v^T: exactly zero
        where grad is zero or v is zero.
    Source: derivative of attention (FlashAttention, appendix B).
    """
    shape = node.out_shapes[0]
    if len(shape) != 4:  # noqa: PLR2004
        return [masks.none(other) for other in node.in_shapes]
    q, k, v = _operands(node, operands[:3])
    heads = shape[_HEADS]
    inner = next(
        (s[_HEADS] for s, e in zip(node.in_shapes[1:3], node.inputs[1:3], strict=True) if e),
        heads,
    )
    out = closed[0]
    rows = masks.all_over(out, (3,))
    v_zero = _whole_heads(v.zero) if node.inputs[2] is not None else _nothing(shape[0], inner)
    k_zero = _whole_heads(k.zero) if node.inputs[1] is not None else _nothing(shape[0], inner)
    q_zero = _whole_heads(q.zero) if node.inputs[0] is not None else _nothing(shape[0], heads)
    v_out = _all_heads(masks.all_over(out, (2,)), inner)
    no_scores = masks.join(_all_heads(_whole_heads(out), inner), v_zero)
    q_mask = masks.join(
        rows,
        _in(_each_head(masks.join(k_zero, v_zero), heads), rows.shape),
    )
    k_mask = masks.join(no_scores, _all_heads(q_zero, inner))
    found = [
        _in(q_mask, node.in_shapes[0]),
        _in(k_mask, node.in_shapes[1]),
        _in(v_out, node.in_shapes[2]),
    ]
    for other in node.in_shapes[3:]:
        whole = no_scores.is_all
        found.append(masks.everything(other) if whole else masks.none(other))
    return found


def _nothing(batch: int, heads: int) -> Mask:
    return masks.none((batch, heads, 1, 1))


_FUSED = Rule(attention_forward, attention_backward)

RULES = dict.fromkeys(
    (
        "ScaledDotProductFlashAttentionForCpuBackward0",
        "ScaledDotProductFlashAttentionBackward0",
        "ScaledDotProductEfficientAttentionBackward0",
        "ScaledDotProductCudnnAttentionBackward0",
    ),
    _FUSED,
)
