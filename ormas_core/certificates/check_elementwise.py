"""What the checker knows of functions that act on each element by itself.

y = f(x). The gradient sent to x is the gradient of y times f'(x): zero where either is. Every
number formed is finite (hypothesis H2), so zero times anything is zero.
"""

import math
from collections.abc import Callable
from typing import Final

from ormas_core.certificates.check_lines import (
    NOTHING,
    Facts,
    Line,
    Operation,
    Table,
    facts,
    found_box,
    need,
    product,
    scaled,
    total,
)
from ormas_core.certificates.check_regions import (
    Boxes,
    covers,
    meets,
    placed,
    spread,
    whole,
    window,
)

_TINY: Final = 2.0**-24
"""Settings below it are zero once rounded to half precision; the dtype is not recorded."""
_MOST_ODD: Final = 256
"""From here on, odd numbers may be even once rounded to a half type."""

Forward = Callable[[Line, Facts], Facts]
Flat = Callable[[Line, Facts], Boxes]
Pair = Callable[[Line, Facts, Facts], Facts]
FlatPair = Callable[[Line, Facts, Facts], tuple[Boxes, Boxes]]


def _never(line: Line, x: Facts) -> Boxes:
    return ()


def one(forward: Forward, flat: Flat = _never) -> Operation:
    """Return the rule of a function of one operand: `flat` says where f'(x) is zero."""

    def value(line: Line) -> bool:
        need(line.operand(0) == line.out(), "the shapes do not fit")
        return covers(forward(line, line.facts(0)).of(line.step.fact), line.box)

    def backward(line: Line) -> bool:
        need(line.step.position == 0, "only its first operand gets a gradient")
        need(line.operand(0) == line.out(), "the shapes do not fit")
        return covers((*line.shut(), *flat(line, line.facts(0))), line.box)

    return Operation(value, backward)


def _sign_of(line: Line, x: Facts) -> Facts:
    """Where f(0) = 0 and f(x) is on the same side of zero as x."""
    return x


def _nothing(line: Line, x: Facts) -> Facts:
    """The value depends on numbers that are not recorded."""
    return NOTHING


def _at_least_zero(line: Line, x: Facts) -> Facts:
    """Where f(x) >= 0 for every x."""
    return facts(high=(whole(line.out()),))


def _zero_at_zero(line: Line, x: Facts) -> Facts:
    """Where f(0) = 0; f is odd or periodic, or has a factor of unknown sign."""
    return facts(zero=x.zero)


def _mirrored(line: Line, x: Facts) -> Facts:
    """Negation: signs swap."""
    return scaled(x, -1.0, line.out())


def _size(line: Line, x: Facts) -> Facts:
    """Where f(0) = 0 and f(x) >= 0 for every x."""
    return facts(zero=x.zero, high=(whole(line.out()),))


def _elu(line: Line, x: Facts) -> Facts:
    """Elu: scale * (x, or alpha * (exp(c * x) - 1) for x <= 0): the sign of x for factors >= 0."""
    names = ("alpha",) if line.step.op == "CeluBackward0" else ("alpha", "scale", "input_scale")
    return x if min(map(line.number, names)) >= 0 else NOTHING


def _leaky_relu(line: Line, x: Facts) -> Facts:
    """Leaky relu: x, or slope * x for x <= 0: the sign of x for a slope >= 0."""
    return x if line.number("negative_slope") >= 0 else NOTHING


def _softplus(line: Line, x: Facts) -> Facts:
    """Softplus: log(1 + exp(beta * x)) / beta, or x above a threshold >= 0."""
    fine = line.number("beta") > 0 and line.number("threshold") >= 0
    return _at_least_zero(line, x) if fine else NOTHING


def _power(line: Line, x: Facts) -> Facts:
    """Power x ** n for n > 0: zero at zero; even n gives >= 0, odd n the sign of x."""
    exponent = line.number("exponent")
    if exponent < _TINY:
        return NOTHING
    if exponent % 2 == 0:
        return _size(line, x)
    odd = exponent % 2 == 1 and exponent < _MOST_ODD
    return x if odd else _zero_at_zero(line, x)


def _power_flat(line: Line, x: Facts) -> Boxes:
    """Its derivative n * x ** (n - 1) is zero at zero for n > 1."""
    return x.zero if line.number("exponent") >= 1 + _TINY else ()


def _relu(line: Line, x: Facts) -> Facts:
    """Relu is max(x, 0): zero for x <= 0, never below."""
    return facts(zero=x.low, high=(whole(line.out()),))


