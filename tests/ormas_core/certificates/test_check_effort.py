"""A proof by a stranger costs the checker a bounded effort, and none of its judgement."""

from dataclasses import replace
from itertools import product

from checker_models import claims
from hypothesis import given
from hypothesis import strategies as st

from ormas_core.certificates.check_regions import covers
from ormas_core.certificates.checker import check_claim
from ormas_core.claims import Box, Span, StepKind

SHAPE = (4, 6)


def spans(size: int) -> st.SearchStrategy[Span]:
    """Draw a span of an axis."""
    periods = st.sampled_from([p for p in range(1, size + 1) if size % p == 0])
    return periods.flatmap(
        lambda period: st.tuples(
            st.integers(0, period - 1), st.integers(1, period), st.just(period)
        ).filter(lambda span: span[0] < span[1])
    )


BOXES: st.SearchStrategy[Box] = st.tuples(*map(spans, SHAPE))


def elements(box: Box) -> set[tuple[int, ...]]:
    """Return the elements of a box, one by one."""
    return {
        place
        for place in product(*map(range, SHAPE))
        if all(
            start <= i % period < stop for i, (start, stop, period) in zip(place, box, strict=True)
        )
    }


@given(st.lists(BOXES, max_size=5), BOXES)
def test_what_is_covered_is_held_by_the_boxes(boxes: list[Box], goal: Box) -> None:
    """Element by element; a goal that is one of the boxes always is covered."""
    held = set().union(*map(elements, boxes))
    if covers(boxes, goal):
        assert elements(goal) <= held
    assert covers([*boxes, goal], goal)


@given(BOXES, st.integers(0, 1), st.data())
def test_a_box_that_is_cut_in_two_is_covered(goal: Box, axis: int, data: st.DataObject) -> None:
    """Boxes that differ along one axis are seen side by side, in any order, among others."""
    start, stop, period = goal[axis]
    cut = data.draw(st.integers(start, stop))
    ends = [(a, b) for a, b in ((start, cut), (cut, stop)) if a < b]
    parts = [(*goal[:axis], (a, b, period), *goal[axis + 1 :]) for a, b in ends]
    others = data.draw(st.lists(BOXES, max_size=3))
    assert covers(data.draw(st.permutations([*parts, *others])), goal)


def test_a_proof_that_says_the_same_thousands_of_times_is_not_followed() -> None:
    """Each fact about a parameter is compared with each gradient of it: there is a limit."""
    claim = claims("relu")[0]
    fact = next(s for s in claim.trace if s.kind is StepKind.PARAMETER)
    kinds = (StepKind.GRADIENT, fact.node)
    gradient = next(s for s in claim.trace if (s.kind, s.node) == kinds)
    trace = (*claim.trace, *[fact] * 1000, *[gradient] * 90)
    assert check_claim(replace(claim, trace=trace)) is None
    trace = (*trace, *[gradient] * 20)
    assert "too many lines" in str(check_claim(replace(claim, trace=trace)))
