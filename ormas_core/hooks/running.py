"""The running statistics of batch norms: where they move and should not, or do not and should."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from numpy.typing import NDArray
from torch import Tensor, nn

from ormas_core.hooks import _torch, statistics
from ormas_core.hooks.gather import Gather
from ormas_core.hooks.modes import readable
from ormas_core.hooks.select import WatchedLayer

_PAIR: Final = 2
_BUILT: Final = (0.0, 1.0)
"""Mean and variance of each channel that a batch norm is built with."""


class RunningStatistics:
    """Compares the statistics of batch norms with those of the last check, and with the start.

    Norms of them are kept, as numbers. A layer whose values cannot be read here is left out.

    Args:
        layers: the layers that own parameters.

    Attributes:
        drifting: after `take`, names of those whose statistics have moved since the last check
            while their parameters are as at the start, and never required a gradient. So the
            copies that momentum encoders and averages keep are not among them.
        untouched: names of those that have exactly the statistics they were built with.
    """

    def __init__(self, layers: Sequence[WatchedLayer]) -> None:
        self._layers = [layer for layer in layers if isinstance(layer.module, _torch.BATCH_NORM)]
        self._frozen = {layer.name for layer in self._layers if not _trains(layer)}
        self._start: Mapping[str, Sequence[float]] = {}
        self._last: Mapping[str, Sequence[float]] = {}
        self.drifting: tuple[str, ...] = ()
        self.untouched: tuple[str, ...] = ()
        gather = Gather()
        slots = self.add_to(gather)
        self._start = self.take(gather.fetch(), slots)

    def add_to(self, gather: Gather) -> dict[str, list[int]]:
        """Bring along the statistics, and the parameters of frozen layers; return their slots."""
        values = {layer.name: list(self._values(layer)) for layer in self._layers}
        norms = iter(statistics.norms([v for found in values.values() for v in found]))
        return {
            name: [gather.add(norm) for norm in itertools.islice(norms, len(found))]
            for name, found in values.items()
            if found
        }

    def take(
        self, host: Sequence[NDArray[Any]], slots: Mapping[str, Sequence[int]]
    ) -> Mapping[str, Sequence[float]]:
        """Compare what came over, and keep it for the next check."""
        self._frozen -= {layer.name for layer in self._layers if _trains(layer)}
        now = {name: [float(host[slot][0]) for slot in found] for name, found in slots.items()}
        self.drifting = tuple(
            name
            for name, found in now.items()
            if name in self._frozen
            and name in self._start
            and name in self._last
            and _same(found[_PAIR:], self._start[name][_PAIR:])
            and not _same(found[:_PAIR], self._last[name][:_PAIR])
        )
        self.untouched = self._untouched([name for name, found in now.items() if found[0] == 0.0])
        self._last = now
        return now

    def _values(self, layer: WatchedLayer) -> Iterator[Tensor]:
        """Yield mean and variance, then the parameters of a frozen layer; or nothing."""
        pair = _pair(layer.module)
        own = list(layer.module.parameters(recurse=False)) if layer.name in self._frozen else []
        if pair and all(readable(value) for value in (*pair, *own)):
            yield from (value.detach() for value in (*pair, *own))

    def _untouched(self, suspects: Sequence[str]) -> tuple[str, ...]:
        """Look at every element; one more copy to the host, and mostly none."""
        if not suspects:
            return ()
        modules = {layer.name: layer.module for layer in self._layers}
        gather = Gather()
        for name in suspects:
            for value, built in zip(_pair(modules[name]), _BUILT, strict=True):
                gather.add((value != built).any())
        host = gather.fetch()
        found = zip(suspects, host[::_PAIR], host[1::_PAIR], strict=True)
        return tuple(name for name, mean, variance in found if not (mean[0] or variance[0]))


def _pair(module: nn.Module) -> tuple[Tensor, ...]:
    found = getattr(module, "running_mean", None), getattr(module, "running_var", None)
    return tuple(value for value in found if isinstance(value, Tensor))


def _trains(layer: WatchedLayer) -> bool:
    return next(layer.trainable(), None) is not None


def _same(some: Sequence[float], others: Sequence[float]) -> bool:
    return all(
        a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(some, others, strict=True)
    )
