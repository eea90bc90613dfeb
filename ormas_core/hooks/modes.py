"""The state of a model beside its gradients: modes, and values that are no numbers at the start."""

import math
from collections.abc import Iterator

from torch import Tensor, nn

from ormas_core.hooks import _torch, statistics
from ormas_core.hooks.gather import Gather
from ormas_core.hooks.select import Selection, WatchedLayer
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

    Minus infinity in a buffer is a mask and no finding. What `unread` names is left out.
    """
    values = [
        (layer.name, bare, isinstance(value, nn.Parameter))
        for layer in selection.owners
        if layer.name not in selection.sharded
        for value in _values(layer)
        if readable(value) and (bare := _torch.bare(value)) is not None
    ]
    gather = Gather()
    slots = [gather.add(norm) for norm in statistics.norms([value for _, value, _ in values])]
    host = gather.fetch()
    counts: dict[str, tuple[int, int]] = {}
    for (name, value, trained), slot in zip(values, slots, strict=True):
        if math.isfinite(float(host[slot][0])):
            continue
        counted = value if trained else value[value != -math.inf]
        nan, inf = (int(number) for number in statistics.nonfinite(counted))
        before = counts.get(name, (0, 0))
        counts[name] = before[0] + nan, before[1] + inf
    found = tuple(
        NonfiniteCount(layer=name, nan=nan, inf=inf)
        for name, (nan, inf) in counts.items()
        if nan or inf
    )
    if found:
        yield NonfiniteState(step=0, layers=found)


def unread(selection: Selection) -> list[str]:
    """Return the layers some of whose numbers `starting_state` does not look at.

    They are not in this process, there are none yet, or their class keeps them elsewhere.
    """
    return [
        layer.name
        for layer in selection.owners
        if layer.name in selection.sharded
        or any(v.dtype.is_floating_point and _absent(v) for v in _values(layer))
    ]


def _values(layer: WatchedLayer) -> Iterator[Tensor]:
    yield from layer.module.parameters(recurse=False)
    yield from layer.module.buffers(recurse=False)


def readable(value: Tensor) -> bool:
    """Whether the values are all in this process, and floating-point numbers."""
    return value.dtype.is_floating_point and not _absent(value) and value.numel() > 0


def _absent(value: Tensor) -> bool:
    no_data = nn.parameter.is_lazy(value) or value.is_meta
    return no_data or value.is_sparse or _torch.bare(value) is None