def _clamp(lower: str, upper: str) -> Forward:
    def forward(line: Line, x: Facts) -> Facts:
        """Clamp is min(max(x, lower), upper), in this order, also where lower > upper."""
        low, high = _bounds(line, lower, upper)
        every = (whole(line.out()),)
        return facts(
            low=every if high <= 0 else x.low if low <= 0 else (),
            high=() if high < 0 else every if low >= 0 else x.high,
        )

    return forward


def _bounds(line: Line, lower: str, upper: str) -> tuple[float, float]:
    return (
        line.bound(lower, -math.inf) if lower else -math.inf,
        line.bound(upper, math.inf) if upper else math.inf,
    )


def _flat_at_bounds(line: Line, x: Facts) -> Boxes:
    """Hardtanh passes the gradient only for min < x < max."""
    low, high = _bounds(line, "min_val", "max_val")
    return (*(x.low if low >= 0 else ()), *(x.high if high <= 0 else ()))


def _flat_outside(lower: str, upper: str) -> Flat:
    def flat(line: Line, x: Facts) -> Boxes:
        """Clamp passes the gradient at its bounds too: x must be strictly outside."""
        low, high = _bounds(line, lower, upper)
        return (*(x.low if low > _TINY else ()), *(x.high if high < -_TINY else ()))

    return flat


def _threshold_flat(line: Line, x: Facts) -> Boxes:
    """Threshold passes the gradient only for x > threshold."""
    return x.low if line.number("threshold") >= 0 else ()


def _where_low(line: Line, x: Facts) -> Boxes:
    """Its f is constant for x <= 0."""
    return x.low


def _where_zero(line: Line, x: Facts) -> Boxes:
    """Its f'(0) = 0, by torch's convention sgn(0) = 0."""
    return x.zero


def two(forward: Pair, flat: FlatPair | None = None) -> Operation:
    """Return the rule of a function of two operands that broadcast.

    An operand's element gets the sum over its copies of grad * df/da: all of these must be zero.
    `flat` says where either derivative is.
    """

    def value(line: Line) -> bool:
        a, b = (line.facts_in(operand, line.out()) for operand in (0, 1))
        need(len(line.step.operands) == 2, "it has not two operands")  # noqa: PLR2004
        return covers(forward(line, a, b).of(line.step.fact), line.box)

    def backward(line: Line) -> bool:
        position, out = line.step.position, line.out()
        need(position < 2 and len(line.step.operands) == 2, "it has not two operands")  # noqa: PLR2004
        a, b = (line.facts_in(operand, out) for operand in (0, 1))
        zero = flat(line, a, b)[position] if flat is not None else ()
        goal = found_box(spread(line.box, line.operand(position), out))
        return covers((*line.shut(), *zero), goal)

    return Operation(value, backward)


def _sum(line: Line, a: Facts, b: Facts) -> Facts:
    """Sum a + alpha * b: both terms of one sign."""
    return total(a, scaled(b, line.number("alpha"), line.out()))


def _difference(line: Line, a: Facts, b: Facts) -> Facts:
    """Difference a - alpha * b: as the sum, with -alpha."""
    return total(a, scaled(b, -line.number("alpha"), line.out()))


def _product(line: Line, a: Facts, b: Facts) -> Facts:
    return product(a, b)


def _product_flat(line: Line, a: Facts, b: Facts) -> tuple[Boxes, Boxes]:
    """Since d(ab)/da = b and d(ab)/db = a."""
    return b.zero, a.zero


def _quotient(line: Line, a: Facts, b: Facts) -> Facts:
    """Quotient a / b: b is not zero, since the quotient is finite; the sign is that of a * b."""
    return product(a, Facts((), b.low, b.high))


def _quotient_flat(line: Line, a: Facts, b: Facts) -> tuple[Boxes, Boxes]:
    """Since d(a/b)/db = -a / b**2 is zero where a is."""
    return (), a.zero


def _larger(line: Line, a: Facts, b: Facts) -> Facts:
    """Maximum: >= 0 where either is, <= 0 where both are."""
    return facts(meets(a.zero, b.zero), meets(a.low, b.low), (*a.high, *b.high))


def _smaller(line: Line, a: Facts, b: Facts) -> Facts:
    """Minimum: <= 0 where either is, >= 0 where both are."""
    return facts(meets(a.zero, b.zero), (*a.low, *b.low), meets(a.high, b.high))


def _either(line: Line, a: Facts, b: Facts) -> Facts:
    """One of a and b: what holds for both."""
    return facts(*(meets(x, y) for x, y in zip(a, b, strict=True)))


def _prelu(line: Line, x: Facts, slope: Facts) -> Facts:
    """Prelu: x for x > 0, slope * x otherwise."""
    return facts(
        x.zero,
        meets(x.low, slope.high),
        (*x.high, *meets(x.low, slope.low)),
    )


