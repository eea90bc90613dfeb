"""Turns a fixpoint into a proof that can be read: line by line, for one unit.

Every rule is asked again, with ever fewer and smaller premises, until nothing can be left out. So
the trace contains just what the conclusion needs, and needs no second set of rules to be found.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ormas_core.certificates import masks, signs
from ormas_core.certificates.boxes import holds, inside
from ormas_core.certificates.graph import LEAF, Graph, Node
from ormas_core.certificates.limits import MAGNITUDE, Limits
from ormas_core.certificates.masks import Mask
from ormas_core.certificates.premises import Slot, Unexplainable, least
from ormas_core.certificates.prover import Pass, rule_of
from ormas_core.certificates.signs import Signs
from ormas_core.claims import Box, Fact, StepKind, TraceStep, Use

_SIGNS = {"zero": Fact.ZERO, "neg": Fact.NONPOSITIVE, "pos": Fact.NONNEGATIVE}
_FACTS = {**_SIGNS, MAGNITUDE: Fact.MAGNITUDE}
MOST_STEPS = 2_000


@dataclass(slots=True)
class Explanation:
    """A proof under construction.

    Attributes:
        graph: the graph it is about.
        found: its facts and masks.
        names: names of the parameters, by id.
        limits: conditional facts that the fixpoint was given.
        steps: the lines so far.
        closings: numbers of the nodes at which a gradient stops for reasons of their own.
    """

    graph: Graph
    found: Pass
    names: Mapping[int, str]
    limits: Limits | None
    steps: list[TraceStep]
    closings: list[tuple[int, int]]
    _known: dict[tuple[object, ...], int]
    _open: list[tuple[int, Box]]

    @classmethod
    def of(
        cls, graph: Graph, found: Pass, names: Mapping[int, str], limits: Limits | None = None
    ) -> "Explanation":
        """Begin a proof."""
        return cls(graph, found, names, limits, [], [], {}, [])

    def close(self, leaf: int, box: Box) -> tuple[TraceStep, ...]:
        """Prove that the gradient of a leaf is zero in `box`, and everything that this assumes.

        Raises:
            Unexplainable: a line could not be found, or there are too many.
        """
        self.gradient(leaf, 0, box)
        while self._open:
            node, assumed = self._open.pop()
            self.gradient(node, 0, assumed)
        return tuple(self.steps)

    def gradient(self, node: int, output: int, box: Box) -> int:
        """Prove that the gradient of an output, summed over its uses, is zero in `box`."""
        key = ("gradient", node, output, box)
        if key in self._known:
            return self._known[key]
        if (node, output) in self.graph.roots:
            raise Unexplainable("what backward starts from has a gradient")
        users = [
            (user, position)
            for user, position in self.graph.users[node]
            if self.graph.nodes[user].inputs[position] == (node, output)
        ]
        uses = tuple(
            Use(step=self.backward(user, position, box), role="user", position=number)
            for number, (user, position) in enumerate(users)
        )
        own = self.graph.nodes[node]
        return self._add(
            key,
            node,
            kind=StepKind.GRADIENT,
            position=output,
            shape=own.out_shapes[output],
            box=box,
            users=len(users),
            uses=uses,
        )

    def backward(self, node: int, operand: int, box: Box) -> int:
        """Prove that the gradient a node sends to one operand is zero in `box`."""
        key = ("backward", node, operand, box)
        if key in self._known:
            return self._known[key]
        own = self.graph.nodes[node]
        rule = rule_of(own)
        if rule is None:
            raise Unexplainable(f"{own.name} is opaque")

        operands_of = _Operands(own)

        def proves(premises: Mapping[Slot, Mask]) -> bool:
            operands = operands_of(premises)
            closed = [
                premises.get(("closed", out), masks.none(shape))
                for out, shape in enumerate(own.out_shapes)
            ]
            return holds(rule.backward(own, operands, closed)[operand], box)

        premises = self._premises(own)
        for out, mask in enumerate(self.found.closed[node]):
            premises[("closed", out)] = mask
        needed = least(
            premises, proves, self._order(own, backward=True), (own.in_shapes[operand], box)
        )
        if not any(slot[0] == "closed" for slot in needed):
            self.closings.append((node, operand))
        uses = tuple(self._use(node, slot, box_) for slot, box_ in needed.items())
        return self._add(
            key,
            node,
            kind=StepKind.BACKWARD,
            position=operand,
            shape=own.in_shapes[operand],
            box=box,
            uses=uses,
        )

    def value(self, node: int, output: int, fact: str, box: Box) -> int:
        """Prove a fact about an output in `box`."""
        key = ("value", node, output, fact, box)
        if key in self._known:
            return self._known[key]
        own = self.graph.nodes[node]
        if own.name == LEAF:
            self._open.append((node, box))
            return self._add(
                key,
                node,
                kind=StepKind.PARAMETER,
                fact=_FACTS[fact],
                shape=own.out_shapes[0],
                box=box,
            )
        if fact == MAGNITUDE:
            return self._magnitude(key, node, box)
        rule = rule_of(own)
        if rule is None:
            raise Unexplainable(f"{own.name} is opaque")

        operands_of = _Operands(own)

        def proves(premises: Mapping[Slot, Mask]) -> bool:
            operands = operands_of(premises)
            return holds(getattr(rule.forward(own, operands)[output], fact), box)

        premises = self._premises(own)
        if not proves(premises):
            return self._limit(key, node, output, fact, box)
        needed = least(
            premises, proves, self._order(own, backward=False), (own.out_shapes[output], box)
        )
        uses = tuple(self._use(node, slot, box_) for slot, box_ in needed.items())
        return self._add(
            key,
            node,
            kind=StepKind.VALUE,
            position=output,
            fact=_FACTS[fact],
            shape=own.out_shapes[output],
            box=box,
            uses=uses,
        )

    def _limit(self, key: tuple[object, ...], node: int, output: int, fact: str, box: Box) -> int:
        """State a fact that holds under limits; the parameters it measures become premises."""
        own = self.graph.nodes[node]
        more = self.limits.facts(own, self._facts(own)) if self.limits is not None else None
        if self.limits is None or more is None or not holds(getattr(more[output], fact), box):
            raise Unexplainable(f"{own.name} gives no fact {fact} there")
        bound = self.limits.bounds[id(own)]
        uses = []
        for position, facts, region in bound.premises(box):
            edge = own.inputs[position]
            if edge is None:
                raise Unexplainable(f"{own.name} measures a constant")
            held = self.found.facts[edge[0]][edge[1]]
            known = (name for name in facts[:-1] if holds(getattr(held, name), region))
            step = self.value(*edge, next(known, facts[-1]), region)
            uses.append(Use(step=step, role="operand", position=position))
        return self._add(
            key,
            node,
            kind=StepKind.LIMIT,
            position=output,
            fact=_FACTS[fact],
            shape=own.out_shapes[output],
            box=box,
            settings=bound.settings(inside(box[1], own.out_shapes[output][1])),
            uses=tuple(uses),
        )

    def _magnitude(self, key: tuple[object, ...], node: int, box: Box) -> int:
        """State that absolute values stay within the numbers of a limit, cast or turned."""
        own = self.graph.nodes[node]
        edge = own.inputs[0]
        if edge is None:
            raise Unexplainable(f"{own.name} measures a constant")
        before = tuple(reversed(box)) if own.name == "TBackward0" else box
        step = self.value(*edge, MAGNITUDE, before)
        return self._add(
            key,
            node,
            kind=StepKind.VALUE,
            fact=Fact.MAGNITUDE,
            shape=own.out_shapes[0],
            box=box,
            uses=(Use(step=step, role="operand", position=0),),
        )

    def _facts(self, node: Node) -> list[Signs]:
        return [
            signs.unknown(shape) if edge is None else self.found.facts[edge[0]][edge[1]]
            for edge, shape in zip(node.inputs, node.in_shapes, strict=True)
        ]

    def _premises(self, node: Node) -> dict[Slot, Mask]:
        return {
            (fact, k): getattr(held, fact)
            for k, held in enumerate(self._facts(node))
            for fact in _SIGNS
            if getattr(held, fact).parts
        }

    def _order(self, node: Node, *, backward: bool) -> list[Slot]:
        """Return the slots in the order in which doing without them is tried."""
        outs = [("closed", out) for out in range(len(node.out_shapes))] if backward else []
        return outs + [
            (fact, k) for fact in ("pos", "neg", "zero") for k in range(len(node.inputs))
        ]

    def _use(self, node: int, slot: Slot, box: Box) -> Use:
        kind, number = slot
        if kind == "closed":
            return Use(step=self.gradient(node, number, box), role="output", position=number)
        edge = self.graph.nodes[node].inputs[number]
        if edge is None:
            raise Unexplainable("a constant has no facts")
        return Use(step=self.value(*edge, kind, box), role="operand", position=number)

    def _add(self, key: tuple[object, ...], node: int, **about: Any) -> int:
        """Add a line about a node and return its number."""
        if len(self.steps) >= MOST_STEPS:
            raise Unexplainable(f"the proof has more than {MOST_STEPS} lines")
        own = self.graph.nodes[node]
        name = ""
        if own.parameter is not None:
            name = self.names.get(id(self.graph.parameters[own.parameter]), "")
        settings = {setting: str(value) for setting, value in own.attrs.items()}
        line: dict[str, Any] = {
            "op": own.name if own.parameter is None else "parameter",
            "name": name,
            "operands": own.in_shapes,
            "outputs": own.out_shapes,
            **about,
            "settings": {**settings, **about.get("settings", {})},
        }
        self.steps.append(TraceStep(node=node, **line))
        self._known[key] = len(self.steps) - 1
        return len(self.steps) - 1


class _Operands:
    """What premises say of a node's operands; from one try to the next, few of them change."""

    def __init__(self, node: Node) -> None:
        self._shapes = node.in_shapes
        self._last: list[tuple[tuple[Mask, Mask, Mask], Signs]] = []

    def __call__(self, premises: Mapping[Slot, Mask]) -> list[Signs]:
        """Return the facts about each operand."""
        last, self._last = self._last, []
        for operand, shape in enumerate(self._shapes):
            nothing = masks.none(shape)
            zero, neg, pos = (
                premises.get((fact, operand), nothing) for fact in ("zero", "neg", "pos")
            )
            held = last[operand] if last else None
            if held is None or any(
                a is not b for a, b in zip(held[0], (zero, neg, pos), strict=True)
            ):
                held = (zero, neg, pos), signs.facts(zero, neg, pos)
            self._last.append(held)
        return [found for _, found in self._last]
