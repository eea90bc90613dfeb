"""Linear layers and convolutions whose channels might be closed within limits."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ormas_core.certificates import leaves, sum_limits
from ormas_core.certificates.graph import Graph, Node
from ormas_core.certificates.norm_limits import LEAST
from ormas_core.certificates.optimizers import Refused, Slot
from ormas_core.certificates.ownership import Owner
from ormas_core.certificates.rules import RULES
from ormas_core.certificates.sum_limits import LEAST_INPUT, SUMS, Sizes, SumBound

_CASTS = frozenset({"ToCopyBackward0"})
_VIEWS = frozenset(
    {
        "ViewBackward0",
        "UnsafeViewBackward0",
        "ReshapeAliasBackward0",
        "TransposeBackward0",
        "PermuteBackward0",
        "UnsqueezeBackward0",
        "SqueezeBackward1",
        "SqueezeBackward2",
        "ToCopyBackward0",
        "CloneBackward0",
    }
)
_SAMPLE = 64
_DRIFT_ROOM = 1024.0
"""A bias that decays stays this many times above what is left of the momentum."""


def gated_sums(graph: Graph) -> tuple[int, ...]:
    """Return the sums with a bias that a gate follows, through views and casts only."""
    return tuple(
        number for number, node in enumerate(graph.nodes) if _covers(node) and _gated(graph, number)
    )


def _covers(node: Node) -> bool:
    place = SUMS.get(node.name)
    if place is None or node.dtype not in sum_limits.ROUNDOFF or len(node.out_shapes[0]) < 2:  # noqa: PLR2004
        return False
    if len(node.inputs) <= max(place.bias, place.weight) or node.inputs[place.bias] is None:
        return False
    if node.name == "ConvolutionBackward0":
        return node.attrs.get("transposed") is False
    return node.attrs.get("alpha") == 1 and node.attrs.get("beta") == 1


def _gated(graph: Graph, number: int) -> bool:
    for user, _ in graph.users[number]:
        name = graph.nodes[user].name
        if (name in RULES and RULES[name].gate) or (name in _VIEWS and _gated(graph, user)):
            return True
    return False


def sum_bound(graph: Graph, number: int, owners: Mapping[int, Owner]) -> SumBound | None:
    """Return the limits of one gated sum, or None where no channel is closed within any."""
    node = graph.nodes[number]
    place = SUMS[node.name]
    weight, bias = (_leaf(graph, node, position) for position in (place.weight, place.bias))
    if weight is None or bias is None or bias[0].dim() != 1 or bias[1]:
        return None
    (tensor, turned), shift = weight, bias[0]
    axis = place.axis ^ turned if tensor.dim() == 2 else place.axis  # noqa: PLR2004
    held = [owners.get(id(one)) for one in (tensor, shift)]
    if any(owner is None or owner.slot is None or owner.refusal for owner in held):
        return None
    slots = [owner.slot for owner in held if owner is not None and owner.slot is not None]
    sizes = _sizes(tensor, axis, shift, slots)
    if sizes is None:
        return None
    input_max = sum_limits.bound_of(node, sizes)
    owner = owners[id(tensor)]
    alive = np.zeros(len(input_max), np.bool_)
    bound = SumBound(node, owner.layer, id(tensor), axis, sizes, input_max, alive)
    return bound if bound.closes.any() else None


def _leaf(graph: Graph, node: Node, position: int) -> tuple[Tensor, bool] | None:
    """Return the parameter behind an operand and whether it is transposed on the way."""
    turned, edge = False, node.inputs[position]
    while edge is not None:
        producer = graph.nodes[edge[0]]
        if producer.parameter is not None:
            return graph.parameters[producer.parameter], turned
        known = producer.name in _CASTS or producer.name == "TBackward0"
        if not known or producer.dtype not in sum_limits.ROUNDOFF:
            return None
        turned ^= producer.name == "TBackward0"
        edge = producer.inputs[0]
    return None


def _sizes(weight: Tensor, axis: int, bias: Tensor, slots: list[Slot]) -> Sizes | None:
    """Return what weights and bias may reach, in the channels that a limit might close."""
    shift = leaves.numbers(bias)
    channels = np.flatnonzero(shift < -LEAST)
    # A few weights of each channel first: they settle it for most.
    for sample in (_SAMPLE, None):
        if channels.size:
            total = _sums(weight, axis, channels, sample)
            channels = channels[total * LEAST_INPUT < -shift[channels]]
    if not channels.size:
        return None
    index = torch.from_numpy(channels).to(weight.device)
    try:
        rests = (leaves.rest_of(weight, slots[0], index, axis), leaves.rest_of(bias, slots[1]))
    except Refused:
        return None
    others = [a for a in range(weight.dim()) if a != axis]
    stays = rests[0].keeps_sign.all(dim=others).cpu().numpy()
    drift = leaves.numbers(rests[0].drift.double().expand_as(rests[0].keeps_sign).sum(dim=others))
    # Decay keeps the ratio only where it acts on both alike, without a buffer in between.
    alike = slots[0].group is slots[1].group and weight.dtype == bias.dtype
    if rests[1].shrinks and (not alike or slots[0].group.get("momentum")):
        return None
    moved = np.broadcast_to(leaves.numbers(rests[1].drift), shift.shape)[channels]
    floor = _DRIFT_ROOM * float((drift + moved)[stays].max(initial=0.0)) if rests[1].shrinks else 0
    stays &= shift[channels] <= -floor
    total = np.where(stays, _sums(weight, axis, channels, None) + drift, np.inf)
    return Sizes(channels, total, shift[channels] + moved, rests[1].shrinks, floor)


def _sums(
    weight: Tensor, axis: int, channels: NDArray[np.intp], sample: int | None
) -> NDArray[np.float64]:
    index = torch.from_numpy(channels).to(weight.device)
    rows = weight.detach().transpose(0, axis)[:, :sample].index_select(0, index)
    return leaves.numbers(rows.flatten(1).double().abs().sum(dim=1))
