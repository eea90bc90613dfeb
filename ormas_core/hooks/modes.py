"""The state of a model beside its gradients: modes, and values that are no numbers at the start."""

import math
from collections.abc import Iterator

from torch import Tensor, nn

from ormas_core.hooks import statistics
from ormas_core.hooks.gather import Gather
from ormas_core.hooks.select import Selection
from ormas_core.model_events import NonfiniteState
from ormas_core.terms import NonfiniteCount


def evaluating(model: nn.Module) -> tuple[str, ...]:
    """Return the outermost modules that are in evaluation mode with all that is in them.

    The model itself is called by its class, as where it is a layer.
    """
    return tuple(name or type(model).__name__ for name in _outermost(model, ""))


def _outermost(module: nn.Module, name: str) -> list[str]:
    children = list(module.named_children())
    prefix = f"{name}." if name else ""
    below = [_outermost(child, f"{prefix}{key}") for key, child in children]
    whole = [[f"{prefix}{key}"] for key, _ in children]
    if not module.training and below == whole:
        return [name]
    return [found for each in below for found in each]


def starting_state(selection: Selection) -> Iterator[NonfiniteState]:
    """Yield an event if parameters or buffers are NaN or infinite; one copy to the host.

    Values that are not in this process, have no data yet, or cannot be read are left out.
    """
    values = [
        (layer.name, value.detach())
        for layer in selection.owners
        if layer.name not in selection.sharded
        for value in (*layer.module.parameters(recurse=False), *layer.module.buffers(recurse=False))
        if readable(value)
    ]
    gather = Gather()
    slots = [gather.add(norm) for norm in statistics.norms([value for _, value in values])]
    host = gather.fetch()
    counts: dict[str, tuple[int, int]] = {}
    for (name, value), slot in zip(values, slots, strict=True):
        if math.isfinite(float(host[slot][0])):
            continue
        nan, inf = (int(number) for number in statistics.nonfinite(value))
        before = counts.get(name, (0, 0))
        counts[name] = before[0] + nan, before[1] + inf
    found = tuple(
        NonfiniteCount(layer=name, nan=nan, inf=inf)
        for name, (nan, inf) in counts.items()
        if nan or inf
    )
    if found:
        yield NonfiniteState(step=0, layers=found)


def readable(value: Tensor) -> bool:
    """Whether the values are all in this process, and floating-point numbers."""
    lazy = nn.parameter.is_lazy(value)
    return not lazy and not value.is_meta and value.dtype.is_floating_point and _plain(value)


def _plain(value: Tensor) -> bool:
    return type(value) in (Tensor, nn.Parameter) and value.numel() > 0 and not value.is_sparse
