"""What the checker knows of limits on sums: out = b + sum of x w <= 0 while |x| is small enough."""

import math
from typing import Final, NamedTuple

from ormas_core.certificates.check_lines import Line, need
from ormas_core.certificates.check_regions import all_of, covers
from ormas_core.claims import Fact

EXTRA: Final = ("weight", "shift", "input_max", "roundoff", "decay_margin")
"""Settings that a `limit` line about a sum has beside those of its operation."""

_LEAST_ROUNDOFF: Final = 2.0**-53
_HEADROOM: Final = 1 + 2.0**-5
_MOST_ERROR: Final = 0.5


class Factors(NamedTuple):
    """Where an operation has bias and weight, and what its algorithms may cost.

    Attributes:
        bias: operand that is added.
        weight: operand that is multiplied with the input.
        axis: the weight's axis of channels, which are axis 1 of the output.
        amplified: how many times the roundings of a plain sum an algorithm may add.
        unit: settings that must be 1.
    """

    bias: int
    weight: int
    axis: int
    amplified: float
    unit: tuple[str, ...] = ()


SUMS: Final = {
    "AddmmBackward0": Factors(bias=0, weight=2, axis=1, amplified=1.0, unit=("alpha", "beta")),
    "ConvolutionBackward0": Factors(bias=2, weight=1, axis=0, amplified=256.0),
}


def limited(line: Line) -> bool:
    """Whether a `limit` line about a sum follows: its channels are closed below the limit.

    That the weights of a channel sum up to no more than the line's number is for the run to know;
    that they stay so is what the premise about their magnitude stands for.
    """
    need(line.step.fact is Fact.NONPOSITIVE, "a limit only says that values are at most zero")
    factors = SUMS[line.step.op]
    out, shape = line.out(), line.operand(factors.weight)
    need(len(out) > 1 and factors.weight in line.known, "it has no weight")
    need(shape[factors.axis] == out[1], "the shapes do not fit")
    need(line.step.op != "ConvolutionBackward0" or not line.flag("transposed"), "it is transposed")
    need(all(line.number(name) == 1.0 for name in factors.unit), "its terms have factors")
    span = line.box[1]
    need(line.operand(factors.bias) == out[1:2], "the bias does not fit")
    weights = tuple(
        span if axis == factors.axis else all_of(size) for axis, size in enumerate(shape)
    )
    limit_of(line)
    held = covers(line.facts(factors.bias).low, (span,))
    return held and covers(line.facts(factors.weight).small, weights)


def limit_of(line: Line) -> float:
    """Return input_max of a `limit` line, after checking it against its other numbers.

    Summed in any order, n rounded terms are off by at most 2 n roundoff (|b| + max|x| sum|w|) while
    that factor is at most a half; factors rounded before they are multiplied cost a 2^-5th.

    Raises:
        Doubt: a number is missing, or the numbers do not leave room.
    """
    weight, shift, input_max, roundoff, margin = (line.number(name) for name in EXTRA)
    factors = SUMS[line.step.op]
    need(weight > 0 > shift and margin >= 1, "weight or shift do not fit")
    need(input_max > 0, "the limits are empty")
    shape = line.operand(factors.weight)
    terms = math.prod(shape) // shape[factors.axis]
    error = 2 * factors.amplified * (terms + 2) * roundoff
    need(roundoff >= _LEAST_ROUNDOFF and error <= _MOST_ERROR, "too few roundings, or too many")
    room = -shift / margin * (1 - error)
    need(input_max * weight * _HEADROOM * (1 + error) <= room, "the shift leaves no room")
    return input_max
