"""Finds what a line of a proof needs: the fewest premises, each in the smallest box."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from ormas_core.certificates import masks
from ormas_core.certificates.boxes import boxed, holds
from ormas_core.certificates.masks import Mask, Shape
from ormas_core.claims import Box, Span

Slot = tuple[str, int]
"""("closed", output) or (attribute of `Signs`, operand)."""


class Unexplainable(Exception):  # noqa: N818 - an answer: the claim is then not made
    """A proof could not be written down."""


def least(
    premises: Mapping[Slot, Mask],
    proves: Callable[[Mapping[Slot, Mask]], bool],
    order: Sequence[Slot],
    goal: tuple[Shape, Box],
) -> dict[Slot, Box]:
    """Return the premises that are needed, each cut down to a box."""
    held = dict(premises)
    if not proves(held):
        raise Unexplainable("the rules do not give this line back")
    for slot in order:
        if slot in held:
            fewer = {key: mask for key, mask in held.items() if key != slot}
            if proves(fewer):
                held = fewer
    boxes: dict[Slot, Box] = {}
    for slot, whole in list(held.items()):
        mask = held[slot] = _one_part(slot, whole, held, proves)
        box = _guess(slot, mask, held, proves, goal) or _shrink(slot, mask, held, proves)
        if not holds(mask, box):
            raise Unexplainable("a premise is no box")
        boxes[slot] = box
        held = {**held, slot: boxed(mask.shape, box)}
    if not proves(held):
        raise Unexplainable("the premises do not hold as boxes")
    return boxes


def _one_part(
    slot: Slot,
    mask: Mask,
    held: Mapping[Slot, Mask],
    proves: Callable[[Mapping[Slot, Mask]], bool],
) -> Mask:
    """Return the one part of a union that is needed, where one is enough."""
    for part in mask.parts if len(mask.parts) > 1 else ():
        single = Mask(mask.shape, (part,))
        if proves({**held, slot: single}):
            return single
    return mask


def _guess(
    slot: Slot,
    mask: Mask,
    held: Mapping[Slot, Mask],
    proves: Callable[[Mapping[Slot, Mask]], bool],
    goal: tuple[Shape, Box],
) -> Box | None:
    """Return a box that most operations need: the goal's own, or its one feature on another axis.

    Trying them first saves most of the search.
    """
    shape, box = goal
    tries = [box] if shape == mask.shape else []
    parted = [(span, size) for span, size in zip(box, shape, strict=True) if span[:2] != (0, size)]
    if len(parted) == 1:
        span, size = parted[0]
        tries += [
            tuple(
                span if axis == own else (0, other, other) for own, other in enumerate(mask.shape)
            )
            for axis, length in enumerate(mask.shape)
            if length == size
        ]
    for tried in tries:
        if holds(mask, tried) and proves({**held, slot: boxed(mask.shape, tried)}):
            return tried
    return None


def _shrink(
    slot: Slot,
    mask: Mask,
    held: Mapping[Slot, Mask],
    proves: Callable[[Mapping[Slot, Mask]], bool],
) -> Box:
    """Find the smallest box in which the premise is needed, axis by axis from both ends."""
    shape = mask.shape
    box = [(0, size, size) for size in shape]

    def enough(axis: int, span: Span) -> bool:
        tried = (*box[:axis], span, *box[axis + 1 :])
        return proves({**held, slot: masks.meet(mask, boxed(shape, tried))})

    for axis, size in enumerate(shape):
        # Needed at both ends of an axis along which the mask has no gaps, it is needed everywhere.
        whole = all(part.shape[axis] == 1 for part in mask.parts)
        if size == 1 or (whole and not any(enough(axis, half) for half in _halves(size))):
            continue
        flags = np.zeros(size, np.bool_)
        for part in mask.parts:
            flags |= part.any(axis=tuple(a for a in range(part.ndim) if a != axis))
        for period in _periods(size):
            wanted = np.asarray(flags.reshape(-1, period).all(axis=0))
            if not wanted.any() or not enough(axis, (0, period, period)):
                continue
            span = _ends(partial(enough, axis), period)
            if wanted[span[0] : span[1]].all():
                box[axis] = span
                break
    return tuple(box)


def _halves(size: int) -> tuple[Span, Span]:
    return (0, size - 1, size), (1, size, size)


def _periods(size: int) -> list[int]:
    """Return the size itself, then its smaller divisors."""
    return [size, *(period for period in range(1, size) if size % period == 0)]


def _ends(enough: Callable[[Span], bool], period: int) -> Span:
    """Return the largest start, then the smallest stop, that are enough: both are monotone."""
    low, high = 0, period - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if enough((middle, period, period)) else (low, middle - 1)
    start, low, high = low, low + 1, period
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough((start, middle, period)) else (middle + 1, high)
    return start, low, period
