"""Single changes to a proof, for the tests of the checker. No test here."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from ormas_core.claims import Box, Claim, Fact, StepKind, TraceStep, Use

Change = tuple[str, int, tuple[TraceStep, ...]]
"""(what was changed, the line, the proof with the change)."""

STATES = (StepKind.PARAMETER, StepKind.VALUE, StepKind.LIMIT)


def changes(claim: Claim, line: int, random: Random) -> Iterator[Change]:
    """Yield the proof of a claim with each of many single changes to one line."""
    steps = claim.trace
    step = steps[line]
    for what, changed in _changed(step):
        yield what, line, (*steps[:line], changed, *steps[line + 1 :])
    for what, uses in _changed_uses(steps, line, random):
        yield what, line, (*steps[:line], replace(step, uses=uses), *steps[line + 1 :])
    yield "line deleted", line, without(steps, line)


def without(steps: Sequence[TraceStep], line: int) -> tuple[TraceStep, ...]:
    """Return the proof without a line, and without any reference to it."""

    def renumbered(step: TraceStep) -> TraceStep:
        kept = (use for use in step.uses if use.step != line)
        uses = tuple(replace(use, step=use.step - (use.step > line)) for use in kept)
        return replace(step, uses=uses)

    return tuple(renumbered(step) for number, step in enumerate(steps) if number != line)


def _changed(step: TraceStep) -> Iterator[tuple[str, TraceStep]]:
    for box in _other_boxes(step.box, step.shape):
        yield "box", replace(step, box=box)
    if step.fact is not None:
        yield from (("fact", replace(step, fact=fact)) for fact in Fact if fact is not step.fact)
    for position in (step.position + 1, step.position - 1):
        if position >= 0:
            yield "position", replace(step, position=position)
    for kind in StepKind:
        if kind is not step.kind:
            yield "kind", replace(step, kind=kind)
    for settings in _other_settings(step):
        yield "settings", replace(step, settings=settings)
    if step.op != "parameter":
        for op in ("LeakyReluBackward0", "custom Foo", "ReluBackward1", "parameter"):
            if op != step.op:
                yield "op", replace(step, op=op)
    else:
        yield "name", replace(step, name=f"{step.name}x")
        yield "op", replace(step, op="CloneBackward0")
    yield from (
        ("node", replace(step, node=node)) for node in (step.node + 1, step.node - 1, 10**6)
    )
    for users in (step.users + 1, step.users - 1):
        if users >= 0:
            yield "users", replace(step, users=users)
    for axis, size in enumerate(step.shape):
        shape = (*step.shape[:axis], size + 1, *step.shape[axis + 1 :])
        yield "shape", replace(step, shape=shape)
    for number, shape in enumerate(step.operands):
        grown = (*step.operands[:number], (*shape, 2), *step.operands[number + 1 :])
        yield "operands", replace(step, operands=grown)
    for number, shape in enumerate(step.outputs):
        grown = (*step.outputs[:number], (*shape, 2), *step.outputs[number + 1 :])
        yield "outputs", replace(step, outputs=grown)


def _other_boxes(box: Box, shape: tuple[int, ...]) -> Iterator[Box]:
    """Yield boxes that hold something that `box` does not."""
    for axis, (start, stop, period) in enumerate(box):
        if (start, stop) == (0, period):
            continue
        size = shape[axis]
        others = {(start - 1, stop, period), (start, stop + 1, period), (0, size, size)}
        others |= {(start - 1, stop - 1, period), (start + 1, stop + 1, period)}
        for span in sorted(others):
            if span[0] >= 0 and span[1] <= span[2]:
                yield (*box[:axis], span, *box[axis + 1 :])


def _other_settings(step: TraceStep) -> Iterator[dict[str, str]]:
    settings = dict(step.settings or {})
    for name, text in settings.items():
        yield {key: value for key, value in settings.items() if key != name}
        for other in _other_texts(text):
            yield {**settings, name: other}
    yield {**settings, "surplus": "1"}


def _other_texts(text: str) -> Iterator[str]:
    if text in ("True", "False"):
        yield str(text != "True")
    elif re.fullmatch(r"-?[\d.e+-]+", text):
        number = float(text)
        whole = re.fullmatch(r"-?\d+", text) is not None
        yield from (
            str(int(n) if whole else n) for n in {-number, number + 1, number - 1} - {number}
        )
    elif text.startswith("("):
        numbers = [int(n) for n in re.findall(r"-?\d+", text)]
        yield str(tuple(n + 1 for n in numbers) or (1,))
        if numbers[::-1] != numbers:
            yield str(tuple(numbers[::-1]))
    yield "nonsense"


def _changed_uses(
    steps: Sequence[TraceStep], line: int, random: Random
) -> Iterator[tuple[str, tuple[Use, ...]]]:
    uses = steps[line].uses
    for number, use in enumerate(uses):
        before, after = uses[:number], uses[number + 1 :]
        yield "use dropped", (*before, *after)
        if use.role == "user":
            yield "use doubled", (*uses, replace(use, position=len(uses)))
        for role in ("operand", "output", "user", "nothing"):
            if role != use.role:
                yield "use role", (*before, replace(use, role=role), *after)
        for position in {use.position + 1, use.position - 1}:
            yield "use position", (*before, replace(use, position=position), *after)
        for later in (line, line + 1, len(steps) - 1, len(steps), -1):
            yield "use of a later line", (*before, replace(use, step=later), *after)
        old = steps[use.step]
        others = [n for n in range(line) if not _as_good(steps[n], old)]
        for other in random.sample(others, min(len(others), 6)):
            yield "use redirected", (*before, replace(use, step=other), *after)


def _as_good(other: TraceStep, old: TraceStep) -> bool:
    """Whether another line is about the same tensor: then it may be as good a premise."""
    kind = (other.kind in STATES) == (old.kind in STATES)
    return kind and (other.node, other.position) == (old.node, old.position)
