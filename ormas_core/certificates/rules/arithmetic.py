"""Rules of operations on two or three operands, element by element, with broadcasting."""

from collections.abc import Sequence

from ormas_core.certificates import masks, signs
from ormas_core.certificates.graph import Node
from ormas_core.certificates.masks import Mask
from ormas_core.certificates.rules.rule import Rule, forget
from ormas_core.certificates.signs import Signs


def _spread(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """Broadcast the operands to the shape of the output."""
    shape = node.out_shapes[0]
    return [
        signs.unknown(shape) if edge is None else operand.map(lambda m: masks.spread(m, shape))
        for edge, operand in zip(node.inputs, operands, strict=True)
    ]


def pass_both(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """Every operand gets the gradient times a finite number, summed over broadcast axes.

    Rule: grad_in is zero where all copies of the element have a zero gradient.
    Requires: finite factors (alpha; 1 / b; the shares of a tie).
    Rounding: sums of zeros are exactly zero.
    Source: derivative of sums, quotients and choices.
    """
    return [masks.gather(closed[0], shape) for shape in node.in_shapes]


def add_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """A + alpha * b.

    Rule: a sum of terms of one sign has that sign; of zeros, is zero.
    Requires: both operands in the graph; alpha as a number.
    Rounding: rounding a sum keeps its sign.
    Source: IEEE 754.
    """
    a, b = _spread(node, operands)
    return [signs.total(a, signs.scaled(b, float(node.attrs["alpha"])))]


def sub_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """A - alpha * b.

    Rule: as addition, with the factor -alpha.
    Requires: both operands in the graph; alpha as a number.
    Rounding: rounding a difference keeps its sign.
    Source: IEEE 754.
    """
    a, b = _spread(node, operands)
    return [signs.total(a, signs.scaled(b, -float(node.attrs["alpha"])))]


def mul_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """A * b.

    Rule: zero if either is zero; the product of the signs.
    Requires: finite numbers. A scalar or mask outside the graph is of unknown sign.
    Rounding: underflow gives zero, which is of both signs.
    Source: IEEE 754.
    """
    a, b = _spread(node, operands)
    return [signs.product(a, b)]


def mul_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """A * b: a gets grad * b, b gets grad * a.

    Rule: also zero where the other factor is exactly zero.
    Requires: finite numbers.
    Rounding: exact for zero.
    Source: product rule.
    """
    a, b = _spread(node, operands)
    found = (masks.join(closed[0], b.zero), masks.join(closed[0], a.zero))
    return [masks.gather(m, shape) for m, shape in zip(found, node.in_shapes, strict=True)]


def div_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """A / b.

    Rule: 0 / b = 0; the product of the signs.
    Requires: finite results, so b is not zero.
    Rounding: underflow gives zero.
    Source: IEEE 754.
    """
    a, b = _spread(node, operands)
    return [signs.product(a, Signs(masks.none(a.shape), b.neg, b.pos))]


def div_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """A / b: a gets grad / b, b gets -grad * a / b**2.

    Rule: b's gradient is also zero where a is exactly zero.
    Requires: finite results.
    Rounding: exact for zero.
    Source: quotient rule.
    """
    a, _ = _spread(node, operands)
    found = (closed[0], masks.join(closed[0], a.zero))
    return [masks.gather(m, shape) for m, shape in zip(found, node.in_shapes, strict=True)]


def maximum_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """maximum(a, b).

    Rule: <= 0 where both are, >= 0 where either is.
    Requires: nothing.
    Rounding: exact.
    Source: definition.
    """
    a, b = _spread(node, operands)
    neg = masks.meet(a.neg, b.neg)
    return [signs.facts(masks.meet(a.zero, b.zero), neg, masks.join(a.pos, b.pos))]


def minimum_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """minimum(a, b).

    Rule: >= 0 where both are, <= 0 where either is.
    Requires: nothing.
    Rounding: exact.
    Source: definition.
    """
    a, b = _spread(node, operands)
    pos = masks.meet(a.pos, b.pos)
    return [signs.facts(masks.meet(a.zero, b.zero), masks.join(a.neg, b.neg), pos)]


def where_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """where(condition, a, b).

    Rule: what holds for both holds for the choice.
    Requires: both in the graph.
    Rounding: exact.
    Source: definition.
    """
    spread = _spread(node, operands)
    if len(spread) != 2:  # noqa: PLR2004 - the condition is not an operand of the graph
        return forget(node, operands)
    a, b = spread
    meet = masks.meet
    return [Signs(meet(a.zero, b.zero), meet(a.neg, b.neg), meet(a.pos, b.pos))]


def glu_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """glu: a * sigmoid(b) for the two halves a, b along one axis.

    Rule: the sign of a.
    Requires: the recorded axis.
    Rounding: a product with a number in [0, 1] keeps the sign, or underflows to zero.
    Source: definition of glu.
    """
    axis, half = _halves(node)
    return [operands[0].map(lambda m: masks.take(m, axis, slice(0, half)))]


def glu_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """glu: a gets grad * sigmoid(b), b gets grad * a * sigmoid'(b).

    Rule: b's half also where a is exactly zero.
    Requires: the recorded axis.
    Rounding: exact for zero.
    Source: product rule.
    """
    axis, half = _halves(node)
    zero = masks.take(operands[0].zero, axis, slice(0, half))
    return [masks.concatenate([closed[0], masks.join(closed[0], zero)], axis)]


def _halves(node: Node) -> tuple[int, int]:
    shape = node.in_shapes[0]
    axis = int(node.attrs["dim"]) % len(shape)
    return axis, shape[axis] // 2


RULES = {
    "GluBackward0": Rule(glu_forward, glu_backward, ("dim",)),
    "AddBackward0": Rule(add_forward, pass_both, ("alpha",)),
    "SubBackward0": Rule(sub_forward, pass_both, ("alpha",)),
    "MulBackward0": Rule(mul_forward, mul_backward),
    "DivBackward0": Rule(div_forward, div_backward),
    "MaximumBackward0": Rule(maximum_forward, pass_both),
    "MinimumBackward0": Rule(minimum_forward, pass_both),
    "WhereBackward0": Rule(where_forward, pass_both),
}
