"""What a rule is: how the facts pass one operation, forward and backward.

forward: facts about the operands -> facts about each output, as computed with rounding.
backward: for each output, the elements whose gradient is exactly zero for every input -> the same
for each operand. Every rule relies on the hypothesis that all numbers formed are finite, so that
zero times anything is zero.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ormas_core.certificates import masks, signs
from ormas_core.certificates.graph import Node
from ormas_core.certificates.masks import Mask
from ormas_core.certificates.signs import Signs

Forward = Callable[[Node, Sequence[Signs]], Sequence[Signs]]
Backward = Callable[[Node, Sequence[Signs], Sequence[Mask]], Sequence[Mask]]


class Rule(NamedTuple):
    """One row of the rule table.

    Attributes:
        forward: facts about the outputs.
        backward: masks of the operands.
        settings: recorded settings that both read; a node without one of them is opaque.
        outputs: how many outputs the rule covers; a use of any other makes the node opaque.
        gate: whether the operation itself can close: its backward blocks where an operand's sign
            is known.
    """

    forward: Forward
    backward: Backward
    settings: tuple[str, ...] = ()
    outputs: int = 1
    gate: bool = False


def forget(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """Return no facts about any output."""
    return [signs.unknown(shape) for shape in node.out_shapes]


def passes(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """Return the mask of the output, as it is, for each operand: elementwise operations."""
    return [masks.gather(closed[0], shape) for shape in node.in_shapes]
