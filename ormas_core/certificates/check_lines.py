"""One line of a proof as the checker's rules see it: what it claims, and from which premises."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ormas_core.certificates.check_regions import Boxes, Shape, meets, spread, whole
from ormas_core.claims import Box, Fact, TraceStep

_MOST_TEXT: Final = 400
_INTEGERS: Final = re.compile(r"[\[(]?\s*-?\d{1,19}(\s*,\s*-?\d{1,19})*\s*,?\s*[\])]?")


class Doubt(Exception):  # noqa: N818 - the checker's answer: the line does not follow
    """Why a line does not follow."""


class Facts(NamedTuple):
    """Boxes in which a quantity is zero, at most zero, at least zero; zero is of both signs.

    `small` are those in which its absolute values stay within the numbers of a limit.
    """

    zero: Boxes
    low: Boxes
    high: Boxes
    small: Boxes = ()

    def of(self, fact: Fact | None) -> Boxes:
        """Return the boxes in which the fact holds."""
        if fact is Fact.ZERO:
            return self.zero
        if fact is Fact.MAGNITUDE:
            return self.small
        return self.low if fact is Fact.NONPOSITIVE else self.high

    def moved(self, change: Callable[[Box], Boxes]) -> "Facts":
        """Return the same facts in other coordinates; `change` may leave boxes out."""
        return Facts(*(tuple(new for box in part for new in change(box)) for part in self))


NOTHING: Final = Facts((), (), ())


def facts(zero: Boxes = (), low: Boxes = (), high: Boxes = (), small: Boxes = ()) -> Facts:
    """Return the facts with what follows: what is of both signs is zero."""
    zero = (*zero, *meets(low, high))
    return Facts(zero, (*low, *zero), (*high, *zero), small)


def scaled(x: Facts, factor: float, shape: Shape) -> Facts:
    """Return the facts about `factor` times a quantity; a factor of zero makes all of it zero."""
    if factor == 0:
        return facts(zero=(whole(shape),))
    return Facts(x.zero, x.low, x.high) if factor > 0 else Facts(x.zero, x.high, x.low)


def total(a: Facts, b: Facts) -> Facts:
    """Return the facts about a sum: rounded, it still has the sign that both terms have."""
    return facts(*(meets(one, other) for one, other in zip(a[:3], b[:3], strict=True)))


def product(a: Facts, b: Facts) -> Facts:
    """Return the facts about a product of finite numbers; underflow gives zero, of both signs."""
    return facts(
        (*a.zero, *b.zero),
        (*meets(a.low, b.high), *meets(a.high, b.low)),
        (*meets(a.low, b.low), *meets(a.high, b.high)),
    )


@dataclass(frozen=True, slots=True)
class Line:
    """A `value`, `limit` or `backward` line with its premises.

    Attributes:
        step: the line.
        known: operand -> what the premises say of its values, in its own coordinates.
        closed: output -> boxes in which its gradient is zero.
    """

    step: TraceStep
    known: Mapping[int, Facts]
    closed: Mapping[int, Boxes]

    @property
    def box(self) -> Box:
        """The region the line is about."""
        return self.step.box

    def facts(self, operand: int) -> Facts:
        """Return what is known of an operand."""
        return self.known.get(operand, NOTHING)

    def facts_in(self, operand: int, out: Shape) -> Facts:
        """Return what is known of an operand, seen in `out` to which it broadcasts."""
        if operand not in self.known:
            return NOTHING
        shape = self.operand(operand)

        def seen(box: Box) -> Boxes:
            found = spread(box, shape, out)
            return () if found is None else (found,)

        return self.known[operand].moved(seen)

    def shut(self, output: int = 0) -> Boxes:
        """Return where the gradient of an output is known to be zero."""
        return self.closed.get(output, ())

    def operand(self, number: int) -> Shape:
        """Return an operand's shape, which is its own only if it is `real`."""
        if number >= len(self.step.operands):
            raise Doubt(f"it has no operand {number}")
        return self.step.operands[number]

    def real(self, number: int) -> bool:
        """Whether the recorded shape of an operand is its own: for constants it need not be."""
        return number in self.known or (self.step.fact is None and self.step.position == number)

    def out(self, number: int = 0) -> Shape:
        """Return an output's shape."""
        if number >= len(self.step.outputs):
            raise Doubt(f"it has no output {number}")
        return self.step.outputs[number]

    def text(self, name: str) -> str:
        """Return a setting as it was recorded."""
        found = (self.step.settings or {}).get(name)
        if found is None or len(found) > _MOST_TEXT:
            raise Doubt(f"its setting {name} is missing")
        return found

    def number(self, name: str) -> float:
        """Return a setting that is a finite number."""
        return number(self.text(name), name)

    def bound(self, name: str, absent: float) -> float:
        """Return a setting that is a number, infinite or not, or None for `absent`."""
        return absent if self.text(name) == "None" else number(self.text(name), name, finite=False)

    def flag(self, name: str) -> bool:
        """Return a setting that is True or False."""
        if (found := self.text(name)) not in ("True", "False"):
            raise Doubt(f"its setting {name} is {found!r}")
        return found == "True"

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return a setting that is one integer, several, or None."""
        found = self.text(name)
        if found in ("None", "()", "[]"):
            return None if found == "None" else ()
        if not _INTEGERS.fullmatch(found):
            raise Doubt(f"its setting {name} is {found!r}")
        return tuple(int(digits) for digits in re.findall(r"-?\d+", found))

    def integer(self, name: str) -> int:
        """Return a setting that is one integer."""
        found = self.integers(name)
        if found is None or len(found) != 1:
            raise Doubt(f"its setting {name} is {self.text(name)!r}")
        return found[0]

    def axis(self, name: str, rank: int) -> int:
        """Return a setting that names one of `rank` axes."""
        return axis_of(self.integer(name), rank)


def axis_of(value: int, rank: int) -> int:
    """Return an axis counted from the front."""
    if not -rank <= value < rank:
        raise Doubt(f"there is no axis {value}")
    return value % rank


def number(text: str, name: str, *, finite: bool = True) -> float:
    """Return the number that a setting is."""
    try:
        found = float(text)
    except ValueError:
        raise Doubt(f"its setting {name} is {text!r}") from None
    if math.isnan(found) or (finite and math.isinf(found)):
        raise Doubt(f"its setting {name} is {text!r}")
    return found


def need(condition: object, reason: str) -> None:
    """Doubt unless the condition holds."""
    if not condition:
        raise Doubt(reason)


def found_box(box: Box | None, reason: str = "the shapes do not fit") -> Box:
    """Return the box, or doubt where there is none."""
    if box is None:
        raise Doubt(reason)
    return box


class Operation(NamedTuple):
    """What the checker knows of one operation of the graph.

    Attributes:
        value: whether a line about an output's values follows.
        backward: whether a line about the gradient sent to an operand follows.
        outputs: how many of its outputs may be used at all, for both to be true.
    """

    value: Callable[[Line], bool]
    backward: Callable[[Line], bool]
    outputs: int = 1


Table = Mapping[str, Operation]


def unknown(line: Line) -> bool:
    """Say of an operation's values that nothing is known."""
    return False


def along(shape: Shape, axes: Sequence[int], box: Box) -> Box:
    """Return the box made whole along `axes`."""
    return tuple(
        (0, size, size) if axis in axes else span
        for axis, (span, size) in enumerate(zip(box, shape, strict=True))
    )
