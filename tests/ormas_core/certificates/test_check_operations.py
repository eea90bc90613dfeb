"""What the checker says of an operation is true of what torch computes, in boxes of every kind."""

import itertools
from collections.abc import Iterator, Sequence
from random import Random

import pytest
import torch
from checker_operations import (
    Operation,
    Shape,
    holds,
    inside,
    obeying,
    operations,
    outputs,
    random_box,
)
from checker_rules import FACTS, Closed, Known, derives
from hypothesis import given
from hypothesis import strategies as st

from ormas_core.certificates.check_lines import Doubt, Line, facts
from ormas_core.certificates.check_regions import (
    covers,
    is_box,
    meet,
    placed,
    reshaped,
    unmerge,
    window,
    within,
)
from ormas_core.certificates.checker import OPERATIONS
from ormas_core.claims import Box, Fact, Span, StepKind, TraceStep

TRIES = 200
ENOUGH = 2
NOT_HERE = {
    "CudnnBatchNormBackward0",
    "EluBackward1",
    "FusedRmsNormBackward0",
    "MiopenBatchNormBackward0",
    "ScaledDotProductCudnnAttentionBackward0",
    "ScaledDotProductEfficientAttentionBackward0",
    "ScaledDotProductFlashAttentionBackward0",
    "SyncBatchNormBackward",
}
"""Operations of other devices, and of in-place calls; the same functions judge them."""

SAYS_NOTHING = {
    "AddBackward1", "ConstantPadNdBackward0", "CosBackward0", "CumsumBackward0",
    "IndexAddBackward0", "IndexPutBackward0", "LogBackward0", "LogSigmoidBackward0",
    "LogSoftmaxBackward0", "LogsumexpBackward0", "MaskedFillBackward0", "PowBackward2",
    "ReciprocalBackward0", "RsubBackward1", "ScatterAddBackward0", "SubBackward1",
    "ThresholdBackward0",
}  # fmt: skip
"""Operations of whose values nothing is known."""

Case = tuple[TraceStep, Known, Closed]


def _case(operation: Operation, random: Random, kind: StepKind) -> Case:
    """Return some line about an operation, with some premises."""
    known = {
        position: [
            (random.choice(list(FACTS)), random_box(random, operation.operands[position]))
            for _ in range(random.choice((0, 1, 1, 2)))
        ]
        for position in operation.positions
    }
    many = OPERATIONS[operation.name].outputs > 1
    numbers = range(len(operation.outputs) if many else 1)
    closed: Closed = {}
    position = random.choice(operation.positions)
    if kind is StepKind.BACKWARD:
        closed = {
            n: [
                random_box(random, operation.outputs[n]) for _ in range(random.choice((0, 1, 1, 2)))
            ]
            for n in numbers
        }
    else:
        position = random.choice(numbers)
    shapes = operation.operands if kind is StepKind.BACKWARD else operation.outputs
    step = TraceStep(
        kind=kind,
        node=1,
        op=operation.name,
        fact=None if kind is StepKind.BACKWARD else random.choice(list(FACTS)),
        position=position,
        shape=shapes[position],
        box=random_box(random, shapes[position]),
        operands=operation.operands,
        outputs=operation.outputs,
        settings=operation.settings,
    )
    return step, known, closed


def _believed(case: Case) -> bool:
    step, known, closed = case
    line = Line(
        step,
        {
            number: facts(*(tuple(box for own, box in found if own is fact) for fact in FACTS))
            for number, found in known.items()
            if found
        },
        {number: tuple(boxes) for number, boxes in closed.items() if boxes},
    )
    rule = OPERATIONS[step.op]
    try:
        return (rule.backward if step.kind is StepKind.BACKWARD else rule.value)(line)
    except Doubt:
        return False


def _true(operation: Operation, case: Case) -> bool:
    """Whether the line is true of random values that obey its premises."""
    step, known, closed = case
    leaves = [
        obeying(operation.operands[position], known[position]).requires_grad_()
        for position in operation.positions
    ]
    results = outputs(operation.call(*leaves))
    if step.fact is not None:
        return holds(results[step.position].detach(), step.fact, step.box)
    used = [n for n in closed if results[n].requires_grad]
    seeds = [torch.randn(results[n].shape).to(results[n].dtype) for n in used]
    for place, number in enumerate(used):
        for box in closed[number]:
            seeds[place] = seeds[place].masked_fill(inside(operation.outputs[number], box), 0)
    if not all(torch.isfinite(results[n]).all() for n in used):
        return True
    index = operation.positions.index(step.position)
    gradient = torch.autograd.grad([results[n] for n in used], leaves, seeds, allow_unused=True)[
        index
    ]
    return gradient is None or holds(gradient, Fact.ZERO, step.box)


