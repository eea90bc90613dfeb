"""Planted bugs in the limits of norms and sums, and in what they rest on."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from unittest import mock

import numpy as np
from fuzz.mutants_engine import Plant, patched
from numpy.typing import NDArray
from torch import Tensor

from ormas_core.certificates import engine, masks, norm_limits, norms, sum_limits, sums
from ormas_core.certificates.graph import Graph, Node
from ormas_core.certificates.masks import Mask
from ormas_core.certificates.norm_limits import Affine, NormBound
from ormas_core.certificates.optimizers import Slot
from ormas_core.certificates.ownership import Owner
from ormas_core.certificates.signs import Signs
from ormas_core.certificates.sum_limits import Sizes, SumBound

_norm_bound, _sum_bound = norm_limits.bound_of, sum_limits.bound_of
_affine, _sizes, _sums = norms._affine, sums._sizes, sums._sums


def _larger(name: str, factor: float) -> Plant:
    """A limit of a norm is stated this many times too large."""

    def bound_of(node: Node, affine: Affine, layer: str) -> NormBound:
        found = _norm_bound(node, affine, layer)
        limits = {"m_max": found.m_max, "x_max": found.x_max}
        limits[name] = limits[name] * factor
        return NormBound(node, affine, layer, **limits)

    return patched(norm_limits, "bound_of", bound_of)


class _ExactMean:
    """numpy, by which m / sqrt(m - 1) is sqrt(m - 1): the mean is thought to be exact."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def sqrt(x: NDArray[np.float64]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = (x + 1) / np.sqrt(x)
        return found


def _wide_affine(graph: Graph, node: Node, owners: Mapping[int, Owner]) -> Affine | None:
    """The scale's place in its optimizer is thought to be that of the shift too."""
    edge = node.inputs[1]
    number = graph.nodes[edge[0]].parameter if edge is not None else None
    scale = owners.get(id(graph.parameters[number])) if number is not None else None
    group = scale.slot.group if scale is not None and scale.slot is not None else {}
    alike = {
        key: owner._replace(slot=owner.slot._replace(group=group)) if owner.slot else owner
        for key, owner in owners.items()
    }
    return _affine(graph, node, alike)


def _wide_sizes(weight: Tensor, axis: int, bias: Tensor, slots: list[Slot]) -> Sizes | None:
    """The weight's place in its optimizer is thought to be that of the bias too."""
    return _sizes(weight, axis, bias, [slots[0], slots[1]._replace(group=slots[0].group)])


def _still(module: Any) -> Plant:
    """What momentum may still move is overlooked."""
    leaves = module.leaves

    class Other:
        def __getattr__(self, name: str) -> Any:
            return getattr(leaves, name)

        @staticmethod
        def rest_of(*args: Any) -> Any:
            found = leaves.rest_of(*args)
            every = found.keeps_sign.new_ones(found.keeps_sign.shape)
            return found._replace(drift=found.drift * 0, keeps_sign=every, floor=0.0)

    return patched(module, "leaves", Other())


def _all_channels(bound: NormBound, operands: Sequence[Signs]) -> Mask:
    """Scale and shift are thought to stay what they were."""
    return masks.everything(operands[2].shape)


@contextlib.contextmanager
def _unrounded() -> Iterator[None]:
    """Sums are thought to be exact, and their factors too."""
    with (
        mock.patch.object(sum_limits, "error_of", return_value=0.0),
        mock.patch.object(sum_limits, "HEADROOM", 1.0),
    ):
        yield


def _with(function: str, value: Callable[..., Any]) -> Plant:
    return patched(sums, function, value)


def _unchecked(plant: Plant) -> Plant:
    """Have the attack alone find a bug: the checker of claims would see most of them."""

    @contextlib.contextmanager
    def both() -> Iterator[None]:
        with plant(), mock.patch.object(engine, "check_claim", return_value=None):
            yield

    return both


_BUGS: Final[dict[tuple[str, str], Plant]] = {
    ("bounded norm", "m_max is four times too large"): _larger("m_max", 4.0),
    ("bounded norm", "x_max is ten thousand times too large"): _larger("x_max", 1e4),
    ("bounded norm", "the mean is exact"): patched(norm_limits, "np", _ExactMean()),
    ("bounded norm", "the shift decays like the scale"): patched(norms, "_affine", _wide_affine),
    ("bounded norm", "momentum is overlooked"): _still(norms),
    ("bounded norm", "signs need no masked gradient"): patched(NormBound, "held", _all_channels),
    ("bounded sum", "the limit is ten times too large"): patched(
        sum_limits, "bound_of", lambda *args: 10 * _sum_bound(*args)
    ),
    ("bounded sum", "nothing is rounded"): _unrounded,
    ("bounded sum", "a few weights stand for all"): _with(
        "_sums", lambda weight, axis, channels, _: _sums(weight, axis, channels, 2)
    ),
    ("bounded sum", "the bias decays like the weights"): _with("_sizes", _wide_sizes),
    ("bounded sum", "momentum is overlooked"): _still(sums),
    ("bounded sum", "weights need no masked gradient"): patched(
        SumBound, "narrow", lambda *_: False
    ),
}

BOUNDED_BUGS: Final = {key: _unchecked(plant) for key, plant in _BUGS.items()}
