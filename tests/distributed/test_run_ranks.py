"""The harness itself: what a test is told when a rank goes wrong."""

import os
import signal
import threading
from pathlib import Path

import pytest
import torch.distributed as dist
from ranks_support import Seat, rank_outcomes, run_ranks


def _meet(seat: Seat, folder: Path, word: str) -> tuple[int, int, str, str]:
    dist.barrier()
    return dist.get_rank(), dist.get_world_size(), word, os.environ["HF_HUB_OFFLINE"]


def _raise_on_rank_1(seat: Seat, folder: Path) -> None:
    if seat.rank == 1:
        raise ValueError("planted")
    threading.Event().wait()


def _die_on_rank_1(seat: Seat, folder: Path) -> None:
    if seat.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def _hang_on_rank_1(seat: Seat, folder: Path) -> None:
    if seat.rank == 1:
        threading.Event().wait()


def test_results_come_back_by_rank_and_nothing_else_stays(tmp_path: Path) -> None:
    """Each rank is in the group, its result is at its place, and no file is left."""
    assert run_ranks(_meet, tmp_path, "word") == [(0, 2, "word", "1"), (1, 2, "word", "1")]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_traceback_arrives_with_its_rank(tmp_path: Path) -> None:
    """The failure of one rank names it, shows its traceback and ends the other, which hangs."""
    with pytest.raises(AssertionError, match=r"(?s)rank 0 was stopped.*rank 1 failed:.*planted"):
        run_ranks(_raise_on_rank_1, tmp_path)


def test_a_death_without_a_word_is_a_failure(tmp_path: Path) -> None:
    """A rank that is killed is reported with its exit code."""
    with pytest.raises(AssertionError, match="rank 1 died with exit code -9"):
        run_ranks(_die_on_rank_1, tmp_path)


def test_a_hanging_rank_says_where(tmp_path: Path) -> None:
    """A rank that is not done in time ends, and the line it hung in is shown."""
    outcomes = rank_outcomes(_hang_on_rank_1, tmp_path, timeout=3.0)
    assert "_hang_on_rank_1" in outcomes[1].failure
