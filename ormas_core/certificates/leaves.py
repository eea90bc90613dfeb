"""What is known about the values of parameters, now and for ever.

`now` is what the stored numbers are. `lasting` is the part of it that the optimizer can never
change while gradients are zero: the set K0 that the proof starts from.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ormas_core.certificates import masks, optimizers, signs
from ormas_core.certificates.masks import Mask, Part
from ormas_core.certificates.optimizers import Refused, Rest, Slot
from ormas_core.certificates.signs import Signs

DENSE_ELEMENTS: Final = 1024
"""Parameters up to this size are read element by element, larger ones by rows and columns."""
_SAMPLES: Final = (8, 64)


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A parameter as the prover sees it.

    Attributes:
        name: its name in the model.
        now: facts about the stored values.
        lasting: the facts that also hold for ever under zero gradients.
        resting: the elements of which all facts last; for one-dimensional parameters every
            element is judged, for larger ones those with a fact.
        reason: why facts do not last; empty where all do.
        floor: the facts about nonzero values last while those are at least this large.
    """

    name: str
    now: Signs
    lasting: Signs
    resting: Mask
    reason: str
    floor: float = 0.0


@dataclass(slots=True)
class _Notes:
    """What is learned on the side: why facts do not last, and above which size they do."""

    reason: str = ""
    floor: float = 0.0


def read_now(parameter: Tensor, dense: int = DENSE_ELEMENTS, *, signed: bool = True) -> Signs:
    """Return the facts about the stored values.

    Args:
        parameter: any floating point tensor.
        dense: see `DENSE_ELEMENTS`.
        signed: whether signs matter too; without them a large matrix is read for zeros only.
    """
    values = parameter.detach()
    shape = tuple(values.shape)
    if not values.dtype.is_floating_point:
        return signs.unknown(shape)
    if values.dim() < 2 or values.numel() <= dense:  # noqa: PLR2004
        neg, pos = _host(values <= 0), _host(values >= 0)
        return signs.facts(
            masks.none(shape), masks.union_of(shape, [neg]), masks.union_of(shape, [pos])
        )
    if not signed:
        zero = _from_axes(shape, [_zero_along(values, axis) for axis in (0, 1)])
        return Signs(zero, zero, zero)
    found = [_along(values, axis) for axis in (0, 1)]
    return Signs(
        _from_axes(shape, [low & high for low, high in found]),
        _from_axes(shape, [low for low, _ in found]),
        _from_axes(shape, [high for _, high in found]),
    )


def bare(name: str, now: Signs) -> Leaf:
    """Return a parameter of which nothing lasting needs to be known."""
    return Leaf(name, now, signs.unknown(now.shape), masks.none(now.shape), "")


def leaf(name: str, parameter: Tensor, now: Signs, slot: Slot | None, refusal: str) -> Leaf:
    """Return the parameter with those of its facts that last.

    Args:
        name: its name.
        parameter: the tensor.
        now: what `read_now` says of it.
        slot: its place in the one optimizer that owns it, or None.
        refusal: why nothing lasts, such as that no optimizer owns it; empty if something may.
    """
    nothing = signs.unknown(now.shape)
    empty = masks.none(now.shape)
    if slot is None or refusal:
        return Leaf(name, now, nothing, empty, refusal or "it is in no optimizer")
    notes = _Notes()
    keep: dict[tuple[int, ...], Part] = {}
    fine = Signs(*(_refined(mask) for mask in (now.zero, now.neg, now.pos)))
    with torch.no_grad():
        for pattern in _patterns(fine):
            try:
                keep[pattern] = _lasting_part(parameter.detach(), fine, slot, pattern, notes)
            except Refused as refused:
                return Leaf(name, now, nothing, empty, str(refused))
    lasting = masks.union_of(now.shape, keep.values())
    kept = Signs(*(_within(mask, keep) for mask in (fine.zero, fine.neg, fine.pos)))
    return Leaf(name, now, kept, lasting, notes.reason, notes.floor)


def rest_of(parameter: Tensor, slot: Slot, index: Tensor | None = None, axis: int = 0) -> Rest:
    """Return what zero gradients do to all elements, or to the slices at `index` along an axis.

    Raises:
        Refused: the optimizer, a setting or the state is not covered.
    """

    def pick(state: Tensor) -> Tensor:
        if state.shape != parameter.shape:
            raise Refused("the optimizer's state has another shape than the parameter")
        return state if index is None else state.index_select(axis, index)

    with torch.no_grad():
        return _judge(slot, pick(parameter.detach()), pick)


def numbers(tensor: Tensor) -> NDArray[np.float64]:
    """Return the values of a small tensor on the host."""
    found: NDArray[np.float64] = tensor.detach().double().cpu().numpy()
    return found


