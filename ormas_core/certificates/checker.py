"""Checks a proof of a certificate, line by line, without the engine that wrote it.

Shares no code with the prover: its rules are written a second time, from what each operation
computes. It knows no graph and no model; it says whether the lines follow from each other and from
the facts about the graph that they state, such as shapes, settings and numbers of uses.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ormas_core.certificates import (
    check_elementwise,
    check_norms,
    check_pieces,
    check_products,
    check_reductions,
    check_shapes,
    check_sums,
)
from ormas_core.certificates.check_lines import Doubt, Facts, Line, Table, facts, need
from ormas_core.certificates.check_regions import Boxes, contains, covers
from ormas_core.certificates.check_wiring import LEAF, Wiring, well_formed
from ormas_core.claims import (
    ENGINE,
    CertificateClass,
    Claim,
    Condition,
    Fact,
    StepKind,
    TraceStep,
    UnitKind,
)

OPERATIONS: Final[Table] = {
    **check_elementwise.TABLE,
    **check_products.TABLE,
    **check_norms.TABLE,
    **check_reductions.TABLE,
    **check_shapes.TABLE,
    **check_pieces.TABLE,
}
"""torch's name of an operation -> what the checker knows of it."""

MARGINS: Final = {"m_max": 1.0, "x_max": 16.0, "input_max": 2.0}
"""Limit -> how many times below it what was measured stays."""
_MOVES: Final = ("TBackward0", "ToCopyBackward0")
"""Operations past which magnitudes stay: they move elements, or round them."""

_MOST_STEPS: Final = 4_000
_MOST_PREMISES: Final = 512
_MOST_FACTS: Final = 8
_MOST_PAIRS: Final = 100_000
"""Of facts about parameters and gradients that may carry them on; real proofs have some dozens."""
_COPIES: Final = ("ToCopyBackward0", "CloneBackward0", "AliasBackward0")
_VIEWS: Final = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0")


def check_trace(steps: Sequence[TraceStep]) -> str | None:
    """Say which line of a proof does not follow; None if all do.

    Every line follows from earlier ones, and every fact about a parameter is carried on: its
    gradient is proven zero in the same place. So if the facts hold now, and the optimizer moves
    nothing that has a zero gradient, they and the conclusions hold at every later step.
    """
    if not 0 < len(steps) <= _MOST_STEPS:
        return f"a proof has between 1 and {_MOST_STEPS} lines; this one has {len(steps)}"
    wiring = Wiring()
    for index, step in enumerate(steps):
        try:
            well_formed(step)
            wiring.add(index, step, steps)
            _follow(step, steps)
        except Doubt as doubt:
            return f"line {index}: {doubt}"
    try:
        wiring.complete()
        _carried_on(steps)
    except Doubt as doubt:
        return str(doubt)
    return None


def _follow(step: TraceStep, steps: Sequence[TraceStep]) -> None:
    """Doubt a line that does not follow from its premises."""
    if step.kind is StepKind.PARAMETER:
        return
    operation = OPERATIONS.get(step.op)
    if step.kind is StepKind.GRADIENT:
        small = operation is None or step.position < operation.outputs
        need(small, f"output {step.position} of {step.op} is not covered")
        for use in step.uses:
            fits = contains(steps[use.step].box, step.box)
            need(fits, f"line {use.step} is about another region")
        return
    if operation is None:
        raise Doubt(f"no rule for {step.op}")
    if step.fact is Fact.MAGNITUDE:
        need(step.op in _MOVES, f"{step.op} changes magnitudes")
    backward = step.kind is StepKind.BACKWARD
    need(backward or step.position < operation.outputs, f"output {step.position} is not covered")
    rule = operation.backward if backward else operation.value
    if step.kind is StepKind.LIMIT:
        rule = _limit(step).follows
    need(rule(_line(step, steps)), f"{step.op} does not give it from these premises")


