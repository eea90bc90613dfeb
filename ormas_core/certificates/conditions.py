"""The conditions that a claim states, from what its proof rests on."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ormas_core.certificates.graph import Graph
from ormas_core.certificates.limits import Bound, Limits
from ormas_core.certificates.optimizers import Slot
from ormas_core.certificates.ownership import Owner
from ormas_core.claims import Condition, StepKind, TraceStep


def decay(slot: Slot) -> float:
    """Return the decay that an optimizer applies to a parameter."""
    return float(slot.group.get("weight_decay", 0.0) or 0.0)


def of_optimizers(slots: Mapping[int, Slot], owners: Mapping[int, Owner]) -> Iterator[Condition]:
    """Yield the limits of learning rate and decay of all parameters that a proof rests on.

    Of all, since the units of one claim may rest on different ones. Parameter groups that differ
    are stated apart, by a layer of each.
    """
    groups: dict[tuple[float, float, float], str] = {}
    for key, slot in slots.items():
        lr = abs(float(slot.group.get("lr", 0.0)))
        groups.setdefault((slot.lr_max, lr, decay(slot)), owners[key].layer)
    for (lr_max, lr, most), layer in groups.items():
        about = layer if len(groups) > 1 else ""
        yield Condition(name="lr_max", value=lr_max, seen=lr, layer=about)
        yield Condition(name="decay_max", value=most, seen=most, layer=about)


def of_limits(
    graph: Graph,
    trace: Sequence[TraceStep],
    limits: Limits,
    own: Bound | None,
    units: NDArray[np.bool_],
) -> Iterator[Condition]:
    """Yield the limits that a trace rests on.

    Each unit of a claim rests on its own channel of its own sum; of any other operation the units
    may rest on different channels, and the tightest limits of all are stated.
    """
    for node in dict.fromkeys(step.node for step in trace if step.kind is StepKind.LIMIT):
        bound = limits.bounds[id(graph.nodes[node])]
        channels = bound.closes & units if bound is own else bound.closes
        for name, value, seen in bound.limits(channels):
            yield Condition(name=name, value=value, seen=seen, layer=bound.layer)


def by_size(bound: Bound, units: NDArray[np.bool_]) -> Iterator[NDArray[np.bool_]]:
    """Split units into those with limits of one order, so that none costs the others theirs."""
    closed = units & bound.closes
    yield units & ~closed
    orders = bound.orders()
    for order in np.unique(orders[closed]):
        yield closed & (orders == order)