def _judge(slot: Slot, values: Tensor, pick: Callable[[Tensor], Tensor]) -> Rest:
    rule = optimizers.asserted if slot.asserted else optimizers.rest
    return rule(slot, values, pick)


def _host(mask: Tensor) -> Part:
    found: Part = mask.cpu().numpy()
    return found


def _zero_along(values: Tensor, axis: int) -> Part:
    """Return which slices along `axis` are zero throughout, one element first."""
    rows = values.transpose(0, axis) if axis else values
    first = rows
    while first.dim() > 1:
        first = first.select(1, 0)
    flags: Part = np.zeros(rows.shape[0], dtype=np.bool_)
    hits = _host(first == 0).nonzero()[0]
    for sample in (*_SAMPLES, None):
        if hits.size == 0:
            return flags
        picked = rows[torch.from_numpy(hits).to(values.device), :sample]
        hits = hits[_host((picked.flatten(1) == 0).all(1))]
    flags[hits] = True
    return flags


def _along(values: Tensor, axis: int) -> tuple[Part, Part]:
    """Return which slices along `axis` are <= 0 and >= 0 throughout, a sample first."""
    rows = values.transpose(0, axis) if axis else values
    neg, pos = (np.zeros(rows.shape[0], dtype=np.bool_) for _ in range(2))
    index = torch.arange(rows.shape[0], device=values.device)
    for sample in (*_SAMPLES, None):
        piece = rows[:, :sample].flatten(1)
        low, high = (piece <= 0).all(1), (piece >= 0).all(1)
        hits = (low | high).nonzero().flatten()
        if hits.numel() == 0:
            return neg, pos
        index, low, high = index[hits], low[hits], high[hits]
        if sample is not None and sample < rows.shape[1]:
            rows = rows[hits]
        else:
            break
    place = index.cpu().numpy()
    neg[place], pos[place] = _host(low), _host(high)
    return neg, pos


def _from_axes(shape: tuple[int, ...], by_axis: Sequence[Part]) -> Mask:
    parts = []
    for axis, flags in enumerate(by_axis):
        pattern = [1] * len(shape)
        pattern[axis] = shape[axis]
        parts.append(flags.reshape(pattern))
    return masks.union_of(shape, parts)


def _patterns(now: Signs) -> list[tuple[int, ...]]:
    return list({p.shape for mask in (now.neg, now.pos) for p in mask.parts})


def _lasting_part(
    values: Tensor, now: Signs, slot: Slot, pattern: tuple[int, ...], notes: _Notes
) -> Part:
    """Return, in one pattern of axes, the elements of which every fact lasts."""
    marked: Part = np.zeros(pattern, dtype=np.bool_)
    for mask in (now.neg, now.pos):
        for part in mask.parts:
            if part.shape == pattern:
                marked = marked | part
    axes = [axis for axis, size in enumerate(pattern) if size > 1]
    if len(axes) != 1:
        rest = _judge(slot, values, lambda state: state)
        kept = _reduced(rest.keeps_sign, pattern)
    else:
        axis = axes[0]
        index = torch.from_numpy(np.flatnonzero(marked.reshape(-1))).to(values.device)

        def pick(state: Tensor) -> Tensor:
            if state.shape != values.shape:
                raise Refused("the optimizer's state has another shape than the parameter")
            return state.index_select(axis, index)

        rest = _judge(slot, pick(values), pick)
        others = [a for a in range(values.dim()) if a != axis]
        good = rest.keeps_sign.all(dim=others) if others else rest.keeps_sign
        kept = np.zeros(math.prod(pattern), dtype=np.bool_)
        kept[index.cpu().numpy()] = _host(good)
        kept = kept.reshape(pattern)
    lasting: Part = marked & kept
    if not bool((marked <= kept).all()):
        notes.reason = notes.reason or rest.reason
    if bool(lasting.any()):
        notes.floor = max(notes.floor, rest.floor)
    return lasting


def _reduced(flags: Tensor, pattern: tuple[int, ...]) -> Part:
    for axis, size in enumerate(pattern):
        if size == 1 and flags.shape[axis] != 1:
            flags = flags.all(dim=axis, keepdim=True)
    return _host(flags)


def _within(mask: Mask, keep: Mapping[tuple[int, ...], Part]) -> Mask:
    """Return, part by part, what lasts: parts of one pattern are judged in that pattern."""
    return masks.union_of(mask.shape, (part & keep[part.shape] for part in mask.parts))


def _refined(mask: Mask) -> Mask:
    """Return the whole tensor as single elements or rows, so that one that moves costs only itself.

    The result is not in normal form.
    """
    if not mask.is_all:
        return mask
    shape = mask.shape
    small = len(shape) < 2 or math.prod(shape) <= DENSE_ELEMENTS  # noqa: PLR2004
    pattern = shape if small else (shape[0],) + (1,) * (len(shape) - 1)
    return Mask(shape, (np.ones(pattern, dtype=np.bool_),))
