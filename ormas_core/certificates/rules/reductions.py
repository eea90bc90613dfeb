"""Rules of sums, means, extremes, softmax and pooling."""

from collections.abc import Sequence

from ormas_core.certificates import masks, signs
from ormas_core.certificates.graph import Node
from ormas_core.certificates.masks import Mask, Shape
from ormas_core.certificates.rules.elementwise import become_nonnegative
from ormas_core.certificates.rules.rule import Rule, forget
from ormas_core.certificates.signs import Signs


def _axes(node: Node) -> list[int]:
    """Return the reduced axes; all of them where none are recorded."""
    rank = len(node.in_shapes[0])
    dims = node.attrs.get("dim")
    if dims is None or dims == ():
        return list(range(rank))
    dims = dims if isinstance(dims, tuple) else (dims,)
    return [int(dim) % rank for dim in dims] if rank else []


def _kept(node: Node) -> Shape:
    """Return the operand's shape with size 1 along the reduced axes."""
    axes = set(_axes(node))
    return tuple(1 if axis in axes else size for axis, size in enumerate(node.in_shapes[0]))


def reduce_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """sum, mean, amax, amin: what holds for all elements holds for the result.

    Rule: a sum or mean of terms of one sign keeps it; of zeros, is zero.
    Requires: the recorded axes.
    Rounding: rounding a sum keeps its sign.
    Source: IEEE 754.
    """
    axes, shape = _axes(node), node.out_shapes[0]
    return [operands[0].map(lambda m: masks.reshape(masks.all_over(m, axes), shape))]


def reduce_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """sum, mean, amax, amin, norms, variances: every element gets a multiple of the result's.

    Rule: an element is masked where its result is.
    Requires: the recorded axes; finite factors.
    Rounding: exact for zero.
    Source: derivative of each.
    """
    kept = masks.reshape(closed[0], _kept(node))
    return [masks.Mask(node.in_shapes[0], kept.parts)]


def norm_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """Vector norm, variance, standard deviation: never negative; zero for zeros.

    Rule: f >= 0, f(0) = 0.
    Requires: the recorded axes.
    Rounding: sums of squares are not negative.
    Source: definition.
    """
    shape = node.out_shapes[0]
    zero = masks.reshape(masks.all_over(operands[0].zero, _axes(node)), shape)
    return [signs.facts(zero, zero, masks.everything(shape))]


def along_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """softmax, log_softmax, cumsum: elements along one axis are tied together.

    Rule: an element is masked only where all along the axis are.
    Requires: the recorded axis.
    Rounding: sums of zeros are exactly zero.
    Source: derivative of softmax: out * (grad - sum(grad * out)).
    """
    shape = node.in_shapes[0]
    whole = masks.all_over(closed[0], _axes(node))
    return [masks.Mask(shape, whole.parts)]


def _per_plane(mask: Mask, lead: int) -> Mask:
    return masks.all_over(mask, range(lead, len(mask.shape)))


def pool_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """pooling, copying pads, and linear or nearest upsampling: by channels.

    Rule: what holds at every position of a channel holds for averages and maxima over them.
    Requires: weights >= 0 (so not bicubic, and no negative divisor); padding adds zeros, or
        nothing to a maximum.
    Rounding: as for sums.
    Source: definition of each.
    """
    shape = node.out_shapes[0]
    if (node.attrs.get("divisor_override") or 1) < 0:
        return forget(node, operands)
    lead = len(shape) - _spatial(node)
    first = operands[0].map(lambda m: masks.Mask(shape, _per_plane(m, lead).parts))
    return [first, *(signs.unknown(other) for other in node.out_shapes[1:])]


def smooth_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """Bicubic and antialiased upsampling: by channels, zeros only.

    Rule: a channel that is exactly zero stays so; weights of both signs keep no sign.
    Requires: finite weights.
    Rounding: sums of zeros are exactly zero.
    Source: definition of each.
    """
    return [Signs(s.zero, s.zero, s.zero) for s in pool_forward(node, operands)]


def pool_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """Pooling and upsampling: by channels.

    Rule: a channel of the operand is masked where all its outputs are.
    Requires: nothing more.
    Rounding: sums of zeros are exactly zero.
    Source: derivative of each.
    """
    shape = node.in_shapes[0]
    lead = len(shape) - _spatial(node)
    return [masks.Mask(shape, _per_plane(closed[0], lead).parts)]


def _spatial(node: Node) -> int:
    """Return the number of pooled axes, which the name of the operation ends with."""
    return next((int(c) for c in node.name if c in "123"), 1)


_POOL = Rule(pool_forward, pool_backward)
_AVERAGE = Rule(pool_forward, pool_backward, ("divisor_override",))
_NORM = Rule(norm_forward, reduce_backward, ("dim",))

RULES = {
    "SumBackward0": Rule(reduce_forward, reduce_backward),
    "SumBackward1": Rule(reduce_forward, reduce_backward, ("dim",)),
    "MeanBackward0": Rule(reduce_forward, reduce_backward),
    "MeanBackward1": Rule(reduce_forward, reduce_backward, ("dim",)),
    "AmaxBackward0": Rule(reduce_forward, reduce_backward, ("dim",)),
    "AminBackward0": Rule(reduce_forward, reduce_backward, ("dim",)),
    "MaxBackward0": Rule(reduce_forward, reduce_backward, ("dim",)),
    "MaxBackward1": Rule(reduce_forward, reduce_backward),
    "MinBackward0": Rule(reduce_forward, reduce_backward, ("dim",)),
    "MinBackward1": Rule(reduce_forward, reduce_backward),
    "LinalgVectorNormBackward0": _NORM,
    "VarBackward0": _NORM,
    "StdBackward0": _NORM,
    "LogsumexpBackward0": Rule(forget, reduce_backward, ("dim",)),
    "SoftmaxBackward0": Rule(become_nonnegative, along_backward, ("dim",)),
    "SafeSoftmaxBackward0": Rule(become_nonnegative, along_backward, ("dim",)),
    "LogSoftmaxBackward0": Rule(forget, along_backward, ("dim",)),
    "CumsumBackward0": Rule(forget, along_backward, ("dim",)),
    "UpsampleBicubic2DBackward0": Rule(smooth_forward, pool_backward),
    "UpsampleBilinear2DAaBackward0": Rule(smooth_forward, pool_backward),
    "AvgPool2DBackward0": _AVERAGE,
    "AvgPool3DBackward0": _AVERAGE,
    **dict.fromkeys(
        (
            "MaxPool2DWithIndicesBackward0",
            "MaxPool3DWithIndicesBackward0",
            "AdaptiveAvgPool2DBackward0",
            "AdaptiveAvgPool3DBackward0",
            "AdaptiveMaxPool2DBackward0",
            "AdaptiveMaxPool3DBackward0",
            "ReflectionPad1DBackward0",
            "ReflectionPad2DBackward0",
            "ReflectionPad3DBackward0",
            "ReplicationPad1DBackward0",
            "ReplicationPad2DBackward0",
            "ReplicationPad3DBackward0",
            "UpsampleNearestExact1DBackward0",
            "UpsampleNearestExact2DBackward0",
            "UpsampleNearestExact3DBackward0",
            "UpsampleNearest1DBackward0",
            "UpsampleNearest2DBackward0",
            "UpsampleNearest3DBackward0",
            "UpsampleLinear1DBackward0",
            "UpsampleBilinear2DBackward0",
            "UpsampleTrilinear3DBackward0",
        ),
        _POOL,
    ),
}
