"""Rules of batch, layer, group and root-mean-square normalisation with scale and shift."""

import math
from collections.abc import Sequence

from ormas_core.certificates import masks, signs
from ormas_core.certificates.graph import SYNC_BATCH_NORM, Node
from ormas_core.certificates.masks import Mask, Shape
from ormas_core.certificates.rules.rule import Rule
from ormas_core.certificates.signs import Signs


def _affine(node: Node, operands: Sequence[Signs], like: Shape) -> tuple[Signs, Signs]:
    """Return the facts about scale and shift; unknown for one that is outside the graph."""
    found = []
    for position in (1, 2):
        inside = len(node.inputs) > position and node.inputs[position] is not None
        found.append(operands[position] if inside else signs.unknown(like))
    return found[0], found[1]


def _channels(mask: Mask, shape: Shape) -> Mask:
    """Return the (C,) mask seen in an (N, C, ...) tensor."""
    rank = len(shape)
    parts = tuple(part.reshape((1, -1) + (1,) * (rank - 2)) for part in mask.parts)
    return masks.Mask(shape, parts)


def _per_channel(mask: Mask) -> Mask:
    axes = [axis for axis in range(len(mask.shape)) if axis != 1]
    return masks.reshape(masks.all_over(mask, axes), (mask.shape[1],))


def _shifted(silent: Mask, shift: Signs) -> Signs:
    """Return the facts about shift + something that is exactly zero where `silent`."""
    return Signs(
        masks.meet(silent, shift.zero), masks.meet(silent, shift.neg), masks.meet(silent, shift.pos)
    )


def _training(node: Node) -> bool:
    """Whether the statistics are those of the batch, and the division is guarded."""
    if node.name == SYNC_BATCH_NORM:
        # It exists in training only. Its eps is not recorded; with eps = 0 a zero channel gives
        # 0 / 0, which the hypothesis of finite numbers excludes.
        return True
    eps = node.attrs.get("eps", node.attrs.get("epsilon"))
    return bool(node.attrs.get("training", True)) and isinstance(eps, float) and eps > 0


def batch_norm_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """Batch norm: where x_hat or the scale is exactly zero, the output is the shift.

    Rule: a channel that is exactly zero everywhere has mean and x_hat exactly zero. In evaluation
        mode x_hat is of unknown value, so only a zero scale counts.
    Requires: scale and shift in the graph; eps > 0.
    Rounding: x * a + (shift - mean * a) with a = invstd * scale is exactly the shift for a = 0 and
        for x = mean = 0. A constant channel that is not zero cancels only up to rounding.
    Source: torch's kernels; docs/concepts/certificates.md.
    """
    shape = node.out_shapes[0]
    scale, shift = _affine(node, operands, (shape[1],))
    silent = scale.zero
    if _training(node) and node.inputs[0] is not None:
        silent = masks.join(silent, _per_channel(operands[0].zero))
    found = _shifted(silent, shift).map(lambda m: _channels(m, shape))
    return [found, *(signs.unknown(other) for other in node.out_shapes[1:])]


def batch_norm_backward(
    node: Node, operands: Sequence[Signs], closed: Sequence[Mask]
) -> list[Mask]:
    """Batch norm: by channels.

    Rule: input: the whole channel is masked, or the scale is exactly zero. Scale: masked, or x_hat
        exactly zero. Shift: masked.
    Requires: as forward.
    Rounding: every term of the input's gradient has the factor scale * grad_out.
    Source: derivative of batch norm.
    """
    shape = node.out_shapes[0]
    scale, _ = _affine(node, operands, (shape[1],))
    shut = _per_channel(closed[0])
    flat = masks.none(shut.shape)
    if _training(node) and node.inputs[0] is not None:
        flat = _per_channel(operands[0].zero)
    found = [_channels(masks.join(shut, scale.zero), shape), masks.join(shut, flat), shut]
    # Running statistics and settings of other kernels come after these three.
    rest = [masks.none(other) for other in node.in_shapes[3:]]
    return [*found[: len(node.inputs)], *rest]


def layer_norm_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """Layer norm, fused RMS norm: where x_hat or the scale is exactly zero, it is the shift.

    Rule: x_hat is exactly zero only where the whole row is.
    Requires: scale and shift in the graph; without a shift operand (RMS norm) it is zero.
    Rounding: as for batch norm.
    Source: torch's kernels.
    """
    shape = node.out_shapes[0]
    rows = _rows(node, operands, shape)
    tail = _tail(node, shape)
    scale, shift = _affine(node, operands, tail)
    silent = masks.join(rows, masks.spread(scale.zero, shape))
    if len(node.inputs) == 2:  # noqa: PLR2004 - an RMS norm has no shift
        found = Signs(silent, silent, silent)
    else:
        found = _shifted(silent, shift.map(lambda m: masks.spread(m, shape)))
    return [found, *(signs.unknown(other) for other in node.out_shapes[1:])]


