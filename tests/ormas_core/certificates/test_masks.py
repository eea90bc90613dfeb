"""Sets of elements against plain numpy: never an element too many, and exact while small."""

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ormas_core.certificates import masks, signs
from ormas_core.certificates.masks import MOST_PARTS, Mask, Part, Shape

Dense = NDArray[np.bool_]
SIZES: Final = st.integers(1, 4)


def dense(mask: Mask) -> Dense:
    return np.array(np.broadcast_to(mask.dense(), mask.shape))


@st.composite
def shapes(draw: st.DrawFn, least: int = 1, most: int = 3) -> Shape:
    return tuple(draw(st.lists(SIZES, min_size=least, max_size=most)))


@st.composite
def parts(draw: st.DrawFn, shape: Shape) -> Part:
    pattern = tuple(size if draw(st.booleans()) else 1 for size in shape)
    flags = draw(st.lists(st.booleans(), min_size=math.prod(pattern), max_size=math.prod(pattern)))
    return np.array(flags, dtype=np.bool_).reshape(pattern)


@st.composite
def sets(draw: st.DrawFn, shape: Shape, most: int = 3) -> Mask:
    return masks.union_of(shape, draw(st.lists(parts(shape), max_size=most)))


@st.composite
def some(draw: st.DrawFn, count: int, most: int = 3) -> list[Mask]:
    """Return sets of elements of one shape."""
    shape = draw(shapes())
    return [draw(sets(shape, most)) for _ in range(count)]


def agrees(found: Mask, truth: Dense, *, exact: bool = True) -> None:
    """The set has the right shape, and no element too many; if exact, none too few."""
    assert found.shape == truth.shape
    for part in found.parts:
        assert part.ndim == len(found.shape)
        assert all(a in {1, b} for a, b in zip(part.shape, found.shape, strict=True))
        assert part.any(), "an empty part is held"
    assert not (dense(found) & ~truth).any()
    if exact:
        assert (dense(found) == truth).all()
    assert found.is_all <= bool(truth.all())


@given(shapes(0), st.data())
def test_union_of_is_the_union_of_its_parts(shape: Shape, data: st.DataObject) -> None:
    """Any number of parts; beyond the most that are held, some are left out."""
    drawn = data.draw(st.lists(parts(shape), max_size=8))
    truth = np.zeros(shape, dtype=np.bool_)
    for part in drawn:
        truth = truth | part
    patterns = {part.shape for part in drawn if part.any()}
    agrees(masks.union_of(shape, drawn), np.asarray(truth), exact=len(patterns) <= MOST_PARTS)


@given(some(3, 1))
def test_join_is_the_union(drawn: list[Mask]) -> None:
    """`join` of sets is `|` of arrays."""
    agrees(masks.join(*drawn), np.logical_or.reduce([dense(m) for m in drawn]))


@given(some(2, 2))
def test_meet_is_the_intersection(drawn: list[Mask]) -> None:
    """`meet` is `&`; it may have up to four patterns, which are all held."""
    agrees(masks.meet(*drawn), dense(drawn[0]) & dense(drawn[1]))


@given(some(1), st.data())
def test_all_over_is_all_along_the_axes(drawn: list[Mask], data: st.DataObject) -> None:
    """Parts together may cover an axis that none covers alone."""
    (mask,) = drawn
    axes = data.draw(st.lists(st.integers(0, len(mask.shape) - 1), unique=True))
    agrees(masks.all_over(mask, axes), dense(mask).all(axis=tuple(axes), keepdims=True))


@given(shapes(0, 2), st.data())
def test_spread_is_broadcasting(shape: Shape, data: st.DataObject) -> None:
    """New axes come first; axes of size 1 grow."""
    narrow = tuple(1 if data.draw(st.booleans()) else size for size in shape)
    grown = (*data.draw(shapes(0, 2)), *shape)
    mask = data.draw(sets(narrow))
    agrees(masks.spread(mask, grown), np.array(np.broadcast_to(dense(mask), grown)))


@given(shapes(0, 2), st.data())
def test_gather_keeps_what_is_in_the_set_in_all_copies(shape: Shape, data: st.DataObject) -> None:
    """The inverse of broadcasting, as the sum in backward is."""
    narrow = tuple(1 if data.draw(st.booleans()) else size for size in shape)
    lead = data.draw(shapes(0, 2))
    mask = data.draw(sets((*lead, *shape)))
    axes = (*range(len(lead)), *(i + len(lead) for i, n in enumerate(narrow) if n != shape[i]))
    truth = dense(mask).all(axis=axes, keepdims=True).reshape(narrow)
    agrees(masks.gather(mask, narrow), truth)


@given(shapes(0, 2), st.data())
def test_gather_undoes_spread(shape: Shape, data: st.DataObject) -> None:
    """What is spread and gathered is what it was."""
    mask = data.draw(sets(shape))
    there = masks.spread(mask, (*data.draw(shapes(0, 2)), *shape))
    agrees(masks.gather(there, shape), dense(mask))


@given(some(1), st.randoms(use_true_random=False))
def test_permute_is_transposition(drawn: list[Mask], random: Any) -> None:
    """Axes in any order."""
    (mask,) = drawn
    axes = random.sample(range(len(mask.shape)), len(mask.shape))
    agrees(masks.permute(mask, axes), dense(mask).transpose(axes))


def factorings(draw: st.DrawFn, size: int) -> Shape:
    found = []
    while size > 1:
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        found.append(draw(st.sampled_from(divisors)))
        size //= found[-1]
        if len(found) > 5:
            found.append(size)
            break
    return tuple(found) or (1,)


