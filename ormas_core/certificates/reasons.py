"""Why a unit that looks dead could not be proven so: the first obstacle on the way to the loss."""

from collections.abc import Callable, Iterator
from typing import Final

from ormas_core.certificates.graph import Edge, Graph, Node
from ormas_core.certificates.norm_limits import NORMS
from ormas_core.certificates.prover import Pass, rule_of
from ormas_core.certificates.rules import RULES, arithmetic, elementwise, reductions, shapes
from ormas_core.certificates.units import Weight, readers

OPEN: Final = "nothing on the way to the loss closes it"
_LOSSES: Final = frozenset(
    {
        "NllLossBackward0",
        "NllLoss2DBackward0",
        "MseLossBackward0",
        "L1LossBackward0",
        "SmoothL1LossBackward0",
        "HuberLossBackward0",
        "BinaryCrossEntropyBackward0",
        "BinaryCrossEntropyWithLogitsBackward0",
        "KlDivBackward0",
    }
)
"""Operations that end a graph: nothing can close there, so they need no rule."""
_FEATUREWISE: Final = frozenset({*elementwise.RULES, *arithmetic.RULES, *shapes.RULES, *NORMS})
"""Operations that keep the features of a tensor apart."""

Name = Callable[[int], str]


def obstacle(graph: Graph, found: Pass, weight: Weight, unit: int, name: Name) -> str:
    """Return why the gradient of one output feature is not zero for every input.

    Args:
        graph: the graph.
        found: facts and masks of the last round.
        weight: the weight.
        unit: which of its output features.
        name: number of a leaf node -> the parameter's name.
    """
    for reader in readers(graph, weight.leaf):
        if _opaque(graph.nodes[reader]):
            return _opacity(graph.nodes[reader])
    if len(weight.consumers) > 1:
        used = " and ".join(_operations(graph, graph.users[c.node]) for c in weight.consumers)
        return f"it is used {len(weight.consumers)} times, before {used}"
    count = graph.nodes[weight.leaf].out_shapes[0][weight.axis]
    for number in _way(graph, weight.consumers[0].node):
        node = graph.nodes[number]
        if _opaque(node):
            return _opacity(node)
        if len(_ends(graph, number)) > 1:
            return f"its output is also used by {_others(graph, number)}"
        if node.name in NORMS and node.out_shapes[0][1] == count:
            reason = _norm(graph, number, unit, name)
            if reason:
                return reason
    return OPEN


def _opaque(node: Node) -> bool:
    return rule_of(node) is None and node.parameter is None and node.name not in _LOSSES


def _opacity(node: Node) -> str:
    if node.name in RULES:
        return f"the operation {node.name} has a size or setting that its rule does not cover"
    return f"the operation {node.name} is opaque: it is not in the rule table"


def _way(graph: Graph, start: int) -> Iterator[int]:
    """Yield the operations after which the unit is still a feature of its own, in graph order.

    It begins with the one that uses the weight, and ends at those that close or mix features,
    which are yielded too.
    """
    reached = {start}
    for number in range(start, len(graph.nodes)):
        if number in reached:
            yield number
            if number == start or _carries(graph.nodes[number]):
                reached.update(user for user, _ in graph.users[number])


def _carries(node: Node) -> bool:
    return node.name in _FEATUREWISE and not RULES[node.name].gate


def _ends(graph: Graph, start: int) -> set[int]:
    """Return the operations at which the ways from an output end: gates and products.

    It is one for the parts of an activation or of a normalisation that is written out.
    """
    users = {user for user, _ in graph.users[start]}
    if len(users) < 2:  # noqa: PLR2004
        return users
    ends, seen, queue = set(), set(users), list(users)
    for number in queue:
        node = graph.nodes[number]
        onward = {user for user, _ in graph.users[number]}
        if not onward or not (_carries(node) or node.name in reductions.RULES):
            ends.add(number)
            continue
        queue.extend(onward - seen)
        seen |= onward
    return ends


def _others(graph: Graph, number: int) -> str:
    """Name the uses of an output beside the gate that might close it."""
    return _operations(graph, graph.users[number], but_gates=True) or _operations(
        graph, graph.users[number]
    )


def _operations(graph: Graph, users: tuple[Edge, ...], *, but_gates: bool = False) -> str:
    names = {graph.nodes[user].name for user, _ in users}
    return ", ".join(sorted(n for n in names if not (but_gates and n in RULES and RULES[n].gate)))


def _norm(graph: Graph, number: int, unit: int, name: Name) -> str:
    """Say what of a batch norm keeps the unit from being a closed constant."""
    node = graph.nodes[number]
    if not node.attrs.get("training"):
        return "batch norm runs in evaluation mode, so its output is of unknown value"
    scale, shift = (node.inputs[k] if len(node.inputs) > k else None for k in (1, 2))
    constant = scale is not None and _is_parameter(graph, scale) and not _value(graph, scale, unit)
    bias = _added_before(graph, node)
    if not constant and bias is not None and _value(graph, bias, unit):
        return f"{name(bias[0])} is not zero: batch norm cancels a constant only up to rounding"
    if not any(_is_gate(graph.nodes[user]) for user, _ in graph.users[number]):
        return ""
    if shift is None:
        return "the norm's shift is frozen or absent, so it is of unknown value"
    if _is_parameter(graph, shift) and _value(graph, shift, unit) > 0:
        return f"{name(shift[0])} is positive there, so the gate after it is open: it may recover"
    return ""


def _is_gate(node: Node) -> bool:
    return node.name in RULES and RULES[node.name].gate


def _added_before(graph: Graph, norm: Node) -> Edge | None:
    """Return the parameter that the operation before a norm adds to each feature, if it does."""
    edge = norm.inputs[0]
    while edge is not None and graph.nodes[edge[0]].name in shapes.RULES:
        edge = graph.nodes[edge[0]].inputs[0]
    if edge is None:
        return None
    producer = graph.nodes[edge[0]]
    position = {"ConvolutionBackward0": 2, "AddmmBackward0": 0}.get(producer.name)
    if position is None or len(producer.inputs) <= position:
        return None
    bias, features = producer.inputs[position], norm.out_shapes[0][1:2]
    added = bias is not None and producer.in_shapes[position] == features
    return bias if added and bias is not None and _is_parameter(graph, bias) else None


def _is_parameter(graph: Graph, edge: Edge) -> bool:
    return graph.nodes[edge[0]].parameter is not None


def _value(graph: Graph, edge: Edge, unit: int) -> float:
    number = graph.nodes[edge[0]].parameter
    assert number is not None  # noqa: S101 - a leaf
    return float(graph.parameters[number].detach()[unit])


def differing(count: int, total: int) -> str:
    """Return the reason for a unit that only some graphs of a step close."""
    return f"the graphs of one step differ: {count} of {total} close it"
