"""What the checker knows of norms: x_hat = (x - mean) / sqrt(var + eps), y = x_hat * a + b.

y is exactly b where a is exactly zero, and where everything that the mean is taken over is exactly
zero: then the mean and x_hat are. With g = a * grad y, the gradient of x is a multiple of
g - mean(g) - x_hat * mean(g * x_hat): zero where all g of the same mean are zero.
"""

import math
from typing import Final

from ormas_core.certificates.check_lines import (
    Facts,
    Line,
    Operation,
    Table,
    need,
)
from ormas_core.certificates.check_regions import (
    Boxes,
    Shape,
    all_of,
    covers,
    is_all,
    spread,
    unmerge,
    whole,
)
from ormas_core.claims import Box, Fact

SCALE: Final = 1
SHIFT: Final = 2
EXTRA: Final = ("scale", "shift", "m_max", "x_max", "roundoff", "m_factor", "decay_margin")
"""Settings that a `limit` line has beside those of its operation, `eps` apart."""

_LEAST_ROUNDOFF: Final = 2.0**-53
_HEADROOM: Final = 1 + 2.0**-6
_SAFETY: Final = 8.0


def _affine_fits(line: Line, shape: Shape) -> None:
    for number in (SCALE, SHIFT):
        if line.real(number):
            need(line.operand(number) == shape, "scale or shift do not fit")


def _channel(boxes: Boxes) -> Boxes:
    """Return the channels of (N, C, ...) boxes that hold everything of them."""
    return tuple(
        (box[1],)
        for box in boxes
        if all(is_all(span) for axis, span in enumerate(box) if axis != 1)
    )


def batch_norm(eps: str) -> Operation:
    """Return the rule of batch norm: means over all but the channel axis, of the batch in training.

    In evaluation mode the mean is a stored number, so x = 0 says nothing of x_hat. Synchronised
    over ranks it has no such mode, and records no eps: zero gives 0 / 0, no finite number.
    """

    def still(line: Line) -> Boxes:
        """Return the channels in which x_hat is exactly zero."""
        still = not eps or (line.flag("training") and line.number(eps) > 0)
        return _channel(line.facts(0).zero) if still else ()

    def prepare(line: Line) -> Shape:
        shape = line.out()
        need(len(shape) > 1, "it has no channels")
        need(line.operand(0) == shape or not line.real(0), "the shapes do not fit")
        _affine_fits(line, shape[1:2])
        return shape

    def value(line: Line) -> bool:
        prepare(line)
        goal = (line.box[1],)
        silent = (*still(line), *line.facts(SCALE).zero)
        return covers(silent, goal) and covers(line.facts(SHIFT).of(line.step.fact), goal)

    def backward(line: Line) -> bool:
        prepare(line)
        position, shut = line.step.position, _channel(line.shut())
        if position == 0:
            return covers((*shut, *line.facts(SCALE).zero), (line.box[1],))
        if position == SCALE:
            return covers((*shut, *still(line)), line.box)
        return position == SHIFT and covers(shut, line.box)

    return Operation(value, backward)


def limited(line: Line) -> bool:
    """Values <= 0 under limits: |x_hat| <= r = m / sqrt(m - 1) and b <= -|a| r, with room.

    That the numbers leave that room is for `limit_of`; that scale and shift keep to them is what
    the premises about both stand for, which the trace must discharge.
    """
    need(len(line.out()) > 1, "it has no channels")
    _affine_fits(line, line.out()[1:2])
    goal = (line.box[1],)
    need(line.flag("training"), "a limit needs the statistics of the batch")
    need(line.step.fact is Fact.NONPOSITIVE, "a limit only says that values are at most zero")
    scale = line.facts(SCALE)
    held = covers((*scale.low, *scale.high), goal) and covers(line.facts(SHIFT).low, goal)
    return held and limit_of(line)[0] >= math.prod(line.out()) // line.out()[1]


def limit_of(line: Line) -> tuple[float, float]:
    """Return (m_max, x_max) of a `limit` line, after checking them against its other numbers.

    With m elements in a channel |x_hat| <= m / sqrt(m - 1), even about a mean that was rounded to
    the type of the inputs. Rounding on the way adds an error of up to m_factor * roundoff * max|x|
    / sqrt(eps) to x_hat; an eighth of the room left is for that.

    Raises:
        Doubt: a number is missing, or the numbers do not leave room.
    """
    scale, shift, m_max, x_max, roundoff, factor = (line.number(name) for name in EXTRA[:6])
    margin = line.number("decay_margin")
    eps = line.number("eps")
    need(scale >= 0 > shift and margin >= 1 and eps > 0, "scale, shift or eps do not fit")
    need("epsilon" not in (line.step.settings or {}) or eps == line.number("epsilon"), "two eps")
    need(m_max > 1 and x_max > 0, "the limits are empty")
    # A mean that is summed pairwise has log2(m) roundings on the way, any other up to m.
    pairwise = line.step.op == "NativeBatchNormBackward0"
    roundings = math.log2(m_max) if pairwise else m_max
    need(roundoff >= _LEAST_ROUNDOFF and factor >= roundings, "too few roundings")
    room = -shift / margin - scale * m_max / math.sqrt(m_max - 1) * _HEADROOM
    need(room > 0, "scale and shift leave no room")
    error = _SAFETY * factor * roundoff * scale * x_max
    need(error <= room * math.sqrt(eps) * (1 + 1e-9), "x_max leaves no room for rounding")
    return m_max, x_max


