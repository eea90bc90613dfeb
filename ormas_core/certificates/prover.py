"""The fixpoint: which gradients are exactly zero for every input, now and for ever.

Theorem and proof: docs/concepts/certificates.md. Facts about parameters go up the graph, masks
"this gradient is exactly zero" come down; a fact about a parameter may be used again only where
its own gradient is masked. What stands still is proven.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from ormas_core.certificates import masks, signs
from ormas_core.certificates.graph import LEAF, Graph, Node
from ormas_core.certificates.masks import Mask
from ormas_core.certificates.rules import RULES
from ormas_core.certificates.rules.rule import Rule
from ormas_core.certificates.signs import Signs

_MOST_ROUNDS: Final = 50
_USABLE: Final[WeakKeyDictionary[Graph, list[Rule | None]]] = WeakKeyDictionary()
"""Graph -> the rule of each node. A graph never changes, and is proven more than once."""


class Extra(Protocol):
    """Further facts, which hold under conditions."""

    def narrow(self, closed: Mapping[int, Mask]) -> bool:
        """Give up what rests on parameters that may move; whether anything was given up."""

    def facts(self, node: Node, operands: Sequence[Signs]) -> Sequence[Signs] | None:
        """Return more facts about a node's outputs, or None."""


@dataclass(slots=True, eq=False)
class Pass:
    """Facts and masks of one graph after one round.

    Attributes:
        facts: for each node, the facts about each output.
        closed: for each node, the masks of each output.
    """

    facts: list[list[Signs]]
    closed: list[list[Mask]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Proof:
    """A set of facts that holds itself up.

    Attributes:
        facts: for each parameter id, the facts used, all of them masked.
        closed: for each parameter id, the elements whose gradient is exactly zero in every graph.
        passes: facts and masks of each graph in the last round.
        rounds: rounds until it stood still.
    """

    facts: Mapping[int, Signs]
    closed: Mapping[int, Mask]
    passes: tuple[Pass, ...]
    rounds: int


def prove(graphs: Sequence[Graph], start: Mapping[int, Signs], extra: Extra | None = None) -> Proof:
    """Find the greatest set of facts about parameters that holds itself up in all graphs.

    Args:
        graphs: the graphs of every loss in the window of one optimizer step.
        start: parameter id -> facts assumed at first.
        extra: conditional facts, see `Extra`.
    """
    facts = dict(start)
    for rounds in range(1, _MOST_ROUNDS + 1):
        passes = tuple(_run(graph, facts, extra) for graph in graphs)
        closed = _leaf_masks(graphs, passes)
        smaller = {}
        for key, held in facts.items():
            mask = closed.get(key)
            if mask is None or not held.known:
                smaller[key] = signs.unknown(held.shape)
            else:
                smaller[key] = held.map(partial(masks.meet, mask))
        narrowed = extra is not None and extra.narrow(closed)
        if not narrowed and all(smaller[key].same(held) for key, held in facts.items()):
            return Proof(facts, closed, passes, rounds)
        facts = smaller
    nothing = {key: signs.unknown(held.shape) for key, held in start.items()}
    passes = tuple(_run(graph, nothing, None) for graph in graphs)
    return Proof(nothing, _leaf_masks(graphs, passes), passes, _MOST_ROUNDS)


def rule_of(node: Node) -> Rule | None:
    """Return the rule that covers this node as it is, or None: then it is opaque."""
    rule = RULES.get(node.name)
    if rule is None or any(setting not in node.attrs for setting in rule.settings):
        return None
    sizes = (*node.in_shapes, *node.out_shapes)
    # At another size an empty tensor may hold something, so nothing is said of it.
    if any(0 in shape for shape in sizes):
        return None
    return rule


def consumed(graph: Graph, index: int) -> set[int]:
    """Return which outputs of a node are used, in the graph or by what backward starts from."""
    used = {output for number, output in graph.roots if number == index}
    for user, position in graph.users[index]:
        edge = graph.nodes[user].inputs[position]
        if edge is not None:
            used.add(edge[1])
    return used


def _run(graph: Graph, leaves: Mapping[int, Signs], extra: Extra | None) -> Pass:
    found = Pass([])
    usable = _USABLE.get(graph)
    if usable is None:
        usable = _USABLE[graph] = [_usable(graph, i) for i in range(len(graph.nodes))]
    for node, rule in zip(graph.nodes, usable, strict=True):
        found.facts.append(_forward(graph, node, rule, found.facts, leaves, extra))
    closed: list[list[Mask | None]] = [[None] * len(node.out_shapes) for node in graph.nodes]
    for number, output in graph.roots:
        closed[number][output] = masks.none(graph.nodes[number].out_shapes[output])
    for i in range(len(graph.nodes) - 1, -1, -1):
        node, rule = graph.nodes[i], usable[i]
        # An output that nothing uses gets no gradient.
        own = [
            masks.everything(shape) if mask is None else mask
            for mask, shape in zip(closed[i], node.out_shapes, strict=True)
        ]
        closed[i] = list(own)
        if node.name == LEAF:
            continue
        for edge, mask in zip(node.inputs, _backward(node, rule, found, own), strict=True):
            if edge is not None:
                held = closed[edge[0]][edge[1]]
                closed[edge[0]][edge[1]] = mask if held is None else masks.meet(held, mask)
    found.closed = [[m for m in row if m is not None] for row in closed]
    return found


def _usable(graph: Graph, index: int) -> Rule | None:
    rule = rule_of(graph.nodes[index])
    if rule is not None and any(output >= rule.outputs for output in consumed(graph, index)):
        return None
    return rule


def _operands(node: Node, facts: list[list[Signs]]) -> list[Signs]:
    return [
        signs.unknown(shape) if edge is None else facts[edge[0]][edge[1]]
        for edge, shape in zip(node.inputs, node.in_shapes, strict=True)
    ]


def _forward(
    graph: Graph,
    node: Node,
    rule: Rule | None,
    facts: list[list[Signs]],
    leaves: Mapping[int, Signs],
    extra: Extra | None,
) -> list[Signs]:
    if node.parameter is not None:
        held = leaves.get(id(graph.parameters[node.parameter]))
        return [signs.unknown(node.out_shapes[0]) if held is None else held]
    if rule is None:
        return [signs.unknown(shape) for shape in node.out_shapes]
    operands = _operands(node, facts)
    found = list(rule.forward(node, operands))
    more = extra.facts(node, operands) if extra is not None else None
    if more is not None:
        found = [_both(a, b) for a, b in zip(found, more, strict=True)]
    return found


def _both(a: Signs, b: Signs) -> Signs:
    return signs.facts(
        masks.join(a.zero, b.zero), masks.join(a.neg, b.neg), masks.join(a.pos, b.pos)
    )


def _backward(node: Node, rule: Rule | None, found: Pass, own: list[Mask]) -> Sequence[Mask]:
    if rule is None:
        return [masks.none(shape) for shape in node.in_shapes]
    return rule.backward(node, _operands(node, found.facts), own)


def _leaf_masks(graphs: Sequence[Graph], passes: Sequence[Pass]) -> dict[int, Mask]:
    """Return, per parameter, the elements masked in every graph; those not in all are left out."""
    total: dict[int, Mask] = {}
    for number, (graph, found) in enumerate(zip(graphs, passes, strict=True)):
        own: dict[int, Mask] = {}
        for node, row in zip(graph.nodes, found.closed, strict=True):
            if node.parameter is not None:
                key = id(graph.parameters[node.parameter])
                own[key] = masks.meet(own[key], row[0]) if key in own else row[0]
        if number == 0:
            total = own
        else:
            total = {k: masks.meet(total[k], mask) for k, mask in own.items() if k in total}
    return total
