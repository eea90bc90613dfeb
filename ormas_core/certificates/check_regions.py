"""Boxes of tensor elements, for the checker of proofs: when some cover another, and how they move.

Nothing here looks at single elements: an axis may have any length. Where a set is no box, the
functions for a *goal*, which must be covered, return a larger box, and those for a *premise* leave
it out; so an answer may err only towards "not covered".
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from ormas_core.claims import Box, Span

Shape = tuple[int, ...]
Boxes = tuple[Box, ...]

_MOST_INTERVALS: Final = 4096
_MOST_BOXES: Final = 64


def all_of(size: int) -> Span:
    """Return the whole of an axis."""
    return (0, size, size)


def whole(shape: Shape) -> Box:
    """Return the box that is the whole tensor."""
    return tuple(all_of(size) for size in shape)


def is_all(span: Span) -> bool:
    """Whether a span is the whole of its axis."""
    return span[0] == 0 and span[1] == span[2]


def is_box(box: Box, shape: Shape) -> bool:
    """Whether a box lies in a tensor of `shape` and is not empty."""
    return len(box) == len(shape) and all(
        0 <= start < stop <= period and size % period == 0
        for (start, stop, period), size in zip(box, shape, strict=True)
    )


def within(inner: Span, outer: Span) -> bool:
    """Whether every index of `inner` is in `outer`.

    Seen modulo the outer period, the inner interval appears at every multiple of the common
    divisor of both periods; all of these must lie in the outer interval.
    """
    if is_all(outer):
        return True
    step = math.gcd(inner[2], outer[2])
    first = inner[0] % step
    last = first + (outer[2] - step) + (inner[1] - inner[0])
    return outer[0] <= first and last <= outer[1]


def contains(outer: Box, inner: Box) -> bool:
    """Whether every element of `inner` is in `outer`."""
    return len(outer) == len(inner) and all(map(within, inner, outer))


def covers(boxes: Iterable[Box], goal: Box) -> bool:
    """Whether the boxes together contain `goal`: one of them, or several side by side."""
    beside: list[list[Span]] = [[] for _ in goal]
    for box in boxes:
        if len(box) != len(goal):
            continue
        short = [axis for axis, span in enumerate(goal) if not within(span, box[axis])]
        if not short:
            return True
        if len(short) == 1:
            beside[short[0]].append(box[short[0]])
    pairs = zip(beside, goal, strict=True)
    return any(len(spans) > 1 and _together(spans, span) for spans, span in pairs)


def _together(spans: Sequence[Span], goal: Span) -> bool:
    """Whether the spans, of one axis, together contain `goal`."""
    common = math.lcm(goal[2], *(span[2] for span in spans))
    if sum(common // span[2] for span in (*spans, goal)) > _MOST_INTERVALS:
        return False
    held = sorted(interval for span in spans for interval in _intervals(span, common))
    ends: list[tuple[int, int]] = []
    for start, stop in held:
        if ends and start <= ends[-1][1]:
            ends[-1] = (ends[-1][0], max(stop, ends[-1][1]))
        else:
            ends.append((start, stop))
    return all(
        any(start <= first and last <= stop for start, stop in ends)
        for first, last in _intervals(goal, common)
    )


def _intervals(span: Span, common: int) -> list[tuple[int, int]]:
    start, stop, period = span
    return [(start + k, stop + k) for k in range(0, common, period)]


def meet(one: Box, other: Box) -> Box | None:
    """Return a box inside both, for premises: None where there is none, or it is no box."""
    found = []
    for a, b in zip(one, other, strict=True):
        if within(a, b):
            found.append(a)
        elif within(b, a):
            found.append(b)
        elif a[2] == b[2] and max(a[0], b[0]) < min(a[1], b[1]):
            found.append((max(a[0], b[0]), min(a[1], b[1]), a[2]))
        else:
            return None
    return tuple(found)


def meets(some: Boxes, others: Boxes) -> Boxes:
    """Return what is in one of `some` and in one of `others`, for premises."""
    found = (meet(a, b) for a in some[:_MOST_BOXES] for b in others[:_MOST_BOXES])
    return tuple(dict.fromkeys(box for box in found if box is not None))[:_MOST_BOXES]


def spread(box: Box, shape: Shape, out: Shape) -> Box | None:
    """Return all copies of the elements in a tensor of shape `out` that `shape` broadcasts to.

    Exact, for goals and premises; None where it does not broadcast.
    """
    lead = len(out) - len(shape)
    if lead < 0 or len(box) != len(shape):
        return None
    found = list(whole(out[:lead]))
    for span, size, wide in zip(box, shape, out[lead:], strict=True):
        if size not in (1, wide):
            return None
        found.append(span if size == wide else all_of(wide))
    return tuple(found)


def collapse(box: Box, out: Shape, shape: Shape) -> Box | None:
    """Return the elements of a tensor of `shape` of which `box` holds copies: undoes `spread`."""
    lead = len(out) - len(shape)
    if lead < 0 or len(box) != len(out):
        return None
    found = []
    for span, size, wide in zip(box[lead:], shape, out[lead:], strict=True):
        if size not in (1, wide):
            return None
        found.append(span if size == wide else all_of(1))
    return tuple(found)


def unmerge(box: Box, axis: int, outer: int, inner: int) -> Boxes | None:
    """Return the box with one axis seen as two, (outer, inner): exact, in up to three pieces.

    None where the period fits neither axis.
    """
    pieces = _rows(box[axis], outer, inner)
    if pieces is None:
        return None
    return tuple((*box[:axis], *pair, *box[axis + 1 :]) for pair in pieces)


def _rows(span: Span, outer: int, inner: int) -> list[tuple[Span, Span]] | None:
    """Cut a span of an axis of outer * inner indices into a first row, full rows and a last row."""
    start, stop, period = span
    if is_all(span):
        return [(all_of(outer), all_of(inner))]
    if inner % period == 0:
        return [(all_of(outer), span)]
    if period % inner:
        return None
    rows = period // inner
    first, last = start // inner, (stop - 1) // inner
    if first == last:
        return [((first, first + 1, rows), (start % inner, (stop - 1) % inner + 1, inner))]
    pieces: list[tuple[Span, Span]] = []
    if start % inner:
        pieces.append(((first, first + 1, rows), (start % inner, inner, inner)))
        first += 1
    if stop % inner:
        pieces.append(((last, last + 1, rows), (0, stop % inner, inner)))
        last -= 1
    if first <= last:
        pieces.append(((first, last + 1, rows), all_of(inner)))
    return pieces


def reshaped(box: Box, old: Shape, new: Shape) -> Box | None:
    """Return a box that holds all elements of `box` after a reshape, for goals.

    Row-major order: runs of axes with equal products are merged into one axis and cut again. None
    where the numbers of elements differ, or there are none.
    """
    if math.prod(old) != math.prod(new) or len(box) != len(old) or 0 in old:
        return None
    before = [(span, size) for span, size in zip(box, old, strict=True) if size != 1]
    after = [size for size in new if size != 1]
    found: list[Span] = []
    while before:
        run, parts = [before.pop(0)], [after.pop(0)]
        while math.prod(size for _, size in run) != math.prod(parts):
            if math.prod(size for _, size in run) < math.prod(parts):
                run.append(before.pop(0))
            else:
                parts.append(after.pop(0))
        pieces = [_cut(span, parts) for span in _merged(run)]
        found.extend(map(_hull, zip(*pieces, strict=True), parts))
    rest = iter(found)
    return tuple(all_of(1) if size == 1 else next(rest) for size in new)


def _merged(run: Sequence[tuple[Span, int]]) -> list[Span]:
    """Return spans of the merged axis that together hold the box of these axes."""
    found, total = [run[0][0]], run[0][1]
    for inner, size in run[1:]:
        found = [span for outer in found for span in _merged_pair(outer, inner, size)]
        total *= size
        if len(found) > _MOST_BOXES:
            found = [_hull(found, total)]
    return found


def _merged_pair(outer: Span, inner: Span, size: int) -> list[Span]:
    """Return the same for an axis and one of `size` after it, row by row if they are not many."""
    start, stop, rows = outer
    if is_all(outer) and not is_all(inner):
        return [inner]
    if inner[2] != size:
        return [(start * size, stop * size, rows * size)]
    if is_all(inner) or stop - start > _MOST_BOXES:
        return [(start * size + inner[0], (stop - 1) * size + inner[1], rows * size)]
    return [(i * size + inner[0], i * size + inner[1], rows * size) for i in range(start, stop)]


def _hull(spans: Sequence[Span], size: int) -> Span:
    """Return a span of an axis that contains all of these."""
    periods = {span[2] for span in spans}
    if len(periods) > 1:
        return all_of(size)
    return (min(span[0] for span in spans), max(span[1] for span in spans), periods.pop())


def _cut(span: Span, sizes: Sequence[int]) -> list[Span]:
    """Return, for each of the axes an axis is cut into, the smallest span that is needed."""
    found: list[Span] = []
    for number in range(len(sizes) - 1, 0, -1):
        outer, inner = math.prod(sizes[:number]), sizes[number]
        pieces = _rows(span, outer, inner)
        if pieces is None:
            span, last = all_of(outer), all_of(inner)
        elif len(pieces) == 1:
            span, last = pieces[0]
        else:
            span, last = _hull([row for row, _ in pieces], outer), all_of(inner)
        found.append(last)
    return [span, *reversed(found)]


def window(span: Span, size: int, offset: int, length: int) -> Span | None:
    """Return which of the `length` indices from `offset` on are in a span, counted from there.

    For goals; None where there are none.
    """
    start, stop, period = span
    if (offset, length) == (0, size):
        return span
    if length <= 0 or (length == 1 and not start <= offset % period < stop):
        return None
    if is_all(span) or period != size:
        return all_of(length)
    start, stop = max(start - offset, 0), min(stop - offset, length)
    return (start, stop, length) if start < stop else None


def placed(span: Span, length: int, offset: int, size: int) -> Span:
    """Return the span of a piece of `length` indices in the axis it was cut from at `offset`."""
    if (offset, length) == (0, size):
        return span
    start, stop, period = span
    return (offset + start, offset + length - period + stop, size)
