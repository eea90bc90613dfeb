"""One planted bug for each rule of the table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ormas_core.certificates import masks, signs
from ormas_core.certificates.graph import Node
from ormas_core.certificates.masks import Mask, Shape
from ormas_core.certificates.rules import RULES
from ormas_core.certificates.rules.rule import Backward, Forward, Rule
from ormas_core.certificates.signs import Signs

Change = Callable[[Rule], Rule]


def _forward(change: Callable[[Node, Sequence[Signs], list[Signs]], Sequence[Signs]]) -> Change:
    """Return a bug that changes what a rule found forward."""

    def planted(rule: Rule) -> Rule:
        def forward(node: Node, operands: Sequence[Signs]) -> Sequence[Signs]:
            return change(node, operands, list(rule.forward(node, operands)))

        return rule._replace(forward=forward)

    return planted


def _backward(
    change: Callable[[Node, Sequence[Signs], Sequence[Mask], list[Mask]], Sequence[Mask]],
) -> Change:
    """Return a bug that changes what a rule found backward."""

    def planted(rule: Rule) -> Rule:
        def backward(
            node: Node, operands: Sequence[Signs], closed: Sequence[Mask]
        ) -> Sequence[Mask]:
            return change(node, operands, closed, list(rule.backward(node, operands, closed)))

        return rule._replace(backward=backward)

    return planted


def _with_attrs(**attrs: Any) -> Change:
    """Return a bug that ignores a recorded setting: another one is read."""

    def planted(rule: Rule) -> Rule:
        forward: Forward = lambda n, o: rule.forward(_changed(n, attrs), o)  # noqa: E731
        backward: Backward = lambda n, o, c: rule.backward(_changed(n, attrs), o, c)  # noqa: E731
        return rule._replace(forward=forward, backward=backward)

    return planted


def _changed(node: Node, attrs: Mapping[str, Any]) -> Node:
    return replace(node, attrs={**node.attrs, **attrs})


def _shift(mask: Mask) -> Mask:
    """Return the set, moved by one place along every axis."""
    axes = tuple(range(len(mask.shape)))
    parts = (np.roll(part, 1, axes) if axes else part for part in mask.parts)
    return masks.union_of(mask.shape, parts)


def _any_along(mask: Mask, axes: Sequence[int]) -> Mask:
    parts = [part.any(axis=tuple(axes), keepdims=True) for part in mask.parts]
    return masks.union_of(mask.shape, parts)


def _everywhere_if_any(mask: Mask) -> Mask:
    return masks.everything(mask.shape) if mask.parts else mask


def _first(found: list[Mask], mask: Mask) -> list[Mask]:
    return [masks.join(found[0], masks.gather(mask, found[0].shape)), *found[1:]]


closes_at_zero = _backward(lambda n, o, c, found: _first(found, o[0].zero))
"""The gradient is thought to stop where x is zero."""
closes_where_positive = _backward(lambda n, o, c, found: _first(found, o[0].pos))
closes_where_negative = _backward(lambda n, o, c, found: _first(found, o[0].neg))
keeps_sign = _forward(lambda n, o, found: [o[0], *found[1:]])
"""The result is thought to have the sign of x."""
is_negative = _forward(lambda n, o, found: [signs.negated(found[0]), *found[1:]])
moves_back = _backward(lambda n, o, c, found: [_shift(mask) for mask in found])
"""Masks come back one place off."""
moves_there = _forward(lambda n, o, found: [one.map(_shift) for one in found])


def _shaped(mask: Mask, shape: Shape) -> Mask:
    """Return the mask with the other axes read as if they were in it."""
    return masks.Mask(shape, _any_along(mask, range(len(mask.shape))).parts)


def _elementwise(n: Node, o: Any, c: Sequence[Mask], found: list[Mask]) -> list[Mask]:
    """Softmax, layer norm: each element by itself."""
    return [masks.join(found[0], c[0]), *found[1:]]


by_element = _backward(_elementwise)


def _any_of_channel(n: Node, o: Any, c: Sequence[Mask], found: list[Mask]) -> list[Mask]:
    shape = n.in_shapes[0]
    rank = len(shape)
    axes = [axis for axis in range(rank) if axis != (1 if rank > 3 or n.name[0] != "A" else 0)]
    grown = masks.Mask(shape, _any_along(c[0], axes[1:] or axes).parts)
    return [masks.join(found[0], grown), *found[1:]]


any_of_channel = _backward(_any_of_channel)
"""A channel is thought to be masked where one of its positions is."""


def _any_axis_forward(n: Node, o: Sequence[Signs], found: list[Signs]) -> list[Signs]:
    shape = n.out_shapes[0]

    def some(mask: Mask) -> Mask:
        return masks.everything(shape) if mask.parts else masks.none(shape)

    return [o[0].map(some), *found[1:]]


any_forward = _forward(_any_axis_forward)
"""What holds for some elements is thought to hold for all results."""
whole_if_any = _backward(lambda n, o, c, found: [_whole(c[0], m) for m in found])


def _whole(closed: Mask, mask: Mask) -> Mask:
    return masks.everything(mask.shape) if closed.parts else mask


other_operand = _backward(lambda n, o, c, found: [_crossed(found, o, i) for i in range(len(found))])


def _crossed(found: list[Mask], operands: Sequence[Signs], i: int) -> Mask:
    """Return the mask of an operand with where the operand *itself* is zero."""
    return masks.join(found[i], operands[i].zero)


both_signs = _forward(lambda n, o, found: [_loose(n, o)])


def _loose(node: Node, operands: Sequence[Signs]) -> Signs:
    """Return what holds of either operand."""
    shape = node.out_shapes[0]
    a, b = (
        signs.unknown(shape) if e is None else x.map(lambda m: masks.spread(m, shape))
        for e, x in zip(node.inputs, operands, strict=True)
    )
    return signs.facts(
        masks.join(a.zero, b.zero), masks.join(a.neg, b.neg), masks.join(a.pos, b.pos)
    )


def _by_feature(n: Node, o: Sequence[Signs], found: list[Signs]) -> list[Signs]:
    """Norms: x_hat is thought to be zero where x is."""
    shift = signs.unknown(n.out_shapes[0])
    here = o[0].zero
    none = masks.none(shift.shape)
    return [_also(found[0], here, none), *found[1:]]


def _also(found: Signs, zero: Mask, none: Mask) -> Signs:
    return signs.facts(masks.join(found.zero, zero), found.neg, found.pos)


x_hat_by_element = _forward(_by_feature)


def _columns(n: Node, o: Sequence[Signs], c: Sequence[Mask], found: list[Mask]) -> list[Mask]:
    """Matrix products: a[n, k] is thought to be masked where one o of its row is."""
    at = len(found) - 2
    a = found[at]
    rows = masks.Mask(a.shape, tuple(p.any(-1, keepdims=True) for p in c[0].parts))
    return [*found[:at], masks.join(a, rows), *found[at + 1 :]]


any_column = _backward(_columns)
one_term = _forward(lambda n, o, found: [_one_term(n, o, found[0])])


def _one_term(node: Node, operands: Sequence[Signs], found: Signs) -> Signs:
    """Return the facts with: a row of one sign makes the product zero or negative."""
    left = operands[-2].neg if node.inputs[-2] is not None else masks.none(found.shape)
    rows = masks.all_over(left, (len(left.shape) - 1,)).parts if left.parts else ()
    if node.name.startswith("Dot"):
        rows = tuple(part.reshape(()) for part in rows)
    if node.name.startswith("Mv"):
        rows = tuple(part.reshape(-1) for part in rows)
    return signs.facts(found.zero, masks.join(found.neg, masks.Mask(found.shape, rows)), found.pos)


def _no_groups(n: Node, o: Sequence[Signs], c: Sequence[Mask], found: list[Mask]) -> list[Mask]:
    """Convolution: an input channel is thought to belong to the first group only."""
    groups = int(n.attrs["groups"])
    if groups == 1:
        return found
    size = found[0].shape[1] // groups
    first = masks.take(found[0], 1, slice(0, size))
    return [masks.concatenate([first] * groups, 1), *found[1:]]


def _same_axes(n: Node, o: Sequence[Signs], c: Sequence[Mask], found: list[Mask]) -> list[Mask]:
    """Transposed convolution: its weight is read as (out, in)."""
    shape = n.in_shapes[1]
    if not n.attrs["transposed"] or shape[0] != shape[1]:
        return found
    return [found[0], masks.permute(found[1], (1, 0, *range(2, len(shape)))), *found[2:]]


def _value_rows(n: Node, o: Sequence[Signs], c: Sequence[Mask], found: list[Mask]) -> list[Mask]:
    """Attention: v is thought to be masked where the output of the same position is."""
    if n.in_shapes[2] != n.out_shapes[0]:
        return found
    return [*found[:2], masks.join(found[2], c[0]), *found[3:]]


def _query_group(n: Node, o: Sequence[Signs], c: Sequence[Mask], found: list[Mask]) -> list[Mask]:
    """Attention: k is thought to be masked where one query head of its group is."""
    shape = n.in_shapes[1]
    heads = masks.all_over(c[0], (2, 3))
    split = masks.reshape(heads, (shape[0], shape[1], heads.shape[1] // shape[1], 1, 1))
    grouped = _any_along(split, (2,))
    own = masks.reshape(
        masks.Mask((shape[0], shape[1], 1, 1, 1), grouped.parts), (shape[0], shape[1], 1, 1)
    )
    return [found[0], masks.join(found[1], masks.Mask(shape, own.parts)), *found[2:]]


def _key_position(n: Node, o: Sequence[Signs], c: Sequence[Mask], found: list[Mask]) -> list[Mask]:
    """Attention: q is thought to be masked where one feature of the output row is."""
    rows = _any_along(c[0], (3,))
    return [masks.join(found[0], masks.Mask(found[0].shape, rows.parts)), *found[1:]]


def _batch_hull(n: Node, o: Sequence[Signs], found: list[Signs]) -> list[Signs]:
    """Attention: an output is thought to have the sign of its own position in v."""
    if n.inputs[2] is None or o[2].shape != n.out_shapes[0]:
        return found
    return [o[2], *found[1:]]


def _drops_constant(node: Node, operands: Sequence[Signs], found: list[Signs]) -> list[Signs]:
    """cat, stack: a constant operand is thought to be zero."""
    axis = int(node.attrs["dim"]) % len(node.out_shapes[0])
    if node.name.startswith("Stack") or all(edge is not None for edge in node.inputs):
        return [one.map(lambda m: _any_along(m, (axis,))) for one in found]
    return [one.map(lambda m: _any_along(m, (axis,))) for one in found]


_SHAPES: Final = [
    "TBackward0",
    "TransposeBackward0",
    "PermuteBackward0",
    "ExpandBackward0",
    "RepeatBackward0",
    "SliceBackward0",
    "SelectBackward0",
    "FlipBackward0",
    "RollBackward0",
    "PixelShuffleBackward0",
    "PixelUnshuffleBackward0",
    "ViewBackward0",
    "UnsafeViewBackward0",
    "ReshapeAliasBackward0",
    "AliasBackward0",
    "CloneBackward0",
    "SqueezeBackward0",
    "SqueezeBackward1",
    "SqueezeBackward2",
    "UnsqueezeBackward0",
    "SplitBackward0",
    "SplitWithSizesBackward0",
    "UnbindBackward0",
    "CatBackward0",
    "StackBackward0",
]
_CURVES: Final = [
    "GeluBackward0",
    "SiluBackward0",
    "TanhBackward0",
    "MishBackward0",
    "HardswishBackward0",
    "ToCopyBackward0",
    "NativeDropoutBackward0",
    "EluBackward0",
    "EluBackward1",
    "CeluBackward0",
    "LeakyReluBackward0",
    "SigmoidBackward0",
    "HardsigmoidBackward0",
    "ExpBackward0",
    "SoftplusBackward0",
    "LogSigmoidBackward0",
    "SinBackward0",
    "ErfBackward0",
    "AtanBackward0",
    "MulBackward1",
    "DivBackward1",
    "AddBackward1",
    "SubBackward1",
    "RsubBackward1",
    "MaskedFillBackward0",
    "PowBackward2",
    "NegBackward0",
    "PreluKernelBackward0",
    "TrilBackward0",
    "TriuBackward0",
]
_POSITIVE: Final = ["RsqrtBackward0", "SqrtBackward0", "LogBackward0", "ReciprocalBackward0"]
_POOLS: Final = [
    name
    for name in RULES
    if "Pool" in name or "Upsample" in name or "ReflectionPad" in name or "ReplicationPad" in name
]
_REDUCED: Final = [
    "SumBackward0",
    "SumBackward1",
    "MeanBackward0",
    "MeanBackward1",
    "AmaxBackward0",
    "AminBackward0",
    "MaxBackward0",
    "MaxBackward1",
    "MinBackward0",
    "MinBackward1",
]
_NORMED: Final = ["LinalgVectorNormBackward0", "VarBackward0", "StdBackward0", "LogsumexpBackward0"]
_PICKED: Final = [
    "EmbeddingBackward0",
    "IndexBackward0",
    "GatherBackward0",
    "IndexSelectBackward0",
    "TakeBackward0",
    "TopkBackward0",
    "SortBackward0",
    "IndexAddBackward0",
    "IndexPutBackward0",
    "ScatterAddBackward0",
]
_BATCH_NORMS: Final = [
    "NativeBatchNormBackward0",
    "CudnnBatchNormBackward0",
    "MiopenBatchNormBackward0",
]
_ALL_BATCH_NORMS: Final = [*_BATCH_NORMS, "SyncBatchNormBackward"]
_ROW_NORMS: Final = [
    "NativeLayerNormBackward0",
    "FusedRmsNormBackward0",
    "NativeGroupNormBackward0",
]
_FUSED: Final = [name for name in RULES if name.startswith("ScaledDotProduct")]
_PRODUCTS: Final = [
    "MmBackward0",
    "BmmBackward0",
    "AddmmBackward0",
    "BaddbmmBackward0",
    "MvBackward0",
    "DotBackward0",
]

BUGS: Final[dict[tuple[str, str], Change]] = {
    **{(name, "masks come back one place off"): moves_back for name in _SHAPES},
    **{(name, "facts move one place too far"): moves_there for name in _SHAPES},
    **{(name, "closes where x is zero"): closes_at_zero for name in _CURVES},
    **{(name, "closes where x is positive"): closes_where_positive for name in _POSITIVE},
    **{(name, "any position of a channel"): any_of_channel for name in _POOLS},
    **{(name, "facts of any position"): any_forward for name in _POOLS},
    **{(name, "facts of any element"): any_forward for name in _REDUCED},
    **{
        (name, "masks come back one place off"): moves_back
        for name in ("SumBackward1", "MeanBackward1", "AmaxBackward0", "MaxBackward0")
    },
    **{(name, "masks everything if anything"): whole_if_any for name in _NORMED},
    **{(name, "facts of any element"): any_forward for name in _NORMED},
    **{(name, "masks everything if anything"): whole_if_any for name in _PICKED},
    **{(name, "facts of any element"): any_forward for name in _PICKED},
    **{(name, "any position of a channel"): whole_if_any for name in _ALL_BATCH_NORMS},
    **{(name, "batch statistics are assumed"): _with_attrs(training=True) for name in _BATCH_NORMS},
    **{(name, "x_hat is zero where x is"): x_hat_by_element for name in _ALL_BATCH_NORMS},
    **{(name, "each feature by itself"): by_element for name in _ROW_NORMS},
    **{
        (name, "x_hat is zero where x is"): x_hat_by_element
        for name in _ROW_NORMS
        if name[0] == "N"
    },
    **{(name, "any output of a row"): any_column for name in _PRODUCTS if name[0] not in "MD"},
    **{(name, "one factor's sign is enough"): one_term for name in _PRODUCTS},
    **{(name, "v by position"): _backward(_value_rows) for name in _FUSED},
    **{(name, "k by one query head"): _backward(_query_group) for name in _FUSED},
    **{(name, "q by one feature"): _backward(_key_position) for name in _FUSED},
    **{(name, "signs by position"): _forward(_batch_hull) for name in _FUSED},
    ("ReluBackward0", "closes where x is positive"): closes_where_positive,
    ("ReluBackward0", "is negative"): is_negative,
    ("HardtanhBackward0", "limits are those of relu"): _with_attrs(min_val=0.0),
    ("HardtanhBackward0", "the upper limit is zero"): _with_attrs(max_val=0.0),
    ("ThresholdBackward0", "the threshold is zero"): _with_attrs(threshold=0.0),
    ("ClampBackward1", "the lower limit is above zero"): _with_attrs(min=1.0),
    ("ClampBackward1", "the upper limit is below zero"): _with_attrs(max=-1.0),
    ("ClampMinBackward0", "the limit is above zero"): _with_attrs(min=1.0),
    ("ClampMinBackward0", "closes where x is negative"): closes_where_negative,
    ("ClampMaxBackward0", "the limit is below zero"): _with_attrs(max=-1.0),
    ("AbsBackward0", "closes where x is negative"): closes_where_negative,
    ("AbsBackward0", "keeps the sign"): keeps_sign,
    ("PowBackward0", "closes where x is zero"): closes_at_zero,
    ("PowBackward0", "every exponent is two"): _with_attrs(exponent=2.0),
    ("CosBackward0", "keeps the sign"): keeps_sign,
    ("SigmoidBackward0", "keeps the sign"): keeps_sign,
    ("NegBackward0", "keeps the sign"): keeps_sign,
    ("HardshrinkBackward0", "closes where x is negative"): closes_where_negative,
    ("SoftshrinkBackward0", "closes where x is positive"): closes_where_positive,
    ("LeakyReluBackward0", "the slope is positive"): _with_attrs(negative_slope=0.1),
    ("LeakyReluBackward0", "closes where x is negative"): closes_where_negative,
    ("EluBackward0", "alpha is positive"): _with_attrs(alpha=1.0),
    ("PreluKernelBackward0", "closes where x is negative"): closes_where_negative,
    ("AddBackward0", "the sign of alpha is ignored"): _with_attrs(alpha=1.0),
    ("AddBackward0", "one operand's sign is enough"): both_signs,
    ("SubBackward0", "the sign of alpha is ignored"): _with_attrs(alpha=-1.0),
    ("MulBackward0", "its own zero stops the gradient"): other_operand,
    ("MulBackward0", "one operand's sign is enough"): both_signs,
    ("DivBackward0", "its own zero stops the gradient"): other_operand,
    ("DivBackward0", "one operand's sign is enough"): both_signs,
    ("MaximumBackward0", "one operand's sign is enough"): both_signs,
    ("MinimumBackward0", "one operand's sign is enough"): both_signs,
    ("WhereBackward0", "one operand's sign is enough"): both_signs,
    ("GluBackward0", "masks come back one place off"): moves_back,
    ("GluBackward0", "closes where x is zero"): closes_at_zero,
    ("ConstantPadNdBackward0", "masks come back one place off"): moves_back,
    ("SoftmaxBackward0", "each element by itself"): by_element,
    ("SafeSoftmaxBackward0", "each element by itself"): by_element,
    ("LogSoftmaxBackward0", "each element by itself"): by_element,
    ("CumsumBackward0", "each element by itself"): by_element,
    ("SoftmaxBackward0", "keeps the sign"): keeps_sign,
    ("LogSoftmaxBackward0", "keeps the sign"): keeps_sign,
    ("ConvolutionBackward0", "one group stands for all"): _backward(_no_groups),
    ("ConvolutionBackward0", "a frozen bias is absent"): _with_attrs(bias_sym_sizes_opt=(0,)),
    ("ConvolutionBackward0", "any position of a channel"): whole_if_any,
    ("ConvolutionBackward0", "transposed weights have the axes of others"): _backward(_same_axes),
    ("AddmmBackward0", "the sign of alpha is ignored"): _with_attrs(alpha=1.0),
    ("AddmmBackward0", "the sign of beta is ignored"): _with_attrs(beta=1.0),
    ("BaddbmmBackward0", "the sign of alpha is ignored"): _with_attrs(alpha=1.0),
    ("CatBackward0", "a constant operand is like the others"): _forward(_drops_constant),
    ("StackBackward0", "the operands are alike"): _forward(_drops_constant),
}
