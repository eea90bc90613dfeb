"""A DDP loop on two processes: one record, the right layer, and nobody waits for anybody."""

from pathlib import Path

import pytest
from ddp_loops import (
    ACCUMULATED_STEPS,
    FAILS_AT,
    FEWER_STEPS,
    train_accumulating,
    train_both_ways,
    train_into_a_failure,
    train_monitored,
    train_monitored_early,
    train_uneven,
)
from ranks_support import rank_outcomes, run_ranks
from support import ToyNet
from truth import STEPS, Report, assert_one_truth

from ormas_core import (
    Manifest,
    MechanismState,
    Monitor,
    RunEnd,
    Stage,
    Status,
    read_metrics,
    read_record,
    verify_record,
)

NEVER = 3600.0
"""A collective timeout that no test can wait for: ranks must end for another reason."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[Report, str]]]:
    """A loop with a monitor, and the digests of the weights of the loop without."""
    folder = tmp_path_factory.mktemp("ddp")
    return folder, run_ranks(train_both_ways, folder)


def test_one_record_names_the_layer_that_broke_on_the_other_rank(
    both: tuple[Path, list[tuple[Report, str]]],
) -> None:
    """Rank 0 writes the only record and names the layer that exploded on rank 1 alone."""
    folder, found = both
    truth = assert_one_truth(folder, [report for report, _ in found])
    assert {row.stage for row in read_metrics(truth.run)} == {Stage.UNSCALED}


def test_the_monitor_changes_no_bit_of_the_weights(
    both: tuple[Path, list[tuple[Report, str]]],
) -> None:
    """On each rank the weights are those of the same loop without a monitor."""
    for report, bare in both[1]:
        assert report["weights"] == bare


def test_the_manifest_says_what_is_not_seen_of_the_other_ranks(
    both: tuple[Path, list[tuple[Report, str]]],
) -> None:
    """Loss and activations are those of rank 0, and the record says so."""
    manifests = [line.event for line in read_record(both[0] / "run")]
    manifest = next(event for event in manifests if isinstance(event, Manifest))
    (line,) = (each for each in manifest.mechanisms if each.name == "other_ranks")
    assert line.state is MechanismState.PARTIAL
    assert "2 processes" in line.reason


def test_a_monitor_constructed_before_the_group_has_one_writer(tmp_path: Path) -> None:
    """Under torchrun's RANK, a monitor that is older than the process group writes on rank 0."""
    outcomes = rank_outcomes(train_monitored_early, tmp_path, join=False)
    assert [outcome.failure for outcome in outcomes] == ["", ""]
    assert_one_truth(tmp_path, [outcome.value for outcome in outcomes])


def test_accumulated_gradients_are_checked_once_and_reduced(tmp_path: Path) -> None:
    """With no_sync() and a short last batch, each step is checked once: what the optimizer gets."""
    ours, theirs = run_ranks(train_accumulating, tmp_path)
    measured = list(read_metrics(tmp_path / "run"))
    assert [row.step for row in measured] == list(range(ACCUMULATED_STEPS))
    for row, own, other in zip(measured, ours, theirs, strict=True):
        norms = dict(zip(row.layers, row.norms, strict=True))
        assert {**norms, "loss": row.loss} == pytest.approx(own, rel=1e-5)
        assert {**other, "loss": 0.0} == {**own, "loss": 0.0}
    assert [each["loss"] for each in ours] != [each["loss"] for each in theirs]


def test_ranks_with_uneven_numbers_of_steps_do_not_wait_for_the_monitor(tmp_path: Path) -> None:
    """Under DDP's join() one rank may finish early: nothing hangs, rank 0 records all its steps."""
    reports = run_ranks(train_uneven, tmp_path)
    assert [report["steps"] for report in reports] == [STEPS, FEWER_STEPS]
    assert [report["checks"] for report in reports] == [STEPS, FEWER_STEPS]
    assert_one_truth(tmp_path, [reports[0], {**reports[1], "steps": STEPS, "checks": STEPS}])


def test_an_existing_record_stops_every_rank(tmp_path: Path) -> None:
    """Rank 0 refuses before training, the other rank ends with it, and the record is untouched."""
    Monitor(ToyNet(), out=tmp_path / "run").close()
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    refused, bereft = rank_outcomes(train_monitored, tmp_path, collective_timeout=NEVER)
    assert "RecordExistsError" in refused.failure
    assert bereft.failure.startswith("failed:")
    assert [refused.stopped, bereft.stopped] == [False, False]
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_a_rank_that_fails_leaves_a_valid_record_up_to_there(tmp_path: Path) -> None:
    """When rank 1 raises, rank 0 ends too, and its record is whole and says interrupted."""
    bereft, failed = rank_outcomes(train_into_a_failure, tmp_path, collective_timeout=NEVER)
    assert "RuntimeError: planted" in failed.failure
    assert bereft.failure.startswith("failed:")
    assert [bereft.stopped, failed.stopped] == [False, False]
    assert verify_record(tmp_path / "run").complete
    assert len(list(read_metrics(tmp_path / "run"))) == FAILS_AT
    events = (line.event for line in read_record(tmp_path / "run"))
    (end,) = (event for event in events if isinstance(event, RunEnd))
    assert (end.steps, end.status) == (FAILS_AT, Status.INTERRUPTED)
    assert end.error is not None
