"""Kinds of bugs that may be planted in a rule."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ormas_core.certificates import masks, signs
from ormas_core.certificates.graph import Node
from ormas_core.certificates.masks import Mask
from ormas_core.certificates.rules.rule import Rule
from ormas_core.certificates.signs import Signs

Change = Callable[[Rule], Rule]


def forward(change: Callable[[Node, Sequence[Signs], list[Signs]], Sequence[Signs]]) -> Change:
    """Return a bug that changes what a rule found forward."""

    def planted(rule: Rule) -> Rule:
        def wrong(node: Node, operands: Sequence[Signs]) -> Sequence[Signs]:
            return change(node, operands, list(rule.forward(node, operands)))

        return rule._replace(forward=wrong)

    return planted


def backward(
    change: Callable[[Node, Sequence[Signs], Sequence[Mask], list[Mask]], Sequence[Mask]],
) -> Change:
    """Return a bug that changes what a rule found backward."""

    def planted(rule: Rule) -> Rule:
        def wrong(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> Sequence[Mask]:
            return change(node, operands, closed, list(rule.backward(node, operands, closed)))

        return rule._replace(backward=wrong)

    return planted


def with_attrs(**attrs: Any) -> Change:
    """Return a bug that ignores a recorded setting: another one is read."""

    def planted(rule: Rule) -> Rule:
        return rule._replace(
            forward=lambda n, o: rule.forward(_changed(n, attrs), o),
            backward=lambda n, o, c: rule.backward(_changed(n, attrs), o, c),
        )

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


def _first(found: list[Mask], mask: Mask) -> list[Mask]:
    return [masks.join(found[0], masks.gather(mask, found[0].shape)), *found[1:]]


closes_at_zero = backward(lambda n, o, c, found: _first(found, o[0].zero))
"""The gradient is thought to stop where x is zero."""
closes_where_positive = backward(lambda n, o, c, found: _first(found, o[0].pos))
closes_where_negative = backward(lambda n, o, c, found: _first(found, o[0].neg))
keeps_sign = forward(lambda n, o, found: [o[0], *found[1:]])
"""The result is thought to have the sign of x."""
is_negative = forward(lambda n, o, found: [signs.negated(found[0]), *found[1:]])
moves_back = backward(lambda n, o, c, found: [_shift(mask) for mask in found])
"""Masks come back one place off."""
moves_there = forward(lambda n, o, found: [one.map(_shift) for one in found])


def _elementwise(n: Node, o: Any, c: Sequence[Mask], found: list[Mask]) -> list[Mask]:
    """Softmax, layer norm: each element by itself."""
    return [masks.join(found[0], c[0]), *found[1:]]


by_element = backward(_elementwise)


def _any_of_channel(n: Node, o: Any, c: Sequence[Mask], found: list[Mask]) -> list[Mask]:
    shape = n.in_shapes[0]
    rank = len(shape)
    axes = [axis for axis in range(rank) if axis != (1 if rank > 3 or n.name[0] != "A" else 0)]
    grown = masks.Mask(shape, _any_along(c[0], axes[1:] or axes).parts)
    return [masks.join(found[0], grown), *found[1:]]


any_of_channel = backward(_any_of_channel)
"""A channel is thought to be masked where one of its positions is."""


def _any_axis_forward(n: Node, o: Sequence[Signs], found: list[Signs]) -> list[Signs]:
    shape = n.out_shapes[0]

    def some(mask: Mask) -> Mask:
        return masks.everything(shape) if mask.parts else masks.none(shape)

    return [o[0].map(some), *found[1:]]


any_forward = forward(_any_axis_forward)
"""What holds for some elements is thought to hold for all results."""
whole_if_any = backward(lambda n, o, c, found: [_whole(c[0], m) for m in found])


def _whole(closed: Mask, mask: Mask) -> Mask:
    return masks.everything(mask.shape) if closed.parts else mask


other_operand = backward(lambda n, o, c, found: [_crossed(found, o, i) for i in range(len(found))])


def _crossed(found: list[Mask], operands: Sequence[Signs], i: int) -> Mask:
    """Return the mask of an operand with where the operand *itself* is zero."""
    return masks.join(found[i], operands[i].zero)


both_signs = forward(lambda n, o, found: [_loose(n, o)])


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


x_hat_by_element = forward(_by_feature)


def _columns(n: Node, o: Sequence[Signs], c: Sequence[Mask], found: list[Mask]) -> list[Mask]:
    """Matrix products: a[n, k] is thought to be masked where one o of its row is."""
    at = len(found) - 2
    a = found[at]
    rows = masks.Mask(a.shape, tuple(p.any(-1, keepdims=True) for p in c[0].parts))
    return [*found[:at], masks.join(a, rows), *found[at + 1 :]]


any_column = backward(_columns)
one_term = forward(lambda n, o, found: [_one_term(n, o, found[0])])


def _one_term(node: Node, operands: Sequence[Signs], found: Signs) -> Signs:
    """Return the facts with: a row of one sign makes the product zero or negative."""
    left = operands[-2].neg if node.inputs[-2] is not None else masks.none(found.shape)
    rows = masks.all_over(left, (len(left.shape) - 1,)).parts if left.parts else ()
    if node.name.startswith("Dot"):
        rows = tuple(part.reshape(()) for part in rows)
    if node.name.startswith("Mv"):
        rows = tuple(part.reshape(-1) for part in rows)
    return signs.facts(found.zero, masks.join(found.neg, masks.Mask(found.shape, rows)), found.pos)


def no_groups(n: Node, o: Sequence[Signs], c: Sequence[Mask], found: list[Mask]) -> list[Mask]:
    """Convolution: an input channel is thought to belong to the first group only."""
    groups = int(n.attrs["groups"])
    if groups == 1:
        return found
    size = found[0].shape[1] // groups
    first = masks.take(found[0], 1, slice(0, size))
    return [masks.concatenate([first] * groups, 1), *found[1:]]


def same_axes(n: Node, o: Sequence[Signs], c: Sequence[Mask], found: list[Mask]) -> list[Mask]:
    """Transposed convolution: its weight is read as (out, in)."""
    shape = n.in_shapes[1]
    if not n.attrs["transposed"] or shape[0] != shape[1]:
        return found
    return [found[0], masks.permute(found[1], (1, 0, *range(2, len(shape)))), *found[2:]]


def value_rows(n: Node, o: Sequence[Signs], c: Sequence[Mask], found: list[Mask]) -> list[Mask]:
    """Attention: v is thought to be masked where the output of the same position is."""
    if n.in_shapes[2] != n.out_shapes[0]:
        return found
    return [*found[:2], masks.join(found[2], c[0]), *found[3:]]


def query_group(n: Node, o: Sequence[Signs], c: Sequence[Mask], found: list[Mask]) -> list[Mask]:
    """Attention: k is thought to be masked where one query head of its group is."""
    shape = n.in_shapes[1]
    heads = masks.all_over(c[0], (2, 3))
    split = masks.reshape(heads, (shape[0], shape[1], heads.shape[1] // shape[1], 1, 1))
    grouped = _any_along(split, (2,))
    own = masks.reshape(
        masks.Mask((shape[0], shape[1], 1, 1, 1), grouped.parts), (shape[0], shape[1], 1, 1)
    )
    return [found[0], masks.join(found[1], masks.Mask(shape, own.parts)), *found[2:]]


def key_position(n: Node, o: Sequence[Signs], c: Sequence[Mask], found: list[Mask]) -> list[Mask]:
    """Attention: q is thought to be masked where one feature of the output row is."""
    rows = _any_along(c[0], (3,))
    return [masks.join(found[0], masks.Mask(found[0].shape, rows.parts)), *found[1:]]


def own_position(n: Node, o: Sequence[Signs], found: list[Signs]) -> list[Signs]:
    """Attention: an output is thought to have the sign of its own position in v."""
    if n.inputs[2] is None or o[2].shape != n.out_shapes[0]:
        return found
    return [o[2], *found[1:]]


def any_piece(node: Node, operands: Sequence[Signs], found: list[Signs]) -> list[Signs]:
    """Return, for cat and stack, what holds of one piece as if it held of all."""
    axis = int(node.attrs["dim"]) % len(node.out_shapes[0])
    return [one.map(lambda m: _any_along(m, (axis,))) for one in found]


def mask_if_any(n: Node, o: Sequence[Signs], c: Sequence[Mask], found: list[Mask]) -> list[Mask]:
    """Attention: a learnt mask is thought to have no gradient where something is masked."""
    if len(found) < 4 or not c[0].parts:
        return found
    return [*found[:3], masks.everything(found[3].shape)]