class _Limit(NamedTuple):
    """What the checker knows of the limits of one operation.

    Attributes:
        follows: whether a `limit` line follows.
        values: the limits that its numbers allow, by name.
        measured: the operand whose parameter's module the limits are about.
    """

    follows: Callable[[Line], bool]
    values: Callable[[Line], Mapping[str, float]]
    measured: int


def _limit(step: TraceStep) -> _Limit:
    if step.op in check_sums.SUMS:
        return _Limit(
            check_sums.limited,
            lambda line: {"input_max": check_sums.limit_of(line)},
            check_sums.SUMS[step.op].weight,
        )
    need(step.op in check_norms.LIMITED, f"no limits are known for {step.op}")
    return _Limit(
        check_norms.limited,
        lambda line: dict(zip(("m_max", "x_max"), check_norms.limit_of(line), strict=True)),
        check_norms.SCALE,
    )


def _line(step: TraceStep, steps: Sequence[TraceStep]) -> Line:
    """Return a line with what its premises say."""
    need(len(step.uses) <= _MOST_PREMISES, "it has too many premises")
    stated: dict[int, dict[Fact, Boxes]] = {}
    closed: dict[int, Boxes] = {}
    for use in step.uses:
        premise = steps[use.step]
        if premise.fact is None:
            closed[use.position] = (*closed.get(use.position, ()), premise.box)
        else:
            own = stated.setdefault(use.position, {})
            own[premise.fact] = (*own.get(premise.fact, ()), premise.box)
            need(sum(map(len, own.values())) <= _MOST_FACTS, "it has too many premises")
    return Line(step, {number: _facts(own) for number, own in stated.items()}, closed)


def _facts(own: dict[Fact, Boxes]) -> Facts:
    kinds = (Fact.ZERO, Fact.NONPOSITIVE, Fact.NONNEGATIVE, Fact.MAGNITUDE)
    return facts(*(own.get(fact, ()) for fact in kinds))


def _carried_on(steps: Sequence[TraceStep]) -> None:
    """Doubt a fact about a parameter whose gradient is not proven zero in the same place."""
    held: dict[int, list[TraceStep]] = {}
    for step in steps:
        if step.kind is StepKind.GRADIENT and step.op == LEAF:
            held.setdefault(step.node, []).append(step)
    compared = 0
    for index, step in enumerate(steps):
        if step.kind is StepKind.PARAMETER:
            boxes = [gradient.box for gradient in held.get(step.node, ())]
            compared += len(boxes)
            need(compared <= _MOST_PAIRS, "too many lines are about the same parameters")
            fits = covers(boxes, step.box)
            need(fits, f"line {index}: the gradient of {step.name} is not proven zero there")


def check_limit(step: TraceStep, claim: Claim) -> str | None:
    """Say why the numbers of a `limit` line do not hold up, or the claim does not state them."""
    try:
        known = _limit(step)
        layer = _home(_parameter(step, known.measured, claim.trace))
        for name, limit in known.values(Line(step, {}, {})).items():
            stated = [c for c in claim.conditions if c.name == name and c.layer == layer]
            need(stated, f"the claim does not state {name} for {layer}")
            for condition in stated:
                _sane(condition, MARGINS[name])
                need(condition.value <= limit, f"{name} is larger in the claim than in the proof")
    except Doubt as doubt:
        return str(doubt)
    return None


def _parameter(step: TraceStep, position: int, steps: Sequence[TraceStep]) -> str:
    """Return the name of the parameter that an operand is, cast or turned."""
    while step.kind is not StepKind.PARAMETER:
        found = next((use.step for use in step.uses if use.position == position), None)
        if found is None:
            return ""
        step, position = steps[found], 0
    return step.name


