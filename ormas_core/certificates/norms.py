"""Batch norms whose channels might be closed within limits, and what those limits are."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ormas_core.certificates import leaves, limits
from ormas_core.certificates.graph import Graph, Node
from ormas_core.certificates.limits import Affine, Limits
from ormas_core.certificates.optimizers import Refused
from ormas_core.certificates.ownership import Owner
from ormas_core.claims import Condition, StepKind, TraceStep


def find_limits(graphs: Sequence[Graph], owners: Mapping[int, Owner]) -> Limits | None:
    """Return the limits of every batch norm with a channel that they might close."""
    norms = {}
    for graph in graphs:
        for node in graph.nodes:
            if limits.covers(node) and (affine := _affine(graph, node, owners)) is not None:
                norms[id(node)] = (node, affine)
    found = Limits(norms)
    closes = any((limit.m_max > 0).any() for limit in found.found.values())
    return found if closes else None


def conditions(
    graph: Graph, trace: Sequence[TraceStep], found: Limits, owners: Mapping[int, Owner]
) -> Iterator[Condition]:
    """Yield the limits that a trace rests on: the tightest of all the channels they close."""
    for step in trace:
        if step.kind is not StepKind.LIMIT:
            continue
        node = graph.nodes[step.node]
        limit = found.found[id(node)]
        closed = limit.m_max > 0
        layer = _layer(graph, node, owners)
        m_max, x_max = float(limit.m_max[closed].min()), float(limit.x_max[closed].min())
        seen = float(limits.elements(node))
        yield Condition(name="m_max", value=m_max, seen=seen, layer=layer)
        yield Condition(name="x_max", value=x_max, layer=layer)


def _layer(graph: Graph, node: Node, owners: Mapping[int, Owner]) -> str:
    edge = node.inputs[1]
    leaf = graph.nodes[edge[0]].parameter if edge is not None else None
    owner = owners.get(id(graph.parameters[leaf])) if leaf is not None else None
    return owner.layer if owner is not None else ""


def _affine(graph: Graph, node: Node, owners: Mapping[int, Owner]) -> Affine | None:
    """Return a norm's scale and shift with what the optimizer may still do to them."""
    pair = []
    for edge in node.inputs[1:3]:
        leaf = graph.nodes[edge[0]].parameter if edge is not None else None
        owner = owners.get(id(graph.parameters[leaf])) if leaf is not None else None
        if leaf is None or owner is None or owner.slot is None or owner.refusal:
            return None
        pair.append((graph.parameters[leaf], owner.slot))
    (scale, first), (shift, second) = pair
    sizes = leaves.numbers(scale), leaves.numbers(shift)
    # Without this the optimizer would be asked about every norm of a healthy model.
    if not ((sizes[1] < 0) & (np.abs(sizes[0]) * _root(node) < -sizes[1])).any():
        return None
    try:
        a, b = leaves.rest_of(scale, first), leaves.rest_of(shift, second)
    except Refused:
        return None
    shrinks = a.shrinks or b.shrinks
    # Decay keeps the ratio of both only where it acts on both alike, without a buffer in between.
    alike = first.group is second.group and scale.dtype == shift.dtype
    if shrinks and (not alike or first.group.get("momentum")):
        return None
    drift = leaves.numbers(a.drift), leaves.numbers(b.drift)
    return Affine(scale=np.abs(sizes[0]) + drift[0], shift=sizes[1] + drift[1], shrinks=shrinks)


def _root(node: Node) -> float:
    root: float = np.sqrt(max(limits.elements(node) - 1, 0))
    return root
