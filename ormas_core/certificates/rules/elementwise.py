"""Rules of functions of one operand, element by element."""

from collections.abc import Sequence
from typing import Final

from ormas_core.certificates import masks, signs
from ormas_core.certificates.graph import Node
from ormas_core.certificates.masks import Mask
from ormas_core.certificates.rules.rule import Backward, Rule, forget
from ormas_core.certificates.signs import Signs

_TINY: Final = 2.0**-24
"""Least positive number of half precision: a limit below it may be executed as zero."""

_LEAST_POWER: Final = 2.0**-6
_MOST_POWER: Final = 128
"""Exponents that keep their meaning when rounded to any floating point type."""


def _one(node: Node, closed: Mask) -> list[Mask]:
    """Return the mask for the first operand; settings that are tensors get none."""
    rest = [masks.none(shape) for shape in node.in_shapes[1:]]
    return [masks.gather(closed, node.in_shapes[0]), *rest]


def same_mask(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """Backward multiplies the gradient by a finite number.

    Rule: grad_in = grad_out * f'(x), so a zero stays zero.
    Requires: a finite f'(x).
    Rounding: zero times a finite number is exactly zero.
    Source: derivative of an elementwise function.
    """
    return _one(node, closed[0])


def keep_sign(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """gelu, silu, tanh, mish, hardswish, shrinks, casts, dropout, triangles: sign of x.

    Rule: f(0) = 0, f(x) <= 0 for x <= 0 and f(x) >= 0 for x >= 0.
    Requires: dropout factors >= 0.
    Rounding: f is a product of x with a computed number in [0, c], or odd; underflow gives zero.
    Source: definition of each function; casts round monotonically.
    """
    return [operands[0]]


def elu_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """elu, selu, celu: the sign of x where both factors are positive.

    Rule: as `keep_sign`.
    Requires: alpha >= 0, scale >= 0, input_scale >= 0.
    Rounding: expm1 is monotone with expm1(0) = 0.
    Source: definition of elu.
    """
    factors = [float(node.attrs.get(name, 1.0)) for name in ("alpha", "scale", "input_scale")]
    return keep_sign(node, operands) if min(factors) >= 0 else forget(node, operands)


def leaky_relu_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """Leaky relu: the sign of x for a slope >= 0; it never closes.

    Rule: f(x) = x for x > 0, slope * x otherwise.
    Requires: slope >= 0.
    Rounding: a product by a nonnegative number keeps the sign or underflows to zero.
    Source: definition of leaky relu.
    """
    keeps = float(node.attrs["negative_slope"]) >= 0
    return keep_sign(node, operands) if keeps else forget(node, operands)


def prelu_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """prelu: leaky relu with a slope for each channel.

    Rule: f(x) = x for x > 0, slope * x otherwise: zero for zero, >= 0 for x >= 0; <= 0 for x <= 0
        where slope >= 0; zero for x <= 0 where slope = 0.
    Requires: x in the graph.
    Rounding: a product keeps its sign or underflows to zero.
    Source: definition of prelu.
    """
    x, slope = operands[0], _slope(node, operands)
    neg = masks.join(x.zero, masks.meet(x.neg, slope.pos))
    pos = masks.join(x.pos, masks.meet(x.neg, slope.neg))
    return [signs.facts(x.zero, neg, pos)]


def prelu_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """prelu: x gets grad or grad * slope, the slope gets grad * x where x <= 0.

    Rule: x: also where x <= 0 and the slope is exactly zero. Slope: also where x >= 0.
    Requires: x in the graph, for the second parts.
    Rounding: exact for zero.
    Source: torch's prelu_kernel_backward.
    """
    x, slope = operands[0], _slope(node, operands)
    if node.inputs[0] is None:
        x = signs.unknown(node.out_shapes[0])
    shut = masks.join(closed[0], masks.meet(x.neg, slope.zero))
    rest = masks.join(closed[0], x.pos)
    return [masks.gather(shut, node.in_shapes[0]), masks.gather(rest, node.in_shapes[1])]


def _slope(node: Node, operands: Sequence[Signs]) -> Signs:
    shape = node.out_shapes[0]
    if node.inputs[1] is None:
        return signs.unknown(shape)
    return operands[1].map(lambda m: masks.spread(m, shape))


def become_nonnegative(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """sigmoid, hardsigmoid, exp, softplus, rsqrt, softmax: never negative.

    Rule: f(x) >= 0.
    Requires: nothing.
    Rounding: underflow gives zero.
    Source: range of each function.
    """
    return [signs.nonnegative(node.out_shapes[0])]


def softplus_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """softplus: never negative.

    Rule: f(x) = log(1 + exp(beta * x)) / beta, or x above the threshold.
    Requires: beta > 0; a threshold >= 0.
    Rounding: log1p of a nonnegative number is not negative.
    Source: definition of softplus.
    """
    beta, threshold = float(node.attrs["beta"]), float(node.attrs["threshold"])
    return become_nonnegative(node, operands) if beta > 0 <= threshold else forget(node, operands)


def zero_to_zero(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """sin, atan, erf, scalar products and quotients: zero stays zero.

    Rule: f(0) = 0; the sign of a scalar factor is not recorded, so no sign survives.
    Requires: a finite factor.
    Rounding: exact for zero.
    Source: definition of each function.
    """
    zero = operands[0].zero
    return [Signs(zero, zero, zero)]


def neg_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """neg: signs swap.

    Rule: f(x) = -x.
    Requires: nothing.
    Rounding: exact.
    Source: IEEE 754.
    """
    return [signs.negated(operands[0])]


def abs_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """abs, sqrt: zero stays zero, the rest is not negative.

    Rule: f(0) = 0, f(x) >= 0.
    Requires: nothing.
    Rounding: exact for zero.
    Source: definition of each function.
    """
    shape, zero = node.out_shapes[0], operands[0].zero
    return [signs.facts(zero, zero, masks.everything(shape))]


def abs_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """abs: also where x is exactly zero.

    Rule: grad_in = grad_out * sgn(x), and sgn(0) = 0.
    Requires: nothing.
    Rounding: exact.
    Source: torch's derivative of abs.
    """
    return _one(node, masks.join(closed[0], operands[0].zero))


def pow_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """X ** n for a number n.

    Rule: 0 ** n = 0 for n > 0; an even n gives x ** n >= 0; an odd n keeps the sign.
    Requires: the exponent as a number that half precision holds: large odd ones round to even
        ones there, tiny ones to zero.
    Rounding: computed powers of a nonnegative base are nonnegative; odd powers are odd.
    Source: IEEE 754 pow.
    """
    exponent = node.attrs["exponent"]
    shape = node.out_shapes[0]
    if not isinstance(exponent, int | float) or not _LEAST_POWER <= exponent <= _MOST_POWER:
        return forget(node, operands)
    if exponent % 2 == 0:
        return [signs.facts(operands[0].zero, operands[0].zero, masks.everything(shape))]
    return [operands[0]] if exponent % 2 == 1 else zero_to_zero(node, operands)


def pow_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """X ** n: for n > 1 also where x is exactly zero.

    Rule: grad_in = grad_out * n * x ** (n - 1).
    Requires: n > 1 in half precision too for the second part.
    Rounding: 0 ** (n - 1) is exactly zero.
    Source: torch's derivative of pow.
    """
    exponent = node.attrs["exponent"]
    extra = isinstance(exponent, int | float) and 1 + _LEAST_POWER <= exponent <= _MOST_POWER
    return _one(node, masks.join(closed[0], operands[0].zero) if extra else closed[0])


def relu_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """relu: zero where x <= 0.

    Rule: f(x) = max(x, 0).
    Requires: nothing.
    Rounding: exact.
    Source: definition of relu.
    """
    shut = operands[0].neg
    return [signs.facts(shut, shut, masks.everything(node.out_shapes[0]))]


def relu_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """relu: also where x <= 0.

    Rule: the gradient passes where the result is > 0.
    Requires: nothing.
    Rounding: exact.
    Source: torch computes threshold_backward(grad, result, 0).
    """
    return _one(node, masks.join(closed[0], operands[0].neg))


def hardtanh_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """hardtanh, relu6, clamp: between min and max.

    Rule: f(x) = min(max(x, lower), upper).
    Requires: the recorded limits.
    Rounding: exact.
    Source: definition of clamp.
    """
    shape, x = node.out_shapes[0], operands[0]
    lower, upper = _limits(node)
    lower = min(lower, upper)  # Then everything is set to the upper one.
    every, nothing = masks.everything(shape), masks.none(shape)
    neg = every if upper <= 0 else x.neg if lower <= 0 else nothing
    pos = every if lower >= 0 else x.pos if upper >= 0 else nothing
    return [signs.facts(nothing, neg, pos)]


def hardtanh_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """hardtanh, relu6: also where x <= min or x >= max.

    Rule: the gradient passes strictly between the limits.
    Requires: the recorded limits.
    Rounding: exact.
    Source: torch's hardtanh_backward.
    """
    x = operands[0]
    lower, upper = _limits(node)
    shut = masks.join(
        x.neg if lower >= 0 else masks.none(x.shape), x.pos if upper <= 0 else masks.none(x.shape)
    )
    return _one(node, masks.join(closed[0], shut))


def clamp_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """clamp: also where x is strictly outside the limits.

    Rule: the gradient passes where lower <= x <= upper, limits included.
    Requires: the recorded limits, not so small that they round to zero in half precision.
    Rounding: exact.
    Source: torch's derivative of clamp.
    """
    x = operands[0]
    lower, upper = _limits(node)
    shut = masks.join(
        x.neg if lower > _TINY else masks.none(x.shape),
        x.pos if upper < -_TINY else masks.none(x.shape),
    )
    return _one(node, masks.join(closed[0], shut))


def threshold_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """threshold: also where x <= threshold.

    Rule: the gradient passes where x > threshold; the value put in its place is not recorded.
    Requires: the recorded threshold.
    Rounding: exact.
    Source: torch's threshold_backward.
    """
    shut = operands[0].neg if float(node.attrs["threshold"]) >= 0 else masks.none(closed[0].shape)
    return _one(node, masks.join(closed[0], shut))


def _limits(node: Node) -> tuple[float, float]:
    names = ("min_val", "max_val") if "min_val" in node.attrs else ("min", "max")
    lower, upper = (node.attrs.get(name) for name in names)
    return (
        float("-inf") if lower is None else float(lower),
        float("inf") if upper is None else float(upper),
    )


def _plain(*names: str, backward: Backward = same_mask) -> dict[str, Rule]:
    return dict.fromkeys(names, Rule(keep_sign, backward))


RULES = {
    **_plain(
        "GeluBackward0",
        "SiluBackward0",
        "TanhBackward0",
        "MishBackward0",
        "HardswishBackward0",
        "ToCopyBackward0",
        "NativeDropoutBackward0",
        "HardshrinkBackward0",
        "SoftshrinkBackward0",
        "TrilBackward0",
        "TriuBackward0",
    ),
    "CeluBackward0": Rule(elu_forward, same_mask, ("alpha",)),
    "EluBackward1": Rule(elu_forward, same_mask, ("alpha", "scale", "input_scale")),
    "PreluKernelBackward0": Rule(prelu_forward, prelu_backward),
    "EluBackward0": Rule(elu_forward, same_mask, ("alpha", "scale", "input_scale")),
    "LeakyReluBackward0": Rule(leaky_relu_forward, same_mask, ("negative_slope",)),
    "SigmoidBackward0": Rule(become_nonnegative, same_mask),
    "HardsigmoidBackward0": Rule(become_nonnegative, same_mask),
    "ExpBackward0": Rule(become_nonnegative, same_mask),
    "SoftplusBackward0": Rule(softplus_forward, same_mask, ("beta", "threshold")),
    "RsqrtBackward0": Rule(become_nonnegative, same_mask),
    "LogSigmoidBackward0": Rule(forget, same_mask),
    "SqrtBackward0": Rule(abs_forward, same_mask),
    "SinBackward0": Rule(zero_to_zero, same_mask),
    "ErfBackward0": Rule(zero_to_zero, same_mask),
    "AtanBackward0": Rule(zero_to_zero, same_mask),
    "CosBackward0": Rule(forget, same_mask),
    "LogBackward0": Rule(forget, same_mask),
    "ReciprocalBackward0": Rule(forget, same_mask),
    "MulBackward1": Rule(zero_to_zero, same_mask),
    "DivBackward1": Rule(zero_to_zero, same_mask),
    "AddBackward1": Rule(forget, same_mask),
    "SubBackward1": Rule(forget, same_mask),
    "RsubBackward1": Rule(forget, same_mask),
    "MaskedFillBackward0": Rule(forget, same_mask),
    "PowBackward2": Rule(forget, same_mask),
    "NegBackward0": Rule(neg_forward, same_mask),
    "AbsBackward0": Rule(abs_forward, abs_backward),
    "PowBackward0": Rule(pow_forward, pow_backward, ("exponent",)),
    "ReluBackward0": Rule(relu_forward, relu_backward, gate=True),
    "HardtanhBackward0": Rule(
        hardtanh_forward, hardtanh_backward, ("min_val", "max_val"), gate=True
    ),
    "ThresholdBackward0": Rule(forget, threshold_backward, ("threshold",), gate=True),
    "ClampBackward1": Rule(hardtanh_forward, clamp_backward, ("min", "max"), gate=True),
    "ClampMinBackward0": Rule(hardtanh_forward, clamp_backward, ("min",), gate=True),
    "ClampMaxBackward0": Rule(hardtanh_forward, clamp_backward, ("max",), gate=True),
}
