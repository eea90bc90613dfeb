"""Repair on two processes: the same bits on both, or none."""

from pathlib import Path

import pytest
from ranks_support import run_ranks
from repair_loops import PATIENCE, STEPS, agree, train_all_ways

from ormas_core import Repair, RunEnd, read_record

Digests = list[dict[str, list[str]]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Digests]:
    """Return the folder of the runs, and by rank what `train_all_ways` returns."""
    folder = tmp_path_factory.mktemp("repair")
    return folder, run_ranks(train_all_ways, folder)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[list[bool], str]]]:
    """Return by rank what `agree` returns."""
    return run_ranks(agree, tmp_path_factory.mktemp("agree"))


def repairs(run: Path) -> list[Repair]:
    """Return the repairs that the record of a run has."""
    events = [line.event for line in read_record(run)]
    return [event for event in events if isinstance(event, Repair)]


def test_the_ranks_stay_the_same_bit_for_bit(trained: tuple[Path, Digests]) -> None:
    """Weights and optimizer state after every step, through repairs of both causes."""
    folder, (first, second) = trained
    assert first["repaired"] == second["repaired"]
    assert len(set(first["repaired"])) == STEPS
    assert first["repaired"][-1] != first["bare"][-1]
    found = [(e.step, e.cause, e.units, e.refused) for e in repairs(folder / "repaired")]
    assert found == [(1, "certified", (3, 5), ""), (PATIENCE - 1, "decayed", (4,), "")]
    events = [line.event for line in read_record(folder / "repaired")]
    (end,) = (event for event in events if isinstance(event, RunEnd))
    assert (end.steps, end.checks, end.error) == (STEPS, STEPS, None)


def test_a_monitor_that_only_watches_changes_no_bit(trained: tuple[Path, Digests]) -> None:
    """The planted channels stay as they are, as without a monitor."""
    folder, found = trained
    assert [rank["watched"] for rank in found] == [rank["bare"] for rank in found]
    assert repairs(folder / "watched") == []


def test_ranks_that_would_write_different_numbers_write_none(
    trained: tuple[Path, Digests],
) -> None:
    """They find out before writing; the reason is said once, and training goes on untouched."""
    folder, found = trained
    assert [rank["at odds"] for rank in found] == [rank["bare"] for rank in found]
    reason = "the ranks do not agree on what to repair"
    reasons = sorted((event.cause, event.refused) for event in repairs(folder / "at odds"))
    assert reasons == [("certified", reason), ("decayed", reason)]


def test_a_rank_whose_engine_fails_holds_nobody_up(trained: tuple[Path, Digests]) -> None:
    """It goes on answering that it takes no part: nothing is written, and nobody waits for it."""
    folder, found = trained
    assert [rank["failing"] for rank in found] == [rank["bare"] for rank in found]
    reasons = {event.refused for event in repairs(folder / "failing")}
    assert reasons == {"the ranks do not agree on what to repair"}


def test_different_bytes_are_told_apart_on_every_rank(
    answers: list[dict[str, tuple[list[bool], str]]],
) -> None:
    """And the ranks can be asked again afterwards."""
    assert [rank["together"] for rank in answers] == [([True, False, True], "")] * 2


def test_a_rank_that_does_not_come_is_waited_for_once(
    answers: list[dict[str, tuple[list[bool], str]]],
) -> None:
    """From then on the ranks count as disagreeing, so that no rank acts alone."""
    (alone, problem), (late, _) = (rank["alone"] for rank in answers)
    assert alone == [True, False, False]
    assert problem
    assert late == [True, False]
