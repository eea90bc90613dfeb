"""Threads that work ahead: in order, not too far, and without anything left behind."""

import threading

import pytest

from ormas_core.checkpoints.ahead import in_order


def test_results_are_in_order_whoever_is_first() -> None:
    """The first item is held back until others are done."""
    later = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert later.wait(60)
        if item == 3:
            later.set()
        return item * 2

    assert list(in_order(range(20), [work, work], 8)) == [item * 2 for item in range(20)]


def test_no_more_is_begun_than_was_asked_for() -> None:
    """So that results do not pile up where they are taken slowly."""
    begun: list[int] = []
    most = 0
    for taken, _ in enumerate(in_order(range(50), [begun.append] * 3, 4)):
        most = max(most, len(begun) - taken)
    assert len(begun) == 50
    assert most <= 5


def test_what_is_raised_reaches_whoever_takes() -> None:
    """And the threads end."""

    def work(item: int) -> int:
        return 1 // (item - 3)

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        list(in_order(range(9), [work, work], 2))
    assert threading.active_count() == before


def test_leaving_ends_the_threads() -> None:
    """Also in the midst of the items."""
    before = threading.active_count()
    results = in_order(range(1000), [str, str], 2)
    assert next(results) == "0"
    results.close()
    assert threading.active_count() == before
    assert list(in_order([], [str], 2)) == []
