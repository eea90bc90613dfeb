"""Bounded batch norm: channels that stay closed while batch and input keep to stated limits.

In exact arithmetic |x_hat| <= sqrt(m - 1) for m elements in a channel, so |scale| sqrt(m - 1) +
shift <= 0 closes it for every batch of up to m elements. The computed mean is off by a rounding
error that grows with |x|, so the input's size is limited too.

Source: docs/concepts/certificates.md, bounded batch norm.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ormas_core.certificates import masks, signs
from ormas_core.certificates.graph import Node
from ormas_core.certificates.signs import Signs

SLACK: Final = 1 + 2.0**-6
MARGIN: Final = 16.0
"""A measured input must stay this many times below the limit."""
_DECAY_MARGIN: Final = 4.0
_LEAST: Final = 2.0**-100
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
class Limit:
    """The limits of one norm, by channel; zero where it is not closed within any."""

    m_max: NDArray[np.float64]
    x_max: NDArray[np.float64]


class Limits:
    """Conditional facts about the outputs of batch norms.

    Args:
        norms: id of a norm's node -> its scale and shift.
    """

    def __init__(self, norms: Mapping[int, tuple[Node, Affine]]) -> None:
        self._norms = norms
        self.found = {key: limits_of(node, affine) for key, (node, affine) in norms.items()}

    def facts(self, node: Node, operands: Sequence[Signs]) -> Sequence[Signs] | None:
        """Return that the output is <= 0 in the channels that the limits close.

        Only where scale and shift are still among the facts that hold themselves up.
        """
        limit = self.found.get(id(node))
        if limit is None:
            return None
        shape = node.out_shapes[0]
        held = masks.meet(masks.join(operands[1].neg, operands[1].pos), operands[2].neg)
        closed = masks.meet(held, masks.union_of(held.shape, [limit.m_max > 0]))
        parts = tuple(part.reshape((1, -1) + (1,) * (len(shape) - 2)) for part in closed.parts)
        neg = masks.Mask(shape, parts)
        nothing = masks.none(shape)
        rest = [signs.unknown(other) for other in node.out_shapes[1:]]
        return [Signs(nothing, neg, nothing), *rest]

    def settings(self, node: Node, channels: NDArray[np.bool_]) -> dict[str, str]:
        """Return the numbers that a reader needs to check the claim again."""
        limit, (_, affine) = self.found[id(node)], self._norms[id(node)]
        m_max = float(limit.m_max[channels].min())
        numbers = {
            "scale": float(affine.scale[channels].max()),
            "shift": float(affine.shift[channels].max()),
            "m_max": m_max,
            "x_max": float(limit.x_max[channels].min()),
            "eps": _eps(node),
            "roundoff": _ROUNDOFF[node.dtype],
            "m_factor": float(_factor(node, np.array(m_max))),
            "decay_margin": _DECAY_MARGIN if affine.shrinks else 1.0,
        }
        return {name: repr(value) for name, value in numbers.items()}


def elements(node: Node) -> int:
    """Return how many elements of each channel the norm saw."""
    shape = node.out_shapes[0]
    return math.prod(shape) // shape[1]


def limits_of(node: Node, affine: Affine) -> Limit:
    """Return the limits within which each channel's output is <= 0.

    Half of the shift is left to rounding, unless the present batch needs more of it.
    """
    scale, room = affine.scale, -affine.shift / (_DECAY_MARGIN if affine.shrinks else 1.0)
    usable = (scale > 0) & (room > 0) & np.isfinite(scale) & np.isfinite(room)
    if affine.shrinks:
        usable &= (scale > _LEAST) & (room > _LEAST)
    now = elements(node)
    with np.errstate(all="ignore"):
        half = np.floor((room / (2 * scale * SLACK)) ** 2 + 1)
        m_max = np.minimum(np.maximum(half, now), _MOST_ELEMENTS)
        left = room - scale * np.sqrt(m_max - 1) * SLACK
        factor = _factor(node, np.where(usable, m_max, 1.0))
        x_max = left * math.sqrt(_eps(node)) / (8 * factor * _ROUNDOFF[node.dtype] * scale)
    usable &= (left > 0) & (x_max > 0) & (now > 1)
    return Limit(np.where(usable, m_max, 0.0), np.where(usable, x_max, 0.0))


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
