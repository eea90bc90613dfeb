"""What the checker knows of operations that only move elements.

`pulled` says which elements of which operand the output elements in a box are, so where a fact must
be known; `pushed` says where the operand elements in a box go, so which gradients must be zero.
Elements that go nowhere have a zero gradient.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

from ormas_core.certificates.check_lines import (
    Line,
    Operation,
    Table,
    axis_of,
    found_box,
    need,
    unknown,
)
from ormas_core.certificates.check_regions import (
    Shape,
    all_of,
    collapse,
    covers,
    is_all,
    placed,
    reshaped,
    spread,
    unmerge,
    window,
)
from ormas_core.claims import Box, Span

Goals = Sequence[tuple[int, Box]]
"""(operand or output, the box needed of it)."""
Move = Callable[[Line], Goals]


def moves(pulled: Move, pushed: Move) -> Operation:
    """Return the rule of an operation that moves elements."""

    def value(line: Line) -> bool:
        """The output's elements are the operand's: all of those must have the fact."""
        fact = line.step.fact
        return all(covers(line.facts(number).of(fact), box) for number, box in pulled(line))

    def backward(line: Line) -> bool:
        """The gradient of an element is the sum over where it went."""
        return all(covers(line.shut(number), box) for number, box in pushed(line))

    return Operation(value, backward)


def only_operand(line: Line) -> Shape:
    """Return the shape of the only operand, which a line about gradients must be about."""
    need(line.step.fact is not None or line.step.position == 0, "there is no such operand")
    return line.operand(0)


def _reshape_pulled(line: Line) -> Goals:
    return [(0, found_box(reshaped(line.box, line.out(), only_operand(line))))]


def _reshape_pushed(line: Line) -> Goals:
    return [(0, found_box(reshaped(line.box, only_operand(line), line.out())))]


def permutation(order: Callable[[Line], Sequence[int]]) -> Operation:
    """Return the rule of an operation whose output axis i is the operand's axis order[i]."""

    def axes(line: Line) -> Sequence[int]:
        found, shape = order(line), only_operand(line)
        need(sorted(found) == list(range(len(shape))), "it is no permutation")
        need(tuple(shape[axis] for axis in found) == line.out(), "the shapes do not fit")
        return found

    def pulled(line: Line) -> Goals:
        found = axes(line)
        return [(0, tuple(line.box[found.index(axis)] for axis in range(len(found))))]

    def pushed(line: Line) -> Goals:
        return [(0, tuple(line.box[axis] for axis in axes(line)))]

    return moves(pulled, pushed)


def _reversed(line: Line) -> Sequence[int]:
    return range(len(line.out()))[::-1]


def _swapped(line: Line) -> Sequence[int]:
    rank = len(line.out())
    order = list(range(rank))
    if rank:
        a, b = line.axis("dim0", rank), line.axis("dim1", rank)
        order[a], order[b] = order[b], order[a]
    return order


def _ordered(line: Line) -> Sequence[int]:
    dims = line.integers("dims") or ()
    return [axis_of(dim, len(dims)) for dim in dims]


def _expand_pulled(line: Line) -> Goals:
    return [(0, found_box(collapse(line.box, line.out(), only_operand(line))))]


def _expand_pushed(line: Line) -> Goals:
    return [(0, found_box(spread(line.box, only_operand(line), line.out())))]


def _repeats(line: Line) -> tuple[Shape, Shape]:
    """Return the operand's shape filled up with 1 in front, and how often each axis is repeated."""
    out, shape = line.out(), only_operand(line)
    own = (1,) * (len(out) - len(shape)) + shape
    counts = line.integers("repeats") or ()
    need(len(own) == len(out) == len(counts), "the repeats do not fit")
    fits = all(n * r == wide for n, r, wide in zip(own, counts, out, strict=True))
    need(fits, "the repeats do not fit")
    return own, counts


def _repeat_pulled(line: Line) -> Goals:
    """Index i along an axis is the operand's i modulo its size."""
    own, counts = _repeats(line)
    found = []
    for span, size, count in zip(line.box, own, counts, strict=True):
        pieces = unmerge((span,), 0, count, size)
        found.append(pieces[0][1] if pieces and len(pieces) == 1 else all_of(size))
    return [(0, tuple(found[len(own) - len(only_operand(line)) :]))]


def _repeat_pushed(line: Line) -> Goals:
    """The copies of a span have its own period."""
    own, _ = _repeats(line)
    lead = (all_of(1) for _ in range(len(own) - len(only_operand(line))))
    return [(0, (*lead, *line.box))]


