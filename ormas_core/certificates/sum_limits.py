"""Bounded sums: channels of a linear layer or convolution closed while its input keeps to a limit.

out = b + sum of x w is at most b + max|x| sum|w| in exact arithmetic, so a bias far enough below
zero closes the channel for every input up to a stated size. Rounded in any order, the sum is off by
a small part of |b| + max|x| sum|w|, for which room is left.

Source: docs/concepts/certificates.md, bounded sums.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ormas_core.certificates import masks
from ormas_core.certificates.boxes import box_of, holds
from ormas_core.certificates.graph import Node
from ormas_core.certificates.limits import MAGNITUDE, Premise
from ormas_core.certificates.masks import Mask
from ormas_core.certificates.norm_limits import DECAY_MARGIN, LEAST
from ormas_core.certificates.signs import Signs
from ormas_core.claims import Box

HEADROOM: Final = 1 + 2.0**-5
"""For factors that are rounded before they are multiplied: bfloat16 is off by 2^-8 at most."""
LEAST_INPUT: Final = 1.0
"""Smaller limits are not looked for: inputs are about one in size, or larger."""
ROUNDOFF: Final = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float64": 2.0**-53}
"""Unit roundoff of sums; float16 is left out, since small weights vanish in it."""
_AMPLIFIED: Final = {"AddmmBackward0": 1.0, "ConvolutionBackward0": 256.0}
"""How many times the roundings of a plain sum an algorithm may add, such as Winograd's."""
_MOST_ERROR: Final = 0.5


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sum has its factors.

    Attributes:
        bias: operand that is the bias.
        weight: operand that is the weight.
        axis: axis of the weight operand along which the channels lie.
    """

    bias: int
    weight: int
    axis: int


SUMS: Final[Mapping[str, Place]] = {
    "AddmmBackward0": Place(bias=0, weight=2, axis=1),
    "ConvolutionBackward0": Place(bias=2, weight=1, axis=0),
}


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """What the factors of one sum can reach under zero gradients, for the channels in question.

    Attributes:
        channels: their indices, shape (n,).
        total: largest sum of |w| of each, shape (n,).
        shift: the bias nearest to zero that each can reach, shape (n,).
        shrinks: whether decay shrinks the bias.
        floor: the sizes last while the biases are at least this large; 0 is no condition.
    """

    channels: NDArray[np.intp]
    total: NDArray[np.float64]
    shift: NDArray[np.float64]
    shrinks: bool
    floor: float


@dataclass(slots=True, eq=False)
class SumBound:
    """The limits of one sum, by channel; zero where it is not closed within any.

    Attributes:
        node: the sum.
        layer: the module whose input is limited.
        weight: id of the weight, a parameter.
        axis: axis of that parameter along which the channels lie.
        sizes: what its factors can reach.
        input_max: largest input of each channel, shape (channels,).
        alive: channels whose weights are not proven to stay.
    """

    node: Node
    layer: str
    weight: int
    axis: int
    sizes: Sizes
    input_max: NDArray[np.float64]
    alive: NDArray[np.bool_]

    @property
    def closes(self) -> NDArray[np.bool_]:
        """Which channels are closed within limits."""
        return (self.input_max > 0) & ~self.alive

    def held(self, operands: Sequence[Signs]) -> Mask:
        """Return the channels whose bias is <= 0; that the weights stay is for `narrow`."""
        neg = operands[SUMS[self.node.name].bias].neg
        return neg if len(neg.shape) == 1 else masks.none((len(self.input_max),))

    def narrow(self, closed: Mapping[int, Mask]) -> bool:
        """Give up the channels whose weights may have a gradient."""
        mask = closed.get(self.weight)
        lost = [
            int(channel)
            for channel in np.flatnonzero(self.closes)
            if mask is None
            or not holds(mask, box_of(mask.shape, self.axis, int(channel), int(channel) + 1))
        ]
        self.alive[lost] = True
        return bool(lost)

    def anew(self) -> "SumBound":
        """Return the bound as it was found, with nothing given up."""
        return replace(self, alive=np.zeros_like(self.alive))

    @property
    def floor(self) -> float:
        """The least size of a bias for which this holds; 0 is no condition."""
        return self.sizes.floor

    def orders(self) -> NDArray[np.int64]:
        """Return the power of two of each channel's limit."""
        return np.frexp(self.input_max)[1].astype(np.int64)

    def premises(self, box: Box) -> tuple[Premise, ...]:
        """Return the sign of the bias, and that the weights stay within their sum."""
        place, (span,) = SUMS[self.node.name], (box[1],)
        shape = self.node.in_shapes[place.weight]
        weights = tuple(
            span if axis == place.axis else (0, size, size) for axis, size in enumerate(shape)
        )
        return Premise(place.bias, ("neg",), (span,)), Premise(place.weight, (MAGNITUDE,), weights)

    def settings(self, channels: NDArray[np.bool_]) -> dict[str, str]:
        """Return the numbers that a reader needs to check the claim again."""
        own = channels[self.sizes.channels]
        numbers = {
            "weight": float(self.sizes.total[own].max()),
            "shift": float(self.sizes.shift[own].max()),
            "input_max": float(self.input_max[channels].min()),
            "roundoff": ROUNDOFF[self.node.dtype],
            "decay_margin": DECAY_MARGIN if self.sizes.shrinks else 1.0,
        }
        return {name: repr(value) for name, value in numbers.items()}

    def limits(self, channels: NDArray[np.bool_]) -> Iterator[tuple[str, float, float | None]]:
        """Yield the largest input."""
        yield "input_max", float(self.input_max[channels].min()), None


def bound_of(node: Node, sizes: Sizes) -> NDArray[np.float64]:
    """Return the largest input for which each channel's output is <= 0, shape (channels,).

    Rounded in any order, with factors that were rounded before, the computed sum is <= 0 where
    max|x| total HEADROOM (1 + error) <= |shift| (1 - error).
    """
    error = error_of(node)
    found = np.zeros(node.out_shapes[0][1])
    if error > _MOST_ERROR:
        return found
    room = -sizes.shift / (DECAY_MARGIN if sizes.shrinks else 1.0)
    usable = np.isfinite(sizes.total) & (sizes.total > LEAST) & np.isfinite(room) & (room > LEAST)
    with np.errstate(all="ignore"):
        most = room * (1 - error) / (sizes.total * HEADROOM * (1 + error)) * (1 - 2.0**-20)
    usable &= most >= LEAST_INPUT
    found[sizes.channels] = np.where(usable, most, 0.0)
    return found


def error_of(node: Node) -> float:
    """Return by which part of |b| + max|x| sum|w| the computed sum may be off."""
    place = SUMS[node.name]
    shape = node.in_shapes[place.weight]
    terms = math.prod(shape) // shape[place.axis]
    return 2 * _AMPLIFIED[node.name] * (terms + 2) * ROUNDOFF[node.dtype]
