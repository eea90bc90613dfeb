"""Facts that hold while inputs keep to stated limits: what a `bounded` claim rests on.

Each bound is about one operation whose outputs are <= 0 in some channels as long as what flows in
stays within numbers that the claim states: `norm_limits` has those of batch norms, `sum_limits`
those of weighted sums with a bias.

Source: docs/concepts/certificates.md, bounded batch norm and bounded sums.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ormas_core.certificates import masks, signs
from ormas_core.certificates.graph import Node
from ormas_core.certificates.masks import Mask
from ormas_core.certificates.signs import Signs
from ormas_core.claims import Box

MARGINS: Final[Mapping[str, float]] = {"x_max": 16.0, "input_max": 2.0}
"""Limit that a run measures -> a measured input must stay this many times below it, since other
steps are not measured."""
_MEASURED: Final = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
)
"""Modules whose input is that of an operation that limits can be stated for."""
MAGNITUDE: Final = "magnitude"
"""The fact that absolute values stay within what the numbers of the bound say."""


class Premise(NamedTuple):
    """A fact about an operand that a bound needs.

    Attributes:
        position: which operand.
        facts: attributes of `Signs`, or `MAGNITUDE`, one of which holds.
        box: where.
    """

    position: int
    facts: tuple[str, ...]
    box: Box


class Bound(Protocol):
    """The limits of one operation, by channel along axis 1 of its output."""

    @property
    def layer(self) -> str:
        """The module whose input is limited."""

    @property
    def floor(self) -> float:
        """The least size of a parameter for which this holds; 0 is no condition."""

    @property
    def closes(self) -> NDArray[np.bool_]:
        """Which channels are closed within limits, shape (channels,)."""

    def held(self, operands: Sequence[Signs]) -> Mask:
        """Return the channels whose premises are among the operands' facts."""

    def narrow(self, closed: Mapping[int, Mask]) -> bool:
        """Give up what rests on parameters that may move; whether anything was given up."""

    @property
    def weight(self) -> int | None:
        """The id of the parameter of which more than its signs is used, if there is one."""

    def anew(self) -> "Bound":
        """Return the bound as it was found, with nothing given up."""

    def orders(self) -> NDArray[np.int64]:
        """Return the order of magnitude of each channel's limits, shape (channels,)."""

    def premises(self, box: Box) -> tuple[Premise, ...]:
        """Return what the fact that the output is <= 0 in `box` needs."""

    def settings(self, channels: NDArray[np.bool_]) -> dict[str, str]:
        """Return the numbers that a reader needs to check the claim again."""

    def limits(self, channels: NDArray[np.bool_]) -> Iterator[tuple[str, float, float | None]]:
        """Yield (name, tightest limit of the channels, what was seen)."""


class Limits:
    """All bounds of some graphs.

    Args:
        bounds: id of an operation's node -> its bound.
    """

    def __init__(self, bounds: Mapping[int, Bound]) -> None:
        self.bounds = bounds

    def facts(self, node: Node, operands: Sequence[Signs]) -> Sequence[Signs] | None:
        """Return that the output is <= 0 in the channels that the limits close.

        Only where what the limits rest on is still among the facts that hold themselves up.
        """
        bound = self.bounds.get(id(node))
        if bound is None:
            return None
        shape = node.out_shapes[0]
        held = bound.held(operands)
        closed = masks.meet(held, masks.union_of(held.shape, [bound.closes]))
        parts = tuple(part.reshape((1, -1) + (1,) * (len(shape) - 2)) for part in closed.parts)
        nothing = masks.none(shape)
        rest = [signs.unknown(other) for other in node.out_shapes[1:]]
        return [Signs(nothing, Mask(shape, parts), nothing), *rest]

    def narrow(self, closed: Mapping[int, Mask]) -> bool:
        """Give up every bound that rests on a parameter whose gradient is not masked."""
        # Every bound must hear of it, whatever the first ones say.
        given_up = [bound.narrow(closed) for bound in self.bounds.values()]
        return any(given_up)

    def without(self, removed: Collection[int]) -> "Limits":
        """Return the limits as they were found, but for parameters of which nothing is known."""
        return Limits(
            {key: bound.anew() for key, bound in self.bounds.items() if bound.weight not in removed}
        )

    def parameters(self) -> Collection[int]:
        """Return the ids of parameters of which more than their signs is used."""
        return {
            bound.weight
            for bound in self.bounds.values()
            if bound.weight is not None and bound.closes.any()
        }


def is_plain(module: nn.Module) -> bool:
    """Whether a module's own input is that of its operation: its `forward` is torch's own."""
    home = str(getattr(type(module).forward, "__module__", ""))
    return isinstance(module, _MEASURED) and home.startswith("torch.nn.modules.")