def layer_norm_backward(
    node: Node, operands: Sequence[Signs], closed: Sequence[Mask]
) -> list[Mask]:
    """Layer norm, fused RMS norm.

    Rule: input: every feature of its row is masked or has scale zero, since each feature's gradient
        enters all of the row. Scale: masked, or x_hat exactly zero, in every row. Shift: masked.
    Requires: as forward.
    Rounding: sums of zeros are exactly zero.
    Source: derivative of layer norm.
    """
    shape = node.out_shapes[0]
    tail = _tail(node, shape)
    scale, _ = _affine(node, operands, tail)
    axes = range(len(shape) - len(tail), len(shape))
    either = masks.join(closed[0], masks.spread(scale.zero, shape))
    inputs = masks.spread(masks.all_over(either, axes), shape)
    rows = _rows(node, operands, shape)
    found = [
        masks.Mask(shape, inputs.parts),
        masks.gather(masks.join(closed[0], rows), tail),
        masks.gather(closed[0], tail),
    ]
    return found[: len(node.inputs)]


def _tail(node: Node, shape: Shape) -> Shape:
    return shape[len(shape) - len(node.attrs["normalized_shape"]) :]


def _rows(node: Node, operands: Sequence[Signs], shape: Shape) -> Mask:
    """Return the elements whose whole row is exactly zero."""
    if node.inputs[0] is None:
        return masks.none(shape)
    axes = range(len(shape) - len(node.attrs["normalized_shape"]), len(shape))
    return masks.Mask(shape, masks.all_over(operands[0].zero, axes).parts)


def _grouped(node: Node, shape: Shape) -> Shape:
    """Return (N, groups, channels in a group, positions)."""
    groups = int(node.attrs["group"])
    return (shape[0], groups, shape[1] // groups, math.prod(shape[2:]))


def group_norm_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """Group norm: where x_hat or the scale is exactly zero, the output is the shift.

    Rule: x_hat is exactly zero only where the whole group is.
    Requires: scale and shift in the graph.
    Rounding: as for batch norm.
    Source: torch's kernels.
    """
    shape = _image(node)
    scale, shift = _affine(node, operands, (shape[1],))
    silent = masks.join(_silent_groups(node, operands, shape), _channels(scale.zero, shape))
    found = _shifted(silent, shift.map(lambda m: _channels(m, shape)))
    found = found.map(lambda m: masks.reshape(m, node.out_shapes[0]))
    return [found, *(signs.unknown(other) for other in node.out_shapes[1:])]


def group_norm_backward(
    node: Node, operands: Sequence[Signs], closed: Sequence[Mask]
) -> list[Mask]:
    """Group norm.

    Rule: input: every channel of its group is masked or has scale zero. Scale: masked, or x_hat
        exactly zero. Shift: masked.
    Requires: as forward.
    Rounding: sums of zeros are exactly zero.
    Source: derivative of group norm.
    """
    shape = _image(node)
    scale, _ = _affine(node, operands, (shape[1],))
    shut = masks.reshape(closed[0], shape)
    either = masks.reshape(masks.join(shut, _channels(scale.zero, shape)), _grouped(node, shape))
    group = masks.Mask(_grouped(node, shape), masks.all_over(either, (2, 3)).parts)
    found = [
        masks.reshape(masks.reshape(group, shape), node.in_shapes[0]),
        _per_channel(masks.join(shut, _silent_groups(node, operands, shape))),
        _per_channel(shut),
    ]
    return found[: len(node.inputs)]


def _image(node: Node) -> Shape:
    """Return (N, C, positions)."""
    attrs = node.attrs
    return (int(attrs["N"]), int(attrs["C"]), int(attrs["HxW"]))


def _silent_groups(node: Node, operands: Sequence[Signs], shape: Shape) -> Mask:
    if node.inputs[0] is None:
        return masks.none(shape)
    split = _grouped(node, shape)
    flat = masks.reshape(operands[0].zero, split)
    return masks.reshape(masks.Mask(split, masks.all_over(flat, (2, 3)).parts), shape)


_BATCH = (batch_norm_forward, batch_norm_backward)

RULES = {
    "NativeBatchNormBackward0": Rule(*_BATCH, ("training", "eps")),
    "CudnnBatchNormBackward0": Rule(*_BATCH, ("training", "epsilon")),
    "MiopenBatchNormBackward0": Rule(*_BATCH, ("training", "epsilon")),
    SYNC_BATCH_NORM: Rule(*_BATCH),
    "NativeLayerNormBackward0": Rule(
        layer_norm_forward, layer_norm_backward, ("normalized_shape",)
    ),
    "FusedRmsNormBackward0": Rule(layer_norm_forward, layer_norm_backward, ("normalized_shape",)),
    "NativeGroupNormBackward0": Rule(
        group_norm_forward, group_norm_backward, ("N", "C", "HxW", "group")
    ),
}
