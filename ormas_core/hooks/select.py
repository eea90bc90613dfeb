"""Which layers are watched, and under which names."""

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from ormas_core.errors import LayerPatternError
from ormas_core.hooks import _torch
from ormas_core.hooks.experts import ExpertGroup, expert_groups, fused_experts

_SHOWN_NAMES: Final = 5
_MOST_WRAPPERS: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class WatchedLayer:
    """A module that owns parameters.

    Attributes:
        name: the name in the user's own model; the model itself is called by its class.
        module: the module; its parameters are looked up at every check, since users replace them.
    """

    name: str
    module: nn.Module

    def trainable(self) -> Iterator[Tensor]:
        """Yield the parameters of the module itself that require a gradient now."""
        for parameter in self.module.parameters(recurse=False):
            if parameter.requires_grad:
                yield parameter


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The outcome of selecting layers in a model.

    Attributes:
        model: the user's own model, wrappers removed.
        layers: the watched layers, in the model's order.
        owners: all modules with parameters of their own, watched or not.
        modules: watched layers and the modules around them, as pairs of name and module.
        compiled: names of modules whose calls run compiled code.
        sharded: names of watched layers whose parameters are only partly in this process.
        tied: pairs (layer, owner): the layer's parameters belong to the owner's norm.
        unmatched: patterns that match no layer while others do.
        experts: lists of modules that may share the rows of a step between them.
        fused: names of watched layers that seem to hold many experts in one parameter.
    """

    model: nn.Module
    layers: tuple[WatchedLayer, ...]
    owners: tuple[WatchedLayer, ...]
    modules: tuple[tuple[str, nn.Module], ...]
    compiled: tuple[str, ...]
    sharded: tuple[str, ...]
    tied: tuple[tuple[str, str], ...]
    unmatched: tuple[str, ...]
    experts: tuple[ExpertGroup, ...]
    fused: tuple[str, ...]

    def readable(self) -> Iterator[tuple[WatchedLayer, list[Tensor]]]:
        """Yield each watched layer that is whole in this process with its trainable parameters.

        Without those that a layer before it has too.
        """
        seen, sharded = set[int](), frozenset(self.sharded)
        for layer in self.layers:
            if layer.name not in sharded:
                own = [p for p in layer.trainable() if id(p) not in seen]
                seen.update(map(id, own))
                yield layer, own

    def sizes(self) -> tuple[int, int]:
        """Return the number of parameter elements of the model, and of those that are trainable."""
        parameters = [p for p in self.model.parameters() if not nn.parameter.is_lazy(p)]
        trainable = sum(p.numel() for p in parameters if p.requires_grad)
        return sum(p.numel() for p in parameters), trainable


def unwrap(model: nn.Module) -> nn.Module:
    """Return the user's own model: compile, data-parallel and FSDP wrappers are looked through."""
    while True:
        inner: object = _torch.compiled_inner(model)
        if inner is None and (
            isinstance(model, DistributedDataParallel | DataParallel)
            or type(model).__name__ == "FullyShardedDataParallel"
        ):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def unwrap_optimizer(optimizer: Any) -> Optimizer | None:
    """Return the torch optimizer inside the wrappers of Lightning and accelerate, if there is one.

    accelerate's wrapper is itself an `Optimizer`; Lightning's is not.
    """
    for _ in range(_MOST_WRAPPERS):
        inner = getattr(optimizer, "optimizer", None)
        if inner is None:
            break
        optimizer = inner
    return optimizer if isinstance(optimizer, Optimizer) else None


def runs_compiled(model: nn.Module) -> bool:
    """Whether the model, its wrapper or a part of it is compiled, by either way of compiling.

    A process-wide hook would make torch compile such code again.
    """
    return bool(_compiled(model, _unique(unwrap(model))))


def select(
    model: nn.Module, patterns: Sequence[str] | None, *, compiled: bool = False
) -> Selection:
    """Find the layers to watch: all that own parameters, or those whose names match a pattern.

    Args:
        model: the model as given, wrapped or not.
        patterns: fnmatch patterns of names in the user's own model; None for all.
        compiled: whether the loop calls the model through compiled code that cannot be seen here.

    Raises:
        LayerPatternError: no pattern matches any layer.
    """
    inner = unwrap(model)
    named = _unique(inner)
    owners = [
        WatchedLayer(name, module)
        for name, module in named
        if next(module.parameters(recurse=False), None) is not None
    ]
    layers = [layer for layer in owners if _matches(layer.name, patterns)]
    if patterns is not None and not layers:
        raise LayerPatternError(", ".join(patterns), _no_match(patterns, owners))
    watched = {layer.name for layer in layers}
    flattened = _torch.flattened(model)
    modules = tuple(
        (name, module)
        for name, module in named
        if name in watched or _surrounds(name, module, inner, watched)
    )
    return Selection(
        model=inner,
        layers=tuple(layers),
        owners=tuple(owners),
        modules=modules,
        compiled=(type(inner).__name__,) if compiled else _compiled(model, named),
        sharded=tuple(
            layer.name
            for layer in layers
            if any(
                _torch.is_sharded(p) or id(p) in flattened
                for p in layer.module.parameters(recurse=False)
            )
        ),
        tied=tuple(_tied(layers)),
        unmatched=tuple(
            pattern
            for pattern in patterns or ()
            if not any(fnmatch.fnmatchcase(layer.name, pattern) for layer in layers)
        ),
        experts=expert_groups(modules),
        fused=tuple(layer.name for layer in layers if fused_experts(layer.name, layer.module)),
    )


def _unique(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return all modules under distinct names; the model itself is called by its class."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if _torch.compiled_inner(module) is not None:
            continue  # the user's own module comes next, under the same name
        own = _clean(name) or type(model).__name__
        while own in found or (module is model and hasattr(model, own)):
            own += "'"
        found[own] = module
    return list(found.items())


def _clean(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _torch.WRAPPER_SEGMENTS)


def _matches(name: str, patterns: Sequence[str] | None) -> bool:
    return patterns is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _no_match(patterns: Sequence[str], owners: Sequence[WatchedLayer]) -> str:
    if not owners:
        return f"layers={list(patterns)!r} matches no layer: the model owns no parameters."
    step = max(1, len(owners) // _SHOWN_NAMES)
    shown = [layer.name for layer in owners[::step]][:_SHOWN_NAMES]
    return (
        f"layers={list(patterns)!r} matches none of the {len(owners)} layers that own parameters. "
        f"Their names look like: {', '.join(shown)}. Patterns are fnmatch patterns of whole names, "
        "such as 'encoder.*'."
    )


def _surrounds(name: str, module: nn.Module, root: nn.Module, watched: set[str]) -> bool:
    return module is root or any(layer.startswith(f"{name}.") for layer in watched)


def _compiled(model: nn.Module, named: Sequence[tuple[str, nn.Module]]) -> tuple[str, ...]:
    found = {id(unwrap(module)) for module in model.modules() if _torch.is_compiled(module)}
    return tuple(name for name, module in named if id(module) in found)


def _tied(layers: Sequence[WatchedLayer]) -> Iterator[tuple[str, str]]:
    owner: dict[int, str] = {}
    for layer in layers:
        for parameter in layer.module.parameters(recurse=False):
            first = owner.setdefault(id(parameter), layer.name)
            if first != layer.name:
                yield layer.name, first
