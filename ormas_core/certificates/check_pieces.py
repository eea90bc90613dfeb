"""What the checker knows of operations that cut tensors into pieces or join them."""

from itertools import accumulate
from typing import Final

from ormas_core.certificates.check_lines import Line, Table, need
from ormas_core.certificates.check_regions import Shape, all_of, placed, window
from ormas_core.certificates.check_shapes import (
    Goals,
    cut_out,
    moves,
    only_operand,
    with_span,
    without,
)


def _pieces(line: Line) -> tuple[int, list[tuple[int, int]]]:
    """Return the axis of a split, and (offset, length) of each output."""
    shape = only_operand(line)
    axis = line.axis("dim", len(shape))
    outs = line.step.outputs
    need(all(_fits(out, shape, axis) for out in outs), "the shapes do not fit")
    ends = list(accumulate(out[axis] for out in outs))
    need(ends and ends[-1] == shape[axis], "the pieces do not fit")
    return axis, [(end - out[axis], out[axis]) for end, out in zip(ends, outs, strict=True)]


def _fits(one: Shape, other: Shape, axis: int) -> bool:
    """Whether two shapes differ in one axis at most."""
    return len(one) == len(other) and without(one, axis) == without(other, axis)


def _split_pulled(line: Line) -> Goals:
    axis, pieces = _pieces(line)
    offset, length = pieces[line.step.position]
    span = placed(line.box[axis], length, offset, line.operand(0)[axis])
    return [(0, with_span(line.box, axis, span))]


def _split_pushed(line: Line) -> Goals:
    axis, pieces = _pieces(line)
    size = line.operand(0)[axis]
    return [
        goal
        for number, (offset, length) in enumerate(pieces)
        for goal in cut_out(line.box, axis, size, offset, length, number)
    ]


def _unbound(line: Line) -> int:
    shape = only_operand(line)
    axis = line.axis("dim", len(shape))
    need(len(line.step.outputs) == shape[axis], "the outputs do not fit")
    need(all(out == without(shape, axis) for out in line.step.outputs), "the shapes do not fit")
    return axis


def _unbind_pulled(line: Line) -> Goals:
    axis, index = _unbound(line), line.step.position
    span = (index, index + 1, line.operand(0)[axis])
    return [(0, (*line.box[:axis], span, *line.box[axis:]))]


def _unbind_pushed(line: Line) -> Goals:
    axis = _unbound(line)
    size = line.operand(0)[axis]
    rest = (*line.box[:axis], *line.box[axis + 1 :])
    reached = (i for i in range(size) if window(line.box[axis], size, i, 1) is not None)
    return [(number, rest) for number in reached]


def _places(line: Line) -> tuple[int, list[tuple[int, int]] | None]:
    """Return the axis of a cat, and (offset, length) of each operand; None where not known.

    A constant's size is not recorded: it shows the shape of the output, and is what the others
    leave, if there is one only.
    """
    out, shapes = line.out(), line.step.operands
    axis = line.axis("dim", len(out))
    need(all(_fits(shape, out, axis) for shape in shapes), "the shapes do not fit")
    open_sizes = [s == out and not line.real(number) for number, s in enumerate(shapes)]
    left = out[axis] - sum(s[axis] for s, o in zip(shapes, open_sizes, strict=True) if not o)
    need(left >= 0, "the sizes of its operands do not fit")
    if left and open_sizes.count(True) != 1:
        return axis, None
    sizes = [left if o else s[axis] for s, o in zip(shapes, open_sizes, strict=True)]
    return axis, [(end - size, size) for end, size in zip(accumulate(sizes), sizes, strict=True)]


def _cat_pulled(line: Line) -> Goals:
    axis, places = _places(line)
    need(places is not None, "the sizes of its operands are not known")
    size = line.out()[axis]
    return [
        goal
        for number, (offset, length) in enumerate(places or ())
        for goal in cut_out(line.box, axis, size, offset, length, number)
    ]


def _cat_pushed(line: Line) -> Goals:
    axis, places = _places(line)
    size = line.out()[axis]
    need(line.step.position < len(line.step.operands), "there is no such operand")
    if places is None:
        return [(0, with_span(line.box, axis, all_of(size)))]
    offset, length = places[line.step.position]
    return [(0, with_span(line.box, axis, placed(line.box[axis], length, offset, size)))]


def _stacked(line: Line) -> int:
    out = line.out()
    axis = line.axis("dim", len(out))
    need(len(line.step.operands) == out[axis], "the operands do not fit")
    return axis


def _stack_pulled(line: Line) -> Goals:
    axis = _stacked(line)
    size = line.out()[axis]
    rest = (*line.box[:axis], *line.box[axis + 1 :])
    reached = [i for i in range(size) if window(line.box[axis], size, i, 1) is not None]
    for number in reached:
        fits = line.operand(number) == without(line.out(), axis)
        need(fits, "the shapes do not fit")
    return [(number, rest) for number in reached]


def _stack_pushed(line: Line) -> Goals:
    axis, position = _stacked(line), line.step.position
    need(line.operand(position) == without(line.out(), axis), "the shapes do not fit")
    span = (position, position + 1, line.out()[axis])
    return [(0, (*line.box[:axis], span, *line.box[axis:]))]


_SPLIT: Final = moves(_split_pulled, _split_pushed)._replace(outputs=1 << 30)

TABLE: Final[Table] = {
    "SplitBackward0": _SPLIT,
    "SplitWithSizesBackward0": _SPLIT,
    "UnbindBackward0": moves(_unbind_pulled, _unbind_pushed)._replace(outputs=1 << 30),
    "CatBackward0": moves(_cat_pulled, _cat_pushed),
    "StackBackward0": moves(_stack_pulled, _stack_pushed),
}
