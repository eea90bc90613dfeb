"""Units that look dead and are open: zero weights, or a zero scale right after them."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ormas_core.certificates import norm_limits, reasons, units
from ormas_core.certificates.graph import Graph
from ormas_core.certificates.leaves import Leaf
from ormas_core.certificates.prover import Proof, prove
from ormas_core.certificates.units import Weight


def parameter_of(graph: Graph, weight: Weight) -> Tensor:
    """Return the parameter of a weight."""
    number = graph.nodes[weight.leaf].parameter
    assert number is not None  # noqa: S101 - a weight is a leaf
    return graph.parameters[number]


def looks_dead(graph: Graph, weight: Weight, leaves: Mapping[int, Leaf]) -> NDArray[np.bool_]:
    """Return which units have all weights zero, or feed a norm of scale zero; shape (units,).

    A layer of which all look so was made so: a fresh adapter, a zero-initialised branch.
    """
    zero = leaves[id(parameter_of(graph, weight))].now.zero
    looks = units.zero_units(graph, zero, weight) | _zero_scales(graph, weight, leaves)
    return looks & ~looks.all()


def open_units(
    graphs: Sequence[Graph],
    weight: Weight,
    leaves: Mapping[int, Leaf],
    ideal: Proof,
    closed: NDArray[np.bool_],
    home: int = 0,
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield (reason, units) for the units that look dead and that no proof closes.

    `home` is the number of the graph that the weight is of.
    """
    looks = looks_dead(graphs[home], weight, leaves) & ~closed
    by_reason: dict[str, NDArray[np.bool_]] = {}
    for unit in np.flatnonzero(looks):
        reason = _reason(graphs, weight, leaves, ideal, int(unit), home)
        by_reason.setdefault(reason, np.zeros_like(looks))[unit] = True
    yield from by_reason.items()


def _zero_scales(graph: Graph, weight: Weight, leaves: Mapping[int, Leaf]) -> NDArray[np.bool_]:
    count = graph.nodes[weight.leaf].out_shapes[0][weight.axis]
    found = np.zeros(count, dtype=np.bool_)
    for consumer in weight.consumers:
        for user, position in graph.users[consumer.node]:
            node = graph.nodes[user]
            if node.name not in norm_limits.NORMS or position != 0 or node.inputs[1] is None:
                continue
            leaf = graph.nodes[node.inputs[1][0]].parameter
            if leaf is not None and node.in_shapes[1] == (count,):
                zero = leaves[id(graph.parameters[leaf])].now.zero
                found |= np.broadcast_to(zero.dense().reshape(-1), (count,))
    return found


def _reason(
    graphs: Sequence[Graph],
    weight: Weight,
    leaves: Mapping[int, Leaf],
    ideal: Proof,
    unit: int,
    home: int,
) -> str:
    graph = graphs[home]
    if len(graphs) > 1:
        parameter = parameter_of(graph, weight)
        closes = 0
        for other in graphs:
            alone = prove([other], {key: leaf.now for key, leaf in leaves.items()})
            own = [w for w in units.weights(other) if parameter_of(other, w) is parameter]
            closes += bool(own and units.closed_units(other, alone.passes[0], own[0])[unit])
        if closes:
            return reasons.differing(closes, len(graphs))

    def name(number: int) -> str:
        leaf = graph.nodes[number].parameter
        return leaves[id(graph.parameters[leaf])].name if leaf is not None else ""

    return reasons.obstacle(graph, ideal.passes[home], weight, unit, name)
