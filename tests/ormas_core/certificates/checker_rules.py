"""What the engine's own rules derive, for the tests of the checker. No test here."""

import ast
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from ormas_core.certificates import boxes, masks, signs
from ormas_core.certificates.graph import Node
from ormas_core.certificates.masks import Mask
from ormas_core.certificates.prover import rule_of
from ormas_core.claims import Box, Fact, StepKind, TraceStep

FACTS = {Fact.ZERO: "zero", Fact.NONPOSITIVE: "neg", Fact.NONNEGATIVE: "pos"}

Known = Mapping[int, Sequence[tuple[Fact, Box]]]
"""Operand -> what is known of it."""
Closed = Mapping[int, Sequence[Box]]
"""Output -> where its gradient is zero."""


def derived(step: TraceStep, steps: Sequence[TraceStep]) -> bool:
    """Whether the engine's rules derive a line from the premises it cites."""
    known: dict[int, list[tuple[Fact, Box]]] = {}
    closed: dict[int, list[Box]] = {}
    for use in step.uses:
        premise = steps[use.step]
        if premise.fact is None:
            closed.setdefault(use.position, []).append(premise.box)
        else:
            known.setdefault(use.position, []).append((premise.fact, premise.box))
    if step.kind is StepKind.LIMIT:
        return _larger_sum(step) if "weight" in (step.settings or {}) else _larger_limit(step)
    if step.fact is Fact.MAGNITUDE:
        return _moved_magnitude(step, known)
    return derives(step, known, closed)


def derives(step: TraceStep, known: Known, closed: Closed) -> bool:
    """Whether the engine's rules derive a line from these premises."""
    edges = tuple((0, 0) if number in known else None for number in range(len(step.operands)))
    if step.kind is StepKind.BACKWARD:
        edges = (*edges[: step.position], (0, 0), *edges[step.position + 1 :])
    settings = {name: _value(text) for name, text in (step.settings or {}).items()}
    node = Node(step.op, edges, step.operands, step.outputs, "float32", "cpu", settings, None)
    rule = rule_of(node)
    if rule is None or step.shape != _subject(step):
        return False
    operands = [
        signs.facts(*(_mask(shape, known.get(k, ()), fact) for fact in FACTS))
        for k, shape in enumerate(step.operands)
    ]
    if step.fact is not None:
        found = rule.forward(node, operands)[step.position]
        return boxes.holds(getattr(found, FACTS[step.fact]), step.box)
    outs = [
        masks.join(masks.none(shape), *(boxes.boxed(shape, box) for box in closed.get(j, ())))
        for j, shape in enumerate(step.outputs)
    ]
    return boxes.holds(rule.backward(node, operands, outs)[step.position], step.box)


def _subject(step: TraceStep) -> tuple[int, ...] | None:
    shapes = step.operands if step.kind is StepKind.BACKWARD else step.outputs
    return shapes[step.position] if step.position < len(shapes) else None


def _mask(shape: tuple[int, ...], known: Sequence[tuple[Fact, Box]], fact: Fact) -> Mask:
    own = (box for other, box in known if other is fact)
    return masks.join(masks.none(shape), *(boxes.boxed(shape, box) for box in own))


def _larger_limit(step: TraceStep) -> bool:
    """Whether a limit's numbers leave the room they should, in exact arithmetic."""
    numbers = {key: text for key, text in (step.settings or {}).items() if key != "training"}
    s = {key: Fraction(text) for key, text in numbers.items()}
    square = s["m_max"] - 1
    root = Fraction(float(square) ** 0.5).limit_denominator(10**9)
    room = -s["shift"] / s["decay_margin"] - s["scale"] * root * (1 + Fraction(1, 64))
    error = 8 * s["m_factor"] * s["roundoff"] * s["scale"] * s["x_max"]
    return room > 0 and error <= room * Fraction(float(s["eps"]) ** 0.5) * (1 + Fraction(1, 10**6))


def _larger_sum(step: TraceStep) -> bool:
    """Whether the numbers of a limit on a sum leave the room they should, in exact arithmetic."""
    names = ("weight", "shift", "input_max", "roundoff", "decay_margin")
    weight, shift, most, roundoff, margin = (
        Fraction((step.settings or {})[name]) for name in names
    )
    conv = step.op == "ConvolutionBackward0"
    shape = step.operands[1 if conv else 2]
    terms = Fraction(math.prod(shape), shape[0 if conv else 1])
    error = (512 if conv else 2) * (terms + 2) * roundoff
    return most * weight * Fraction(33, 32) * (1 + error) <= -shift / margin * (1 - error)


def _moved_magnitude(step: TraceStep, known: Known) -> bool:
    """Whether an operation moves, or rounds, the elements of which a magnitude is known."""
    turned = step.op == "TBackward0"
    if step.position or not (turned or step.op == "ToCopyBackward0"):
        return False
    shape = step.operands[0][::-1] if turned else step.operands[0]
    own = [box[::-1] if turned else box for fact, box in known[0] if fact is Fact.MAGNITUDE]
    mask = masks.join(masks.none(shape), *(boxes.boxed(shape, box) for box in own))
    return shape == step.shape and boxes.holds(mask, step.box)


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return float(text) if text in ("inf", "-inf") else text
