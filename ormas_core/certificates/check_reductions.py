"""What the checker knows of operations that combine or pick elements along axes."""

from typing import Final

from ormas_core.certificates.check_lines import (
    Line,
    Operation,
    Table,
    along,
    axis_of,
    facts,
    need,
    unknown,
)
from ormas_core.certificates.check_regions import Shape, all_of, covers, whole
from ormas_core.claims import Box, Fact


def _axes(line: Line, *, named: bool) -> tuple[int, ...]:
    """Return the axes that are combined: those of the setting, or all."""
    rank = len(line.operand(0))
    dims = line.integers("dim") if named else None
    if not dims:
        return tuple(range(rank))
    if rank == 0:
        need(all(-1 <= dim < 1 for dim in dims), "there is no such axis")
        return ()
    return tuple(axis_of(dim, rank) for dim in dims)


def _kept(shape: Shape, axes: tuple[int, ...], out: Shape) -> bool:
    """Whether the combined axes were kept, with size 1, or dropped."""
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    dropped = tuple(size for axis, size in enumerate(shape) if axis not in axes)
    need(out in (kept, dropped), "the shapes do not fit")
    return out == kept


def _before(line: Line, axes: tuple[int, ...]) -> Box:
    """Return everything that the results in the line's box combine."""
    shape = line.operand(0)
    if _kept(shape, axes, line.out()):
        return along(shape, axes, line.box)
    rest = iter(line.box)
    return tuple(all_of(size) if axis in axes else next(rest) for axis, size in enumerate(shape))


def _after(line: Line, axes: tuple[int, ...]) -> Box:
    """Return the results that the elements in the line's box enter."""
    if _kept(line.operand(0), axes, line.out()):
        return tuple(all_of(1) if axis in axes else span for axis, span in enumerate(line.box))
    return tuple(span for axis, span in enumerate(line.box) if axis not in axes)


def reduction(*, named: bool, knows: str) -> Operation:
    """Return the rule of sums, means, extremes and norms.

    `knows` is "same" if the result is of the sign that all elements have, "size" if it is >= 0 and
    zero for zeros, "" if nothing is known. Each element's gradient is a multiple of the result's.
    """

    def value(line: Line) -> bool:
        if not knows:
            return False
        axes = _axes(line, named=named)
        if knows == "size" and line.step.fact is Fact.NONNEGATIVE:
            return True
        known = line.facts(0)
        return covers(
            known.zero if knows == "size" else known.of(line.step.fact), _before(line, axes)
        )

    def backward(line: Line) -> bool:
        need(line.step.position == 0, "only its first operand gets a gradient")
        return covers(line.shut(), _after(line, _axes(line, named=named)))

    return Operation(value, backward)


def _tied_backward(line: Line) -> bool:
    """Softmax, y * (grad - sum(grad * y)), and sums up to a place: all along the axis count."""
    need(line.step.position == 0 and line.operand(0) == line.out(), "the shapes do not fit")
    axes = _axes(line, named=True)
    need(len(axes) == 1 or not line.out(), "it has not one axis")
    return covers(line.shut(), along(line.out(), axes, line.box))


def _at_least_zero(line: Line) -> bool:
    """Softmax: a quotient of exponentials."""
    return covers(facts(high=(whole(line.out()),)).of(line.step.fact), line.box)


def pooling(spatial: int, *, divisor: bool = False, signs: bool = True) -> Operation:
    """Return the rule of averages and maxima over windows, interpolation, and copies at edges.

    What holds at every position of a channel holds for combinations with weights >= 0; padding adds
    zeros to averages, nothing to maxima. Weights of both signs keep no sign (`signs`). No channel's
    gradient reaches another.
    """

    def lead(line: Line) -> int:
        shape, out = line.operand(0), line.out()
        count = len(out) - spatial
        need(len(shape) == len(out) and count >= 0, "the shapes do not fit")
        need(shape[:count] == out[:count], "the shapes do not fit")
        if divisor:
            need(line.bound("divisor_override", 1.0) > 0, "its divisor is not positive")
        return count

    def value(line: Line) -> bool:
        count = lead(line)
        goal = (*line.box[:count], *whole(line.operand(0)[count:]))
        known = line.facts(0)
        return covers(known.of(line.step.fact) if signs else known.zero, goal)

    def backward(line: Line) -> bool:
        need(line.step.position == 0, "only its first operand gets a gradient")
        count = lead(line)
        return covers(line.shut(), (*line.box[:count], *whole(line.out()[count:])))

    return Operation(value, backward)