def _prelu_flat(line: Line, x: Facts, slope: Facts) -> tuple[Boxes, Boxes]:
    """With x <= 0, df/dx = slope and df/dslope = x; with x > 0 the second is zero."""
    return meets(x.low, slope.zero), x.high


def _halves(line: Line) -> tuple[int, int]:
    """Return the axis and the size of the halves (a, b) of a glu."""
    shape, out = line.operand(0), line.out()
    axis = line.axis("dim", len(shape))
    half = shape[axis] // 2
    need(out == (*shape[:axis], half, *shape[axis + 1 :]), "the shapes do not fit")
    need(2 * half == shape[axis], "the halves do not fit")
    return axis, half


def _glu_value(line: Line) -> bool:
    """Glu, a * sigmoid(b): the sign of a."""
    axis, half = _halves(line)
    span = placed(line.box[axis], half, 0, 2 * half)
    goal = (*line.box[:axis], span, *line.box[axis + 1 :])
    return covers(line.facts(0).of(line.step.fact), goal)


def _glu_backward(line: Line) -> bool:
    """Since a gets grad * sigmoid(b), and b gets grad * a * sigmoid'(b)."""
    axis, half = _halves(line)
    need(line.step.position == 0, "only its first operand gets a gradient")
    zero = []
    for box in line.facts(0).zero:
        start, stop, period = box[axis]
        if period == 2 * half and start < half:
            span = (start, min(stop, half), half)
            zero.append((*box[:axis], span, *box[axis + 1 :]))
    for offset, dead in ((0, ()), (half, zero)):
        span_in = window(line.box[axis], 2 * half, offset, half)
        if span_in is not None:
            goal = (*line.box[:axis], span_in, *line.box[axis + 1 :])
            if not covers((*line.shut(), *dead), goal):
                return False
    return True


TABLE: Final[Table] = {
    "GeluBackward0": one(_sign_of),
    "SiluBackward0": one(_sign_of),
    "TanhBackward0": one(_sign_of),
    "MishBackward0": one(_sign_of),
    "HardswishBackward0": one(_sign_of),
    "ToCopyBackward0": one(_sign_of),
    "NativeDropoutBackward0": one(_sign_of),
    "HardshrinkBackward0": one(_sign_of),
    "SoftshrinkBackward0": one(_sign_of),
    "TrilBackward0": one(_sign_of),
    "TriuBackward0": one(_sign_of),
    "EluBackward0": one(_elu),
    "EluBackward1": one(_elu),
    "CeluBackward0": one(_elu),
    "LeakyReluBackward0": one(_leaky_relu),
    "SigmoidBackward0": one(_at_least_zero),
    "HardsigmoidBackward0": one(_at_least_zero),
    "ExpBackward0": one(_at_least_zero),
    "RsqrtBackward0": one(_at_least_zero),
    "SoftplusBackward0": one(_softplus),
    "SqrtBackward0": one(_size),
    "SinBackward0": one(_zero_at_zero),
    "ErfBackward0": one(_zero_at_zero),
    "AtanBackward0": one(_zero_at_zero),
    "MulBackward1": one(_zero_at_zero),
    "DivBackward1": one(_zero_at_zero),
    "CosBackward0": one(_nothing),
    "LogBackward0": one(_nothing),
    "LogSigmoidBackward0": one(_nothing),
    "ReciprocalBackward0": one(_nothing),
    "AddBackward1": one(_nothing),
    "SubBackward1": one(_nothing),
    "RsubBackward1": one(_nothing),
    "MaskedFillBackward0": one(_nothing),
    "PowBackward2": one(_nothing),
    "NegBackward0": one(_mirrored),
    "AbsBackward0": one(_size, _where_zero),
    "PowBackward0": one(_power, _power_flat),
    "ReluBackward0": one(_relu, _where_low),
    "HardtanhBackward0": one(_clamp("min_val", "max_val"), _flat_at_bounds),
    "ThresholdBackward0": one(_nothing, _threshold_flat),
    "ClampBackward1": one(_clamp("min", "max"), _flat_outside("min", "max")),
    "ClampMinBackward0": one(_clamp("min", ""), _flat_outside("min", "")),
    "ClampMaxBackward0": one(_clamp("", "max"), _flat_outside("", "max")),
    "AddBackward0": two(_sum),
    "SubBackward0": two(_difference),
    "MulBackward0": two(_product, _product_flat),
    "DivBackward0": two(_quotient, _quotient_flat),
    "MaximumBackward0": two(_larger),
    "MinimumBackward0": two(_smaller),
    "WhereBackward0": two(_either),
    "PreluKernelBackward0": two(_prelu, _prelu_flat),
    "GluBackward0": Operation(_glu_value, _glu_backward),
}
