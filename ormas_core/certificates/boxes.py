"""Boxes: regions of tensors as a proof trace writes them, one span of indices for each axis."""

from functools import lru_cache

import numpy as np

from ormas_core.certificates import masks
from ormas_core.certificates.masks import Mask, Shape
from ormas_core.claims import Box, Span


def box_of(shape: Shape, axis: int, start: int, stop: int) -> Box:
    """Return the box that is whole along every axis but one."""
    return tuple(
        (start, stop, size) if axis == own else (0, size, size) for own, size in enumerate(shape)
    )


def holds(mask: Mask, box: Box) -> bool:
    """Whether the whole box is in the mask."""
    if mask.is_all:
        return True
    cut = [_cut(part, box, mask.shape) for part in mask.parts]
    if any(bool(part.all()) for part in cut):
        return True
    if len(cut) < 2:  # noqa: PLR2004
        return False
    whole = cut[0]
    for part in cut[1:]:
        whole = whole | part
    return bool(whole.all())


@lru_cache(maxsize=1024)
def inside(span: Span, size: int) -> masks.Part:
    """Return which indices along an axis are in the span, shape (size,); not to be written to."""
    start, stop, period = span
    place = np.arange(size) % period
    flags: masks.Part = (start <= place) & (place < stop)
    flags.flags.writeable = False
    return flags


def _whole(span: Span, size: int) -> bool:
    return span[:2] == (0, span[2]) and size > 0


def _cut(part: masks.Part, box: Box, shape: Shape) -> masks.Part:
    for axis, span in enumerate(box):
        if part.shape[axis] == 1 or _whole(span, shape[axis]):
            continue
        if span[2] == shape[axis]:
            part = part[(slice(None),) * axis + (slice(*span[:2]),)]
        else:
            part = np.compress(inside(span, shape[axis]), part, axis)
    return part


def boxed(shape: Shape, box: Box) -> Mask:
    """Return the mask that holds just the box."""
    found = masks.everything(shape)
    for axis, span in enumerate(box):
        if not _whole(span, shape[axis]):
            pattern = [size if own == axis else 1 for own, size in enumerate(shape)]
            flags = inside(span, shape[axis]).reshape(pattern)
            found = masks.meet(found, masks.union_of(shape, [flags]))
    return found