def _tail(line: Line) -> int:
    """Return over how many trailing axes the mean is taken."""
    tail, shape = line.integers("normalized_shape"), line.out()
    need(tail and shape[len(shape) - len(tail) :] == tail, "normalized_shape does not fit")
    need(line.operand(0) == shape or not line.real(0), "the shapes do not fit")
    _affine_fits(line, tail or ())
    return len(tail or ())


def _row_value(line: Line) -> bool:
    """Layer norm: means over the trailing axes. RMS norm has no mean and no shift."""
    tail, shape = _tail(line), line.out()
    silent = (*_zero_rows(line, tail), *_seen(line, line.facts(SCALE).zero))
    if not covers(silent, line.box):
        return False
    if line.step.op == "FusedRmsNormBackward0":
        return True
    return covers(line.facts_in(SHIFT, shape).of(line.step.fact), line.box)


def _row_backward(line: Line) -> bool:
    """Each g of a row enters the gradient of all of the row; scale and shift sum over rows."""
    tail, shape, position = _tail(line), line.out(), line.step.position
    lead = len(shape) - tail
    if position == 0:
        goal = (*line.box[:lead], *whole(shape[lead:]))
        return covers((*line.shut(), *_seen(line, line.facts(SCALE).zero)), goal)
    goal = (*whole(shape[:lead]), *line.box)
    if position == SCALE:
        return covers((*line.shut(), *_zero_rows(line, tail)), goal)
    return position == SHIFT and covers(line.shut(), goal)


def _zero_rows(line: Line, tail: int) -> Boxes:
    return tuple(box for box in line.facts(0).zero if all(map(is_all, box[len(box) - tail :])))


def _seen(line: Line, boxes: Boxes) -> Boxes:
    """Return boxes of the scale, seen in the output."""
    if not boxes:
        return ()
    found = (spread(box, line.operand(SCALE), line.out()) for box in boxes)
    return tuple(box for box in found if box is not None)


class _Groups:
    """A group norm's tensors in coordinates (n, group, channel of it, positions)."""

    def __init__(self, line: Line) -> None:
        self.shape = shape = line.out()
        need(len(shape) > 1, "it has no channels")
        sizes = tuple(line.integer(name) for name in ("N", "C", "HxW"))
        need(sizes == (*shape[:2], math.prod(shape[2:])), "N, C or HxW do not fit")
        self.groups = line.integer("group")
        need(self.groups > 0 and shape[1] % self.groups == 0, "the groups do not fit")
        self.size = shape[1] // self.groups
        need(line.operand(0) == shape or not line.real(0), "the shapes do not fit")
        _affine_fits(line, shape[1:2])

    def split(self, box: Box) -> Boxes:
        return unmerge(box, 1, self.groups, self.size) or ()

    def channels(self, box: Box) -> Box:
        """Return a box of scale or shift, seen in the output."""
        return (all_of(self.shape[0]), box[0], *whole(self.shape[2:]))

    def of(self, boxes: Boxes) -> Boxes:
        return tuple(new for box in boxes for new in self.split(box))

    def of_scale(self, known: Facts) -> Boxes:
        return self.of(tuple(self.channels(box) for box in known.zero))

    def still(self, known: Facts) -> Boxes:
        """Return the groups in which x_hat is exactly zero."""
        return tuple(box for box in self.of(known.zero) if all(map(is_all, box[2:])))


def _group_value(line: Line) -> bool:
    """Means over the channels of a group and all positions, for each sample."""
    groups = _Groups(line)
    silent = (*groups.still(line.facts(0)), *groups.of_scale(line.facts(SCALE)))
    goals = groups.split(line.box)
    shift = tuple(groups.channels(box) for box in line.facts(SHIFT).of(line.step.fact))
    return bool(goals) and all(covers(silent, goal) for goal in goals) and covers(shift, line.box)


def _group_backward(line: Line) -> bool:
    """As for layer norm, with groups for rows."""
    groups, position = _Groups(line), line.step.position
    shut = groups.of(line.shut())
    if position == 0:
        rows = (goal[:2] for goal in groups.split(line.box))
        goals = tuple((*row, all_of(groups.size), *whole(groups.shape[2:])) for row in rows)
        dead = (*shut, *groups.of_scale(line.facts(SCALE)))
    else:
        need(position in (SCALE, SHIFT), "there is no such operand")
        goals = groups.split(groups.channels(line.box))
        dead = (*shut, *(groups.still(line.facts(0)) if position == SCALE else ()))
    return bool(goals) and all(covers(dead, goal) for goal in goals)


_ROWS: Final = Operation(_row_value, _row_backward)

TABLE: Final[Table] = {
    "NativeBatchNormBackward0": batch_norm("eps"),
    "CudnnBatchNormBackward0": batch_norm("epsilon"),
    "MiopenBatchNormBackward0": batch_norm("epsilon"),
    "SyncBatchNormBackward": batch_norm(""),
    "NativeLayerNormBackward0": _ROWS,
    "FusedRmsNormBackward0": _ROWS,
    "NativeGroupNormBackward0": Operation(_group_value, _group_backward),
}

LIMITED: Final = ("NativeBatchNormBackward0", "CudnnBatchNormBackward0", "MiopenBatchNormBackward0")
"""Norms of which limits are known."""
