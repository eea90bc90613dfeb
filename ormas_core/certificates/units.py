"""From proven elements to what a person reads: channels, hidden units, heads and adapters."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ormas_core.certificates import masks
from ormas_core.certificates.graph import LEAF, Edge, Graph
from ormas_core.certificates.masks import Mask
from ormas_core.certificates.prover import Pass, rule_of
from ormas_core.certificates.rules import RULES, convolution, linear, shapes
from ormas_core.claims import StepKind, TraceStep, UnitKind

_CASTS: Final = frozenset({"ToCopyBackward0", "CloneBackward0", "AliasBackward0"})
_ATTENTION: Final = frozenset(
    {
        "ScaledDotProductFlashAttentionForCpuBackward0",
        "ScaledDotProductFlashAttentionBackward0",
        "ScaledDotProductEfficientAttentionBackward0",
        "ScaledDotProductCudnnAttentionBackward0",
        "BmmBackward0",
    }
)
_LINEAR: Final = frozenset(
    {
        *shapes.RULES,
        *linear.RULES,
        *convolution.RULES,
        "AddBackward0",
        "SubBackward0",
        "NegBackward0",
        "MulBackward1",
        "DivBackward1",
        "ToCopyBackward0",
        "NativeDropoutBackward0",
    }
)
"""Operations that a low-rank pair may have between its factors; and products with constants."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """An operation that multiplies a weight with activations.

    Attributes:
        node: its number.
        feature: axis of its output along which the weight's output features lie.
    """

    node: int
    feature: int


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight matrix or filter bank in a graph.

    Attributes:
        leaf: number of its leaf node.
        axis: axis of the parameter along which its output features lie.
        consumers: where it is used; none where an opaque operation uses it.
    """

    leaf: int
    axis: int
    consumers: tuple[Consumer, ...]


def weights(graph: Graph) -> Iterator[Weight]:
    """Yield the parameters with output features: used as weights only, or by what is opaque."""
    for number, node in enumerate(graph.nodes):
        if node.parameter is None or len(node.out_shapes[0]) < 2:  # noqa: PLR2004
            continue
        uses = list(_uses(graph, number, swapped=False))
        known = [use for use in uses if use is not None]
        axes = {axis for axis, _ in known}
        if len(known) == len(uses) and len(axes) == 1:
            yield Weight(number, axes.pop(), tuple(consumer for _, consumer in known))
        elif any(rule_of(graph.nodes[reader]) is None for reader in readers(graph, number)):
            # What it is there cannot be seen: its rows are taken for units, and never proven.
            yield Weight(number, 0, ())


def readers(graph: Graph, number: int) -> Iterator[int]:
    """Yield the operations that use a parameter, as it is or cast or transposed."""
    for user, _ in graph.users[number]:
        if graph.nodes[user].name in _CASTS or graph.nodes[user].name == "TBackward0":
            yield from readers(graph, user)
        else:
            yield user


def _uses(graph: Graph, number: int, *, swapped: bool) -> Iterator[tuple[int, Consumer] | None]:
    """Yield (axis of the parameter, consumer) for each use; None for one that is no weight."""
    for user, position in graph.users[number]:
        node = graph.nodes[user]
        matrix = {"MmBackward0": 0, "AddmmBackward0": 1}.get(node.name)
        if node.name in _CASTS:
            yield from _uses(graph, user, swapped=swapped)
        elif node.name == "TBackward0":
            yield from _uses(graph, user, swapped=not swapped)
        elif matrix is not None and position == matrix + 1:
            yield (0 if swapped else 1), Consumer(user, 1)
        elif matrix is not None and position == matrix:
            yield (1 if swapped else 0), Consumer(user, 0)
        elif node.name == "ConvolutionBackward0" and position == 1:
            transposed = bool(node.attrs.get("transposed", True))
            yield None if transposed else (0, Consumer(user, 1))
        else:
            yield None


def closed_units(graph: Graph, found: Pass, weight: Weight) -> NDArray[np.bool_]:
    """Return which output features have a zero gradient: of their weights, and of their outputs.

    The second part tells a dead unit from one whose inputs are dead.
    """
    own = _along(found.closed[weight.leaf][0], weight.axis)
    for consumer in weight.consumers:
        own = own & _along(found.closed[consumer.node][0], consumer.feature)
    return own


def zero_units(graph: Graph, zero: Mask, weight: Weight) -> NDArray[np.bool_]:
    """Return which output features have all their weights exactly zero."""
    return _along(zero, weight.axis)


def _along(mask: Mask, axis: int) -> NDArray[np.bool_]:
    others = [own for own in range(len(mask.shape)) if own != axis]
    flat = masks.all_over(mask, others).dense().reshape(-1)
    return np.broadcast_to(flat, (mask.shape[axis],))


def kind_of(graph: Graph, closings: Sequence[Edge], steps: Sequence[TraceStep]) -> UnitKind:
    """Return what kind of unit a proof is about, from where its gradients stop."""
    names = [graph.nodes[node].name for node, _ in closings]
    if any(name in RULES and RULES[name].gate for name in names):
        return UnitKind.CHANNEL
    if any(step.op in _ATTENTION for step in steps):
        return UnitKind.HEAD
    if any("Norm" in name for name in names):
        return UnitKind.BRANCH
    plain = all(is_leaf(graph, step.node) or _linear(graph, step) for step in steps)
    return UnitKind.ADAPTER if plain else UnitKind.UNIT


def _linear(graph: Graph, step: TraceStep) -> bool:
    if step.op in {"MulBackward0", "DivBackward0"}:
        return None in graph.nodes[step.node].inputs
    return step.op in _LINEAR


def heads(
    rows: NDArray[np.bool_], steps: Sequence[TraceStep]
) -> tuple[int, tuple[int, ...]] | None:
    """Return features per head, and the heads of which every feature is in `rows`.

    The proof passes a view that splits the features into (heads, features of a head). None where
    the rows are no whole heads.
    """
    for step in steps:
        if step.kind is not StepKind.BACKWARD or "View" not in step.op or not step.operands:
            continue
        whole, split = step.operands[0], step.outputs[0]
        if len(split) < 2 or whole[-1] != split[-1] * split[-2]:  # noqa: PLR2004
            continue
        size, count = split[-1], split[-2]
        if size < 2 or rows.size % whole[-1]:  # noqa: PLR2004
            continue
        blocks = rows.reshape(-1, size)
        if (blocks.any(axis=1) == blocks.all(axis=1)).all():
            found = np.unique(np.flatnonzero(blocks.all(axis=1)) % count)
            return size, tuple(int(head) for head in found)
    return None


def is_leaf(graph: Graph, number: int) -> bool:
    """Whether a node is a parameter."""
    return graph.nodes[number].name == LEAF
