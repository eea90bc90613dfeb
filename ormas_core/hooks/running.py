"""The running statistics of batch norms: where they move and should not, or do not and should."""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from ormas_core.hooks import _torch, statistics
from ormas_core.hooks.gather import Gather
from ormas_core.hooks.modes import readable
from ormas_core.hooks.select import WatchedLayer

_Seen = tuple[float, float]
_START: Final = (0.0, 1.0)
"""Mean and variance of each channel that a batch norm is built with."""


class RunningStatistics:
    """Compares the statistics of batch norms with those of the last check, and with the start.

    Of each, the norms of its means and of its variances are kept, as numbers. One that has no
    parameters, or whose statistics are not in this process, is left out.

    Args:
        layers: the layers that own parameters.

    Attributes:
        drifting: names of those whose parameters are all frozen and whose statistics have moved
            since the last check, after `take`.
        untouched: names of those whose statistics are still those they were built with.
    """

    def __init__(self, layers: Sequence[WatchedLayer]) -> None:
        self._norms = [layer for layer in layers if isinstance(layer.module, _torch.BATCH_NORM)]
        self._last: dict[str, _Seen] = {}
        self.drifting: tuple[str, ...] = ()
        self.untouched: tuple[str, ...] = ()
        gather = Gather()
        slots = self.add_to(gather)
        self.take(gather.fetch(), slots)

    def add_to(self, gather: Gather) -> dict[str, tuple[int, int]]:
        """Bring the statistics along; return the slots of each layer."""
        found = {layer.name: pair for layer in self._norms if (pair := _pair(layer.module))}
        norms = statistics.norms([value for pair in found.values() for value in pair])
        slots = [gather.add(norm) for norm in norms]
        return dict(zip(found, zip(slots[::2], slots[1::2], strict=True), strict=True))

    def take(self, host: Sequence[NDArray[Any]], slots: dict[str, tuple[int, int]]) -> None:
        """Compare what came over, and keep it for the next check."""
        now = {name: (float(host[a][0]), float(host[b][0])) for name, (a, b) in slots.items()}
        moved = {n for n, seen in now.items() if n in self._last and not _same(seen, self._last[n])}
        self.drifting = tuple(
            layer.name
            for layer in self._norms
            if layer.name in moved and not any(p.requires_grad for p in layer.module.parameters())
        )
        self.untouched = self._untouched([n for n, (mean, _) in now.items() if mean == 0.0])
        self._last = now

    def _untouched(self, suspects: Sequence[str]) -> tuple[str, ...]:
        """Look at every element; one more copy to the host, and mostly none."""
        if not suspects:
            return ()
        pairs = {layer.name: _pair(layer.module) for layer in self._norms}
        gather = Gather()
        for name in suspects:
            for value, start in zip(pairs[name] or (), _START, strict=True):
                gather.add((value != start).any())
        touched = np.array(gather.fetch()).reshape(-1, 2).any(1)
        return tuple(name for name, yes in zip(suspects, touched, strict=True) if not yes)


def _pair(module: nn.Module) -> tuple[Tensor, Tensor] | None:
    mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
    if not isinstance(mean, Tensor) or not isinstance(variance, Tensor):
        return None
    return (mean.detach(), variance.detach()) if readable(mean) and readable(variance) else None


def _same(one: _Seen, other: _Seen) -> bool:
    return all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(one, other, strict=True))
