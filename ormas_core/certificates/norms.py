"""Batch norms whose channels might be closed within limits."""

from collections.abc import Mapping

import numpy as np

from ormas_core.certificates import leaves, norm_limits
from ormas_core.certificates.graph import Graph, Node
from ormas_core.certificates.norm_limits import Affine, NormBound
from ormas_core.certificates.optimizers import Refused
from ormas_core.certificates.ownership import Owner


def norm_bound(graph: Graph, number: int, owners: Mapping[int, Owner]) -> NormBound | None:
    """Return the limits of one batch norm, or None where no channel is closed within any."""
    node = graph.nodes[number]
    affine = _affine(graph, node, owners)
    if affine is None:
        return None
    bound = norm_limits.bound_of(node, affine, _layer(graph, node, owners))
    return bound if bound.closes.any() else None


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
    shifts = leaves.numbers(shift)
    # Without this the optimizer would be asked about every norm of a healthy model.
    if not (shifts < 0).any():
        return None
    scales = np.abs(leaves.numbers(scale))
    if not ((shifts < 0) & (scales * _root(node) < -shifts)).any():
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
    return Affine(scale=scales + drift[0], shift=shifts + drift[1], shrinks=shrinks)


def _root(node: Node) -> float:
    root: float = np.sqrt(max(norm_limits.elements(node) - 1, 0))
    return root
