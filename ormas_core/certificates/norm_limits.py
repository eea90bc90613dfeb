"""Bounded batch norm: channels that stay closed while batch and input keep to stated limits.

In exact arithmetic |x_hat| <= sqrt(m - 1) for m elements in a channel, and <= m / sqrt(m - 1)
about a mean that was rounded to the type of the inputs, as it is where parameters have half
precision. So |scale| m / sqrt(m - 1) + shift <= 0 closes it for every batch of up to m elements.
The computed mean is off by a rounding error that grows with |x|, so the input's size is limited
too.

Source: docs/concepts/certificates.md, bounded batch norm.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ormas_core.certificates import masks
from ormas_core.certificates.graph import Node
from ormas_core.certificates.limits import Premise
from ormas_core.certificates.masks import Mask
from ormas_core.certificates.signs import Signs
from ormas_core.claims import Box

SLACK: Final = 1 + 2.0**-6
DECAY_MARGIN: Final = 4.0
"""Where decay shrinks both sides of an inequality, it holds this many times over at first."""
LEAST: Final = 2.0**-100
_MOST_ELEMENTS: Final = 2.0**40
_ROUNDOFF: Final = {
    "float32": 2.0**-24,
    "float16": 2.0**-24,
    "bfloat16": 2.0**-24,
    "float64": 2.0**-53,
}
_PAIRWISE: Final = frozenset({"NativeBatchNormBackward0"})
"""Kernels whose channel means are summed pairwise, or by Welford's method."""
NORMS: Final = frozenset(
    {"NativeBatchNormBackward0", "CudnnBatchNormBackward0", "MiopenBatchNormBackward0"}
)


@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """Scale and shift of one norm, and how far they may move under zero gradients.

    Attributes:
        scale: largest |scale| each channel can reach, shape (channels,).
        shift: the shift nearest to zero that each channel can reach; positive where it may be >= 0.
        shrinks: whether decay shrinks both alike.
    """

    scale: NDArray[np.float64]
    shift: NDArray[np.float64]
    shrinks: bool


@dataclass(frozen=True, slots=True, eq=False)
class NormBound:
    """The limits of one norm, by channel; zero where it is not closed within any."""

    node: Node
    affine: Affine
    layer: str
    m_max: NDArray[np.float64]
    x_max: NDArray[np.float64]

    @property
    def closes(self) -> NDArray[np.bool_]:
        """Which channels are closed within limits."""
        return self.m_max > 0

    def held(self, operands: Sequence[Signs]) -> Mask:
        """Return the channels in which scale and shift have the signs that were measured."""
        return masks.meet(masks.join(operands[1].neg, operands[1].pos), operands[2].neg)

    def narrow(self, closed: Mapping[int, Mask]) -> bool:
        """Give up nothing: the signs of scale and shift stand for their sizes."""
        return False

    @property
    def weight(self) -> None:
        """None: of scale and shift the signs are facts, which stand for their sizes."""

    def anew(self) -> "NormBound":
        """Return itself: nothing is ever given up."""
        return self

    @property
    def floor(self) -> float:
        """No condition."""
        return 0.0

    def orders(self) -> NDArray[np.int64]:
        """Return one order for all: a norm's limits are stated for all its channels."""
        return np.zeros(len(self.m_max), np.int64)

    def premises(self, box: Box) -> tuple[Premise, ...]:
        """Return the signs of scale and shift."""
        return Premise(1, ("pos", "neg"), (box[1],)), Premise(2, ("neg",), (box[1],))

    def settings(self, channels: NDArray[np.bool_]) -> dict[str, str]:
        """Return the numbers that a reader needs to check the claim again."""
        m_max = float(self.m_max[channels].min())
        numbers = {
            "scale": float(self.affine.scale[channels].max()),
            "shift": float(self.affine.shift[channels].max()),
            "m_max": m_max,
            "x_max": float(self.x_max[channels].min()),
            "eps": _eps(self.node),
            "roundoff": _ROUNDOFF[self.node.dtype],
            "m_factor": float(_factor(self.node, np.array(m_max))),
            "decay_margin": DECAY_MARGIN if self.affine.shrinks else 1.0,
        }
        return {name: repr(value) for name, value in numbers.items()}

    def limits(self, channels: NDArray[np.bool_]) -> Iterator[tuple[str, float, float | None]]:
        """Yield the most elements of a channel, and the largest input."""
        yield "m_max", float(self.m_max[channels].min()), float(elements(self.node))
        yield "x_max", float(self.x_max[channels].min()), None


def elements(node: Node) -> int:
    """Return how many elements of each channel the norm saw."""
    shape = node.out_shapes[0]
    return math.prod(shape) // shape[1]


def bound_of(node: Node, affine: Affine, layer: str) -> NormBound:
    """Return the limits within which each channel's output is <= 0.

    Half of the shift is left to rounding, unless the present batch needs more of it.
    """
    scale, room = affine.scale, -affine.shift / (DECAY_MARGIN if affine.shrinks else 1.0)
    usable = (scale > 0) & (room > 0) & np.isfinite(scale) & np.isfinite(room)
    if affine.shrinks:
        usable &= (scale > LEAST) & (room > LEAST)
    now = elements(node)
    with np.errstate(all="ignore"):
        half = np.floor((room / (2 * scale * SLACK)) ** 2 + 1)
        m_max = np.minimum(np.maximum(half, now), _MOST_ELEMENTS)
        left = room - scale * m_max / np.sqrt(m_max - 1) * SLACK
        factor = _factor(node, np.where(usable, m_max, 1.0))
        x_max = left * math.sqrt(_eps(node)) / (8 * factor * _ROUNDOFF[node.dtype] * scale)
    usable &= (left > 0) & (x_max > 0) & (now > 1)
    limits = (np.where(usable, limit, 0.0) for limit in (m_max, x_max))
    return NormBound(node, affine, layer, *limits)


def covers(node: Node) -> bool:
    """Whether limits can be stated for this node: a batch norm in training mode."""
    return (
        node.name in NORMS
        and bool(node.attrs.get("training"))
        and _eps(node) > 0
        and node.dtype in _ROUNDOFF
        and len(node.out_shapes[0]) > 1
        and len(node.inputs) > 2  # noqa: PLR2004 - input, scale, shift
        and None not in node.inputs[1:3]
    )


def _eps(node: Node) -> float:
    return float(node.attrs.get("eps", node.attrs.get("epsilon", 0.0)))


def _factor(node: Node, m: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how many roundings the mean of m numbers adds up to."""
    return 4 + (np.log2(np.maximum(m, 1.0)) if node.name in _PAIRWISE else m)
