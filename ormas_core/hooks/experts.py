"""Modules that share the rows of one step between them: which they are, and who got how many."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn

from ormas_core.hooks import _torch
from ormas_core.terms import ExpertRows

_WORD: Final = "expert"
_MATRIX: Final = 2


@dataclass(frozen=True, slots=True)
class ExpertGroup:
    """Sibling modules of one class with parameters of the same shapes.

    Attributes:
        container: name of the module that holds them.
        members: key in the container -> names of the module and of the modules inside it.
    """

    container: str
    members: Mapping[str, tuple[str, ...]]

    @property
    def named(self) -> bool:
        """Whether the name says that these are experts."""
        return _WORD in self.container.lower()


def expert_groups(named: Sequence[tuple[str, nn.Module]]) -> tuple[ExpertGroup, ...]:
    """Return every list or dictionary of modules whose members could be experts.

    Most are plain stacks of layers: whether rows are shared out is seen in the forward passes only.

    Args:
        named: the modules that are observed, with their names.
    """
    names = {id(module): name for name, module in named}
    found = []
    for name, module in named:
        if not isinstance(module, nn.ModuleList | nn.ModuleDict):
            continue
        children = dict(module.named_children())
        kinds = {(type(child), _shapes(child)) for child in children.values()}
        complete = len(children) == len(module) and all(
            names.get(id(child)) == f"{name}.{key}" for key, child in children.items()
        )
        if len(children) > 1 and len(kinds) == 1 and complete and next(iter(kinds))[1]:
            members = {key: tuple(_inside(child, names)) for key, child in children.items()}
            found.append(ExpertGroup(name, members))
    return tuple(found)


def fused_experts(name: str, module: nn.Module) -> bool:
    """Whether a module seems to hold many experts in one parameter: it is called an expert's.

    Weights of convolutions have three dimensions or more by themselves.
    """
    return (
        _WORD in f"{name} {type(module).__name__}".lower()
        and not isinstance(module, _torch.CONVOLUTION | nn.Bilinear)
        and any(
            not nn.parameter.is_lazy(p) and p.dim() > _MATRIX
            for p in module.parameters(recurse=False)
        )
    )


class RowCounts:
    """Counts the rows that modules return in the forward passes of one step.

    Args:
        groups: the candidates. Those not named as experts are looked at only where outputs are
            matrices, as those of a router are: stages of a network differ in their rows too.
    """

    def __init__(self, groups: Sequence[ExpertGroup]) -> None:
        self._groups = groups
        # Name -> whether outputs of any shape count.
        self._any_shape: dict[str, bool] = {}
        for group in groups:
            for name in (name for names in group.members.values() for name in names):
                self._any_shape[name] = self._any_shape.get(name, False) or group.named
        self._routed: set[str] = set()
        self.clear()

    def clear(self) -> None:
        """Forget the step."""
        self._rows: dict[str, int] = {}
        self._again: dict[str, int] = {}

    def note(self, name: str, outputs: Sequence[Tensor]) -> None:
        """Take a call. No value of a tensor is looked at, so the device is not waited for."""
        any_shape = self._any_shape.get(name)
        if any_shape is None or not outputs:
            return
        shape = outputs[0].shape
        if len(shape) == 0 or (len(shape) != _MATRIX and not any_shape):
            return
        # Checkpointed modules are called again in backward, or have no other call with gradients.
        counts = self._again if _torch.in_backward() else self._rows
        counts[name] = counts.get(name, 0) + shape[:-1].numel()

    def take(self) -> tuple[ExpertRows, ...]:
        """Return the counts of every group that shares rows out, or ever did."""
        return tuple(self._taken())

    def _taken(self) -> Iterator[ExpertRows]:
        for group in self._groups:
            rows = self._of(group, self._rows) or self._of(group, self._again)
            if rows and (group.container in self._routed or group.named or _uneven(rows)):
                self._routed.add(group.container)
                yield ExpertRows(
                    container=group.container, experts=tuple(rows), rows=tuple(rows.values())
                )

    def _of(self, group: ExpertGroup, counts: Mapping[str, int]) -> dict[str, int]:
        """Return the rows of each member: of its own calls or, where it has none, of its parts."""
        rows = {}
        for key, (own, *parts) in group.members.items():
            inner = max((counts.get(part, 0) for part in parts), default=0)
            rows[key] = counts.get(own, inner)
        return rows if any(rows.values()) else {}


def _uneven(rows: Mapping[str, int]) -> bool:
    """Whether two members had different numbers of rows, none aside: a stack may skip layers."""
    return len({n for n in rows.values() if n}) > 1


def _shapes(module: nn.Module) -> Any:
    return tuple(
        (name, () if nn.parameter.is_lazy(p) else tuple(p.shape))
        for name, p in module.named_parameters()
    )


def _inside(module: nn.Module, names: Mapping[int, str]) -> Iterator[str]:
    """Yield the names of a module and of the observed modules inside it, itself first."""
    return (names[id(inner)] for inner in module.modules() if id(inner) in names)