@pytest.mark.parametrize("kind", [StepKind.VALUE, StepKind.BACKWARD])
def test_a_believed_line_is_true_of_computed_values(kind: StepKind) -> None:
    """For each operation, and for random premises that the values are made to obey."""
    torch.manual_seed(0)
    random = Random(0)  # noqa: S311 - the same on every machine
    believed, missed = dict.fromkeys((o.name for o in operations()), 0), []
    for operation in operations():
        found = 0
        for _ in range(TRIES if operation.name not in SAYS_NOTHING else 20):
            case = _case(operation, random, kind)
            if _believed(case):
                found += 1
                assert _true(operation, case), case
                if found == ENOUGH:
                    break
            elif derives(*case):
                missed.append(case)
        believed[operation.name] += found
    assert set(OPERATIONS) - set(believed) == NOT_HERE
    silent = {name for name, count in believed.items() if not count}
    assert silent == (SAYS_NOTHING if kind is StepKind.VALUE else set())
    assert len(missed) < 0.03 * sum(believed.values()), missed


def _indices(span: Span, size: int) -> set[int]:
    return {i for i in range(size) if span[0] <= i % span[2] < span[1]}


def _elements(box: Box, shape: Shape) -> set[tuple[int, ...]]:
    sides = (_indices(span, size) for span, size in zip(box, shape, strict=True))
    return set(itertools.product(*sides))


def _spans(size: int) -> Iterator[Span]:
    for period in range(1, size + 1):
        if size % period == 0:
            yield from ((a, b, period) for a in range(period) for b in range(a + 1, period + 1))


def _flat(elements: set[tuple[int, ...]], shape: Shape) -> set[int]:
    found = set()
    for element in elements:
        place = 0
        for index, size in zip(element, shape, strict=True):
            place = place * size + index
        found.add(place)
    return found


@pytest.mark.parametrize("size", [1, 2, 4, 6, 12])
def test_spans_within_spans(size: int) -> None:
    """All pairs of spans of an axis, periods that do not divide each other among them."""
    spans = list(_spans(size))
    for one, other in itertools.product(spans, spans):
        assert within(one, other) is (_indices(one, size) <= _indices(other, size)), (one, other)


SHAPES: Sequence[Shape] = ((12,), (3, 4), (4, 3), (2, 6), (6, 2), (2, 3, 2), (1, 12), (2, 1, 2, 3))


@st.composite
def _box(draw: st.DrawFn, shape: Shape) -> Box:
    return tuple(draw(st.sampled_from(list(_spans(size)))) for size in shape)


@given(st.data(), st.sampled_from(SHAPES), st.sampled_from(SHAPES))
def test_a_reshaped_box_holds_all_its_elements(data: st.DataObject, old: Shape, new: Shape) -> None:
    """In row-major order; and of one run of indices, no more than needed."""
    box = data.draw(_box(old))
    found = reshaped(box, old, new)
    assert found is not None
    assert is_box(found, new)
    assert _flat(_elements(box, old), old) <= _flat(_elements(found, new), new)
    assert reshaped(box, old, (*new, 2)) is None


@given(st.data(), st.sampled_from(SHAPES))
def test_boxes_cover_only_what_they_hold(data: st.DataObject, shape: Shape) -> None:
    """One box, or several side by side; the common part of two is in both."""
    boxes = data.draw(st.lists(_box(shape), min_size=2, max_size=3))
    goal = data.draw(_box(shape))
    if covers(boxes, goal):
        held = set.union(*(_elements(box, shape) for box in boxes))
        assert _elements(goal, shape) <= held
    assert covers(boxes, boxes[0])
    common = meet(boxes[0], boxes[1])
    if common is not None:
        assert is_box(common, shape)
        both = _elements(boxes[0], shape) & _elements(boxes[1], shape)
        assert _elements(common, shape) <= both


def test_boxes_side_by_side_cover_together() -> None:
    """Along one axis, with gaps or without, and with periods."""
    left, right, goal = ((0, 2, 6), (0, 3, 4)), ((2, 6, 6), (0, 4, 4)), ((1, 5, 6), (1, 3, 4))
    assert covers((left, right), goal)
    assert not covers((left, ((3, 6, 6), (0, 4, 4))), goal)
    assert covers((((0, 1, 2),), ((1, 2, 2),)), ((0, 6, 6),))


@given(st.data(), st.sampled_from([(2, 6), (6, 2), (3, 4), (4, 3), (1, 12), (12, 1)]))
def test_pieces_of_an_axis_are_exact(data: st.DataObject, split: tuple[int, int]) -> None:
    """Seen as two axes, a span is the union of its pieces."""
    span = data.draw(st.sampled_from(list(_spans(12))))
    pieces = unmerge((span,), 0, *split)
    if pieces is not None:
        found = set.union(*(_flat(_elements(piece, split), split) for piece in pieces))
        assert found == _indices(span, 12)


@given(st.data(), st.integers(0, 11), st.integers(0, 12))
def test_windows_miss_nothing(data: st.DataObject, offset: int, length: int) -> None:
    """What is cut out of an axis, and what is put back."""
    length = min(length, 12 - offset)
    span = data.draw(st.sampled_from(list(_spans(12))))
    found = window(span, 12, offset, length)
    wanted = {i - offset for i in _indices(span, 12) if offset <= i < offset + length}
    assert wanted <= (set() if found is None else _indices(found, length))
    if length:
        inner = data.draw(st.sampled_from(list(_spans(length))))
        back = placed(inner, length, offset, 12)
        assert is_box((back,), (12,))
        assert {i + offset for i in _indices(inner, length)} <= _indices(back, 12)
