"""Who may write a parameter, besides the one optimizer that a claim about it assumes."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from ormas_core.certificates.graph import has_gradient_hook, parameters_in, tensors_in
from ormas_core.certificates.optimizers import Slot, lr_ceiling

UNOWNED: Final = "it is in no optimizer"


class Owner(NamedTuple):
    """What is known of a parameter outside the graph.

    Attributes:
        layer: the module that holds it.
        name: its full name.
        slot: its place in its optimizer; None where it has none or several.
        refusal: why nothing can be claimed of it; empty if something may.
    """

    layer: str
    name: str
    slot: Slot | None
    refusal: str


def owners(
    layers: Sequence[tuple[str, nn.Module]],
    optimizers: Sequence[Optimizer],
    *,
    tensors: Iterable[Tensor] = (),
    lr_max: float | None = None,
    seen_lr: Mapping[int, float] | None = None,
    asserted: Collection[str] = (),
) -> dict[int, Owner]:
    """Return, for each parameter id, who owns it.

    Args:
        layers: every module of the model that has parameters of its own, by name.
        optimizers: all that may write the model's parameters.
        tensors: further tensors that may share storage with them: all parameters and buffers.
        lr_max: learning rate that claims must cover; None for ten times the largest seen.
        seen_lr: parameter id -> largest learning rate seen so far.
        asserted: class names of optimizers whose behaviour the user vouches for.
    """
    slots = _slots(optimizers, lr_max, seen_lr or {}, asserted)
    storages = _Storages(layers, tensors)
    found: dict[int, Owner] = {}
    for layer, module in layers:
        for own, parameter in parameters_in(module):
            if id(parameter) in found:
                continue
            places = slots.get(id(parameter), [])
            refusal = _refusal(module, parameter, places, storages)
            found[id(parameter)] = Owner(
                layer, f"{layer}.{own}", places[0] if len(places) == 1 else None, refusal
            )
    return found


def _slots(
    optimizers: Sequence[Optimizer],
    lr_max: float | None,
    seen_lr: Mapping[int, float],
    asserted: Collection[str],
) -> dict[int, list[Slot]]:
    places: dict[int, list[Slot]] = {}
    for optimizer in optimizers:
        kind, state = type(optimizer), optimizer.state
        vouched = kind.__name__ in asserted
        for group in optimizer.param_groups:
            ceilings: dict[float, float] = {}
            for parameter in group["params"]:
                seen = seen_lr.get(id(parameter), 0.0)
                if seen not in ceilings:
                    ceilings[seen] = lr_ceiling(group, seen) if lr_max is None else lr_max
                # Indexing the state would create an entry in the user's optimizer.
                slot = Slot(kind, group, state.get(parameter, {}), ceilings[seen], vouched)
                places.setdefault(id(parameter), []).append(slot)
    return places


class _Storages:
    """Where tensors live, and how many distinct ones live in each storage."""

    def __init__(self, layers: Sequence[tuple[str, nn.Module]], more: Iterable[Tensor]) -> None:
        tensors = {id(tensor): tensor for tensor in more}
        for _, module in layers:
            tensors.update((id(tensor), tensor) for tensor in tensors_in(module))
        self.addresses = {key: storage_address(tensor) for key, tensor in tensors.items()}
        self.tenants = Counter(self.addresses.values())


def storage_address(tensor: Tensor) -> int:
    """Return where a tensor's memory begins; 0 where that cannot be seen."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0


def _refusal(
    module: nn.Module, parameter: Tensor, places: Sequence[Slot], storages: _Storages
) -> str:
    if not places:
        return UNOWNED
    if len(places) > 1:
        return "it is in more than one optimizer or group"
    lr, most = abs(float(places[0].group.get("lr", 0.0))), places[0].lr_max
    if lr > most:
        return f"its learning rate {lr:.3g} is above the lr_max {most:.3g} that was asked for"
    address = storages.addresses[id(parameter)]
    if not address:
        return "its storage cannot be seen"
    if storages.tenants[address] > 1:
        return "it shares its storage with another tensor"
    if has_gradient_hook(parameter):
        return "a hook on it may change its gradient"
    if getattr(module, "max_norm", None) is not None:
        return "max_norm rewrites its rows outside the optimizer"
    return ""