@given(shapes(), st.data())
def test_reshape_keeps_row_major_order(shape: Shape, data: st.DataObject) -> None:
    """Into any factors, with ones anywhere."""
    mask = data.draw(sets(shape))
    target = factorings(data.draw, math.prod(shape))
    for at in data.draw(st.lists(st.integers(0, len(target)), max_size=2)):
        target = (*target[:at], 1, *target[at:])
    agrees(masks.reshape(mask, target), dense(mask).reshape(target))


@pytest.mark.parametrize("shape", [(3, 4), (1, 4, 1), (2, 3)])
def test_reshape_of_other_sizes_says_nothing(shape: Shape) -> None:
    """Numbers of elements that differ have no common order; an empty tensor has no elements."""
    drawn = masks.union_of(shape, [np.eye(*shape[-2:], dtype=np.bool_).reshape(shape)])
    assert not masks.reshape(drawn, (*shape, 2)).parts
    assert not masks.reshape(drawn, (0,)).parts


@st.composite
def pieces(draw: st.DrawFn) -> tuple[Mask, int, slice]:
    (mask,) = draw(some(1))
    axis = draw(st.integers(0, len(mask.shape) - 1))
    start = draw(st.integers(0, mask.shape[axis] - 1))
    stop = draw(st.integers(start + 1, mask.shape[axis]))
    return mask, axis, slice(start, stop, draw(st.integers(1, 2)))


@given(pieces())
def test_take_is_slicing(drawn: tuple[Mask, int, slice]) -> None:
    """Start, stop and step along one axis."""
    mask, axis, index = drawn
    agrees(masks.take(mask, axis, index), dense(mask)[(slice(None),) * axis + (index,)])


@given(pieces(), st.integers(0, 3))
def test_put_has_everything_outside_the_slice(drawn: tuple[Mask, int, slice], more: int) -> None:
    """A gradient is zero where no slice was taken."""
    whole, axis, index = drawn
    mask = masks.take(whole, axis, index)
    size = whole.shape[axis] + more
    truth = np.ones((*whole.shape[:axis], size, *whole.shape[axis + 1 :]), dtype=np.bool_)
    truth[(slice(None),) * axis + (index,)] = dense(mask)
    agrees(masks.put(mask, axis, index, size), truth)


@given(shapes(), st.data())
def test_concatenate_is_concatenation(shape: Shape, data: st.DataObject) -> None:
    """Pieces of any size along one axis."""
    axis = data.draw(st.integers(0, len(shape) - 1))
    drawn = [
        data.draw(sets((*shape[:axis], size, *shape[axis + 1 :]), 1))
        for size in data.draw(st.lists(SIZES, min_size=1, max_size=3))
    ]
    agrees(masks.concatenate(drawn, axis), np.concatenate([dense(m) for m in drawn], axis))


@given(some(2, 2))
def test_same_is_equality_of_representations(drawn: list[Mask]) -> None:
    """Sets that are the same have the same elements."""
    a, b = drawn
    assert a.same(a)
    assert a.same(b) == b.same(a)
    if a.same(b):
        assert (dense(a) == dense(b)).all()


@pytest.mark.parametrize(
    "operation",
    [
        lambda m: masks.meet(m, masks.permute(m, (1, 0))),
        lambda m: masks.reshape(m, (16,)),
        lambda m: masks.join(m, masks.permute(m, (1, 0))),
        lambda m: masks.all_over(m, (0,)),
        lambda m: masks.concatenate([m, m], 0),
    ],
)
def test_what_is_too_large_is_left_out(
    operation: Callable[[Mask], Mask], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a part would have too many elements, the set is smaller than the truth."""
    mask = masks.union_of((4, 4), [np.array([[True], [False], [True], [True]])])
    truth = dense(operation(mask))
    monkeypatch.setattr(masks, "MOST_ELEMENTS", 3)
    assert not (dense(operation(mask)) & ~truth).any()


@st.composite
def known(draw: st.DrawFn, shape: Shape) -> tuple[signs.Signs, NDArray[np.float64]]:
    """Return facts, and numbers of which they hold."""
    facts = signs.facts(*(draw(sets(shape, 1)) for _ in range(3)))
    size = math.prod(shape)
    numbers = np.array(
        draw(st.lists(st.sampled_from([-2.0, -1.0, 0.0, 1.0, 3.0]), min_size=size, max_size=size))
    ).reshape(shape)
    numbers = np.where(dense(facts.neg), -abs(numbers), numbers)
    numbers = np.where(dense(facts.pos), abs(numbers), numbers)
    return facts, np.where(dense(facts.zero), 0.0, numbers)


def holds(facts: signs.Signs, numbers: NDArray[np.float64]) -> None:
    assert (numbers[dense(facts.zero)] == 0).all()
    assert (numbers[dense(facts.neg)] <= 0).all()
    assert (numbers[dense(facts.pos)] >= 0).all()


@given(shapes(), st.data())
def test_signs_of_sums_and_products_are_those_of_the_numbers(
    shape: Shape, data: st.DataObject
) -> None:
    """For numbers that meet the facts, what is said of results is so."""
    (a, x), (b, y) = data.draw(known(shape)), data.draw(known(shape))
    factor = data.draw(st.sampled_from([-2.0, 0.0, 0.5]))
    holds(a, x)
    holds(signs.total(a, b), x + y)
    holds(signs.product(a, b), x * y)
    holds(signs.negated(a), -x)
    holds(signs.scaled(a, factor), factor * x)


@given(shapes(), st.data())
def test_zero_is_of_both_signs(shape: Shape, data: st.DataObject) -> None:
    """What is zero is said to be nonpositive and nonnegative, and what is both is zero."""
    (facts, _) = data.draw(known(shape))
    both = dense(facts.neg) & dense(facts.pos)
    assert (dense(facts.zero) == both).all()