def _range(line: Line) -> tuple[int, range]:
    """Return the axis and the indices that a slice takes."""
    shape, out = only_operand(line), line.out()
    axis = line.axis("dim", len(shape))
    start, end, step = (line.integers(name) for name in ("start", "end", "step"))
    need(step and step[0] > 0, "its step is not positive")
    first, last = (value[0] if value else None for value in (start, end))
    taken = range(*slice(first, last, (step or (1,))[0]).indices(shape[axis]))
    need(out == (*shape[:axis], len(taken), *shape[axis + 1 :]), "the slice does not fit")
    return axis, taken


def _slice_pulled(line: Line) -> Goals:
    axis, taken = _range(line)
    start, stop, period = line.box[axis]
    size = line.operand(0)[axis]
    span = placed(line.box[axis], len(taken), taken.start, size)
    if taken.step > 1:
        last = stop if period == len(taken) else len(taken)
        span = (taken[start], taken[last - 1] + 1, size)
    return [(0, with_span(line.box, axis, span))]


def _slice_pushed(line: Line) -> Goals:
    axis, taken = _range(line)
    size = line.operand(0)[axis]
    if taken.step == 1:
        return cut_out(line.box, axis, size, taken.start, len(taken), 0)
    start, stop, period = line.box[axis]
    if period != size or is_all(line.box[axis]):
        return [(0, with_span(line.box, axis, all_of(len(taken))))]
    first = max(0, -((taken.start - start) // taken.step))
    last = min(len(taken), -((taken.start - stop) // taken.step))
    return [(0, with_span(line.box, axis, (first, last, len(taken))))] if first < last else []


def cut_out(box: Box, axis: int, size: int, offset: int, length: int, number: int) -> Goals:
    """Return the part of a box that lies in `length` indices from `offset` on, if any."""
    span = window(box[axis], size, offset, length)
    return [] if span is None else [(number, with_span(box, axis, span))]


def with_span(box: Box, axis: int, span: Span) -> Box:
    """Return the box with another span along an axis."""
    return (*box[:axis], span, *box[axis + 1 :])


def without(shape: Shape, axis: int) -> Shape:
    """Return the shape without an axis."""
    return (*shape[:axis], *shape[axis + 1 :])


def _chosen(line: Line) -> tuple[int, int]:
    shape = only_operand(line)
    axis = line.axis("dim", len(shape))
    need(line.out() == without(shape, axis), "the shapes do not fit")
    return axis, axis_of(line.integer("index"), shape[axis])


def _select_pulled(line: Line) -> Goals:
    axis, index = _chosen(line)
    span = (index, index + 1, line.operand(0)[axis])
    return [(0, (*line.box[:axis], span, *line.box[axis:]))]


def _select_pushed(line: Line) -> Goals:
    axis, index = _chosen(line)
    if window(line.box[axis], line.operand(0)[axis], index, 1) is None:
        return []
    return [(0, (*line.box[:axis], *line.box[axis + 1 :]))]


def _flip(line: Line) -> Goals:
    """Index i becomes size - 1 - i, so i modulo a period becomes period - 1 - i."""
    shape = only_operand(line)
    need(shape == line.out(), "the shapes do not fit")
    axes = {axis_of(dim, len(shape)) for dim in line.integers("dims") or ()}
    return [
        (
            0,
            tuple(
                (p - b, p - a, p) if axis in axes else (a, b, p)
                for axis, (a, b, p) in enumerate(line.box)
            ),
        )
    ]


def roll(sign: int) -> Move:
    """Return how a box moves: index i goes to i + shift, around the end of the axis."""

    def moved(line: Line) -> Goals:
        shape, shifts = only_operand(line), line.integers("shifts") or ()
        need(shape == line.out(), "the shapes do not fit")
        dims = line.integers("dims") or ()
        box, seen = line.box, shape
        if not dims:
            # Without axes the tensor is rolled as one row.
            seen = (math.prod(shape),)
            box, dims = found_box(reshaped(box, shape, seen)), (0,)
        need(len(dims) == len(shifts), "the shifts do not fit")
        for dim, shift in zip(dims, shifts, strict=True):
            axis = axis_of(dim, len(seen))
            box = with_span(box, axis, _turned(box[axis], sign * shift, seen[axis]))
        return [(0, found_box(reshaped(box, seen, shape)))]

    return moved


def _turned(span: Span, shift: int, size: int) -> Span:
    start, stop, period = span
    first = (start + shift) % period
    return (first, first + stop - start, period) if first + stop - start <= period else all_of(size)


class _Tiles:
    """Channels (.., C r r, H, W) seen as (.., C, r, r, H, W), an image as (.., C, H, r, W, r)."""

    def __init__(self, many: Shape, image: Shape) -> None:
        need(len(many) == len(image) > 2, "it is no image")  # noqa: PLR2004
        self.many, self.image = many, image
        r = max(1, image[-1] // many[-1])
        lead, c, h, w = many[:-3], image[-3], many[-2], many[-1]
        need(many == (*lead, c * r * r, h, w), "the shapes do not fit")
        need(image == (*lead, c, h * r, w * r), "the shapes do not fit")
        self.apart, self.together = (*lead, c, r, r, h, w), (*lead, c, h, r, w, r)


def _image_of(box: Box, tiles: _Tiles) -> Box:
    *lead, i, j, h, w = found_box(reshaped(box, tiles.many, tiles.apart))
    return found_box(reshaped((*lead, h, i, w, j), tiles.together, tiles.image))


def _channels_of(box: Box, tiles: _Tiles) -> Box:
    *lead, h, i, w, j = found_box(reshaped(box, tiles.image, tiles.together))
    return found_box(reshaped((*lead, i, j, h, w), tiles.apart, tiles.many))


def _pixel_shuffle() -> Operation:
    """Channel c r r + i r + j at (h, w) becomes channel c at (h r + i, w r + j)."""

    def tiles(line: Line) -> _Tiles:
        return _Tiles(only_operand(line), line.out())

    return moves(
        lambda line: [(0, _channels_of(line.box, tiles(line)))],
        lambda line: [(0, _image_of(line.box, tiles(line)))],
    )


def _pixel_unshuffle() -> Operation:
    """The other way round."""

    def tiles(line: Line) -> _Tiles:
        return _Tiles(line.out(), only_operand(line))

    return moves(
        lambda line: [(0, _image_of(line.box, tiles(line)))],
        lambda line: [(0, _channels_of(line.box, tiles(line)))],
    )


def _pad_pushed(line: Line) -> Goals:
    """Pads, last axis first, as (before, after); negative ones cut off."""
    shape, out, pads = only_operand(line), line.out(), line.integers("pad") or ()
    need(len(pads) % 2 == 0 and len(pads) <= 2 * len(shape), "the pads do not fit")
    before = [0] * len(shape)
    after = [0] * len(shape)
    for number in range(0, len(pads), 2):
        before[len(shape) - 1 - number // 2] = pads[number]
        after[len(shape) - 1 - number // 2] = pads[number + 1]
    grown = tuple(b + size + a for b, size, a in zip(before, shape, after, strict=True))
    need(grown == out, "the pads do not fit")
    found: list[Span] = []
    for span, size, wide, front in zip(line.box, shape, out, before, strict=True):
        cut = max(-front, 0)
        kept = min(size - cut, wide - max(front, 0))
        inside = window(span, size, cut, kept) if kept > 0 else None
        if inside is None:
            return []
        found.append(placed(inside, kept, max(front, 0), wide))
    return [(0, tuple(found))]


_RESHAPE: Final = moves(_reshape_pulled, _reshape_pushed)

TABLE: Final[Table] = {
    "ViewBackward0": _RESHAPE,
    "UnsafeViewBackward0": _RESHAPE,
    "ReshapeAliasBackward0": _RESHAPE,
    "AliasBackward0": _RESHAPE,
    "CloneBackward0": _RESHAPE,
    "SqueezeBackward0": _RESHAPE,
    "SqueezeBackward1": _RESHAPE,
    "SqueezeBackward2": _RESHAPE,
    "UnsqueezeBackward0": _RESHAPE,
    "TBackward0": permutation(_reversed),
    "TransposeBackward0": permutation(_swapped),
    "PermuteBackward0": permutation(_ordered),
    "ExpandBackward0": moves(_expand_pulled, _expand_pushed),
    "RepeatBackward0": moves(_repeat_pulled, _repeat_pushed),
    "SliceBackward0": moves(_slice_pulled, _slice_pushed),
    "SelectBackward0": moves(_select_pulled, _select_pushed),
    "FlipBackward0": moves(_flip, _flip),
    "PixelShuffleBackward0": _pixel_shuffle(),
    "PixelUnshuffleBackward0": _pixel_unshuffle(),
    "RollBackward0": moves(roll(-1), roll(1)),
    "ConstantPadNdBackward0": Operation(unknown, moves(_pad_pushed, _pad_pushed).backward),
}