def check_claim(claim: Claim, *, engines: Collection[int] = (ENGINE,)) -> str | None:
    """Say why a claim is not what its proof proves; None if it is, for its first unit.

    Args:
        claim: the claim with its trace.
        engines: versions of the engine whose traces this checker understands.
    """
    if claim.engine not in engines:
        return f"it was made by engine {claim.engine}, which this checker does not know"
    if not claim.units or not all(type(u) is int and u >= 0 for u in claim.units):
        return "it names no units"
    doubt = check_trace(claim.trace)
    if doubt is not None:
        return doubt
    limits = [step for step in claim.trace if step.kind is StepKind.LIMIT]
    if bool(limits) != (claim.cls is CertificateClass.BOUNDED):
        return f"a claim of class {claim.cls} has {len(limits)} lines with limits"
    for step in limits:
        doubt = check_limit(step, claim)
        if doubt is not None:
            return doubt
    try:
        _conditions(claim)
    except Doubt as found:
        return str(found)
    if not any(_concludes(claim, step) for step in claim.trace):
        return f"no line says that the gradient of unit {claim.units[0]} of {claim.layer} is zero"
    return None


def _conditions(claim: Claim) -> None:
    """Doubt a claim that does not state what its parameters' rest depends on."""
    if claim.cls is CertificateClass.CLOSED_NOW:
        return
    if not any(step.kind is StepKind.PARAMETER for step in claim.trace):
        return
    for name in ("lr_max", "decay_max"):
        stated = [condition for condition in claim.conditions if condition.name == name]
        need(stated, f"it rests on parameters and does not state {name}")
        for condition in stated:
            _sane(condition, 1.0)


def _sane(condition: Condition, margin: float) -> None:
    """Doubt a condition that is no number, or not met by what was seen."""
    value, seen = condition.value, condition.seen
    need(math.isfinite(value) and value >= 0, f"{condition.name} is {value}")
    met = seen is None or seen * margin <= value
    need(met, f"{condition.name} is {value}, and {seen} was seen")


def _home(name: str) -> str:
    """Return the module a parameter belongs to."""
    return name.rpartition(".")[0]


def _concludes(claim: Claim, step: TraceStep) -> bool:
    """Whether a line says that the first unit's own weights have a zero gradient."""
    if step.kind is not StepKind.GRADIENT or step.op != LEAF or len(step.shape) < 2:  # noqa: PLR2004
        return False
    if claim.layer not in (_home(step.name), step.name):
        return False
    axes = set(_output_axes(claim.trace, step, 0))
    if len(axes) != 1 or None in axes:
        return False
    axis = axes.pop()
    if any(span[:2] != (0, span[2]) for own, span in enumerate(step.box) if own != axis):
        return False
    start, stop, period = step.box[axis or 0]
    if stop != start + 1 or period != step.shape[axis or 0]:
        return False
    return start == claim.units[0] or (
        claim.kind is UnitKind.HEAD and claim.units[0] in _heads(claim.trace, step, start)
    )


def _output_axes(
    steps: Sequence[TraceStep], gradient: TraceStep, turns: int
) -> Iterator[int | None]:
    """Yield, for each use of a weight, its axis of output features; None where there is none."""
    for use in gradient.uses:
        user = steps[use.step]
        last = len(gradient.shape) - 1
        if user.op in _COPIES or user.op == "TBackward0":
            turned = turns + (user.op == "TBackward0")
            after = [steps[u.step] for u in user.uses if u.role == "output"]
            if not after or turned > len(steps):
                yield None
            for step in after:
                yield from _output_axes(steps, step, turned)
        elif user.op == "ConvolutionBackward0" and user.position == 1:
            yield 0 if (user.settings or {}).get("transposed") == "False" else None
        elif user.op in ("MmBackward0", "AddmmBackward0"):
            right = user.position == (1 if user.op == "MmBackward0" else 2)
            yield (last if right else 0) if turns % 2 == 0 else (0 if right else last)
        else:
            yield None


def _heads(steps: Sequence[TraceStep], gradient: TraceStep, row: int) -> Iterator[int]:
    """Yield the heads a row of a weight may belong to: features are viewed as (heads, size)."""
    for step in steps:
        if step.op in _VIEWS and step.kind is StepKind.BACKWARD:
            whole, split = step.operands[0], step.outputs[0]
            if len(split) > 1 and whole[-1:] == (split[-1] * split[-2],):
                yield row // split[-1] % split[-2]