def _embedding_value(line: Line) -> bool:
    """Any row of the table may be picked: a feature must hold in all of them."""
    if not line.real(0):
        return False
    table, out = line.operand(0), line.out()
    need(len(table) == 2 and table[1:] == out[-1:], "the shapes do not fit")  # noqa: PLR2004
    return covers(line.facts(0).of(line.step.fact), (all_of(table[0]), line.box[-1]))


def _embedding_backward(line: Line) -> bool:
    """A feature of any row may be picked at any position."""
    table, out = line.operand(0), line.out()
    need(line.step.position == 0 and len(table) == 2, "the shapes do not fit")  # noqa: PLR2004
    need(table[1:] == out[-1:], "the shapes do not fit")
    return covers(line.shut(), (*whole(out[:-1]), line.box[1]))


def _pick_value(line: Line) -> bool:
    """Any element may be picked."""
    return line.real(0) and covers(line.facts(0).of(line.step.fact), whole(line.operand(0)))


def _pick_backward(line: Line) -> bool:
    """Any element may be picked at any place."""
    return line.step.position == 0 and covers(line.shut(), whole(line.out()))


def _place_backward(line: Line) -> bool:
    """Values put, or added, at places that are data: the first operand stays where it is."""
    if line.step.position == 0:
        return line.operand(0) == line.out() and covers(line.shut(), line.box)
    return covers(line.shut(), whole(line.out()))


_PICK: Final = Operation(_pick_value, _pick_backward)
_PLACE: Final = Operation(unknown, _place_backward)
_NORM: Final = reduction(named=True, knows="size")
_SAME: Final = reduction(named=True, knows="same")
_SAME_ALL: Final = reduction(named=False, knows="same")

TABLE: Final[Table] = {
    "SumBackward0": _SAME_ALL,
    "SumBackward1": _SAME,
    "MeanBackward0": _SAME_ALL,
    "MeanBackward1": _SAME,
    "AmaxBackward0": _SAME,
    "AminBackward0": _SAME,
    "MaxBackward0": _SAME,
    "MaxBackward1": _SAME_ALL,
    "MinBackward0": _SAME,
    "MinBackward1": _SAME_ALL,
    "LinalgVectorNormBackward0": _NORM,
    "VarBackward0": _NORM,
    "StdBackward0": _NORM,
    "LogsumexpBackward0": reduction(named=True, knows=""),
    "SoftmaxBackward0": Operation(_at_least_zero, _tied_backward),
    "SafeSoftmaxBackward0": Operation(_at_least_zero, _tied_backward),
    "LogSoftmaxBackward0": Operation(unknown, _tied_backward),
    "CumsumBackward0": Operation(unknown, _tied_backward),
    "AvgPool2DBackward0": pooling(2, divisor=True),
    "AvgPool3DBackward0": pooling(3, divisor=True),
    "MaxPool2DWithIndicesBackward0": pooling(2),
    "MaxPool3DWithIndicesBackward0": pooling(3),
    "AdaptiveAvgPool2DBackward0": pooling(2),
    "AdaptiveAvgPool3DBackward0": pooling(3),
    "AdaptiveMaxPool2DBackward0": pooling(2),
    "AdaptiveMaxPool3DBackward0": pooling(3),
    "UpsampleNearest1DBackward0": pooling(1),
    "UpsampleNearest2DBackward0": pooling(2),
    "UpsampleNearest3DBackward0": pooling(3),
    "UpsampleLinear1DBackward0": pooling(1),
    "UpsampleBilinear2DBackward0": pooling(2),
    "UpsampleTrilinear3DBackward0": pooling(3),
    "UpsampleNearestExact1DBackward0": pooling(1),
    "UpsampleNearestExact2DBackward0": pooling(2),
    "UpsampleNearestExact3DBackward0": pooling(3),
    "UpsampleBicubic2DBackward0": pooling(2, signs=False),
    "UpsampleBilinear2DAaBackward0": pooling(2, signs=False),
    "ReflectionPad1DBackward0": pooling(1),
    "ReflectionPad2DBackward0": pooling(2),
    "ReflectionPad3DBackward0": pooling(3),
    "ReplicationPad1DBackward0": pooling(1),
    "ReplicationPad2DBackward0": pooling(2),
    "ReplicationPad3DBackward0": pooling(3),
    "EmbeddingBackward0": Operation(_embedding_value, _embedding_backward),
    "IndexBackward0": _PICK,
    "GatherBackward0": _PICK,
    "IndexSelectBackward0": _PICK,
    "TakeBackward0": _PICK,
    "TopkBackward0": _PICK,
    "SortBackward0": _PICK,
    "IndexAddBackward0": _PLACE,
    "IndexPutBackward0": _PLACE,
    "ScatterAddBackward0": _PLACE,
}
