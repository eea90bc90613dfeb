"""Parameters spread over processes: nothing is disturbed, and what cannot be read is said."""

from pathlib import Path

import pytest
from ranks_support import run_ranks, run_script
from sharded_loops import LAYERS, train_sharded

from ormas_core import (
    Manifest,
    MonitorError,
    NoGradients,
    RunEnd,
    Status,
    read_metrics,
    read_record,
    verify_record,
)

SCRIPT = Path(__file__).parent / "scripts" / "lightning_sharded.py"


def assert_said(run: Path, sharded: tuple[str, ...], status: Status) -> None:
    """The record is whole, and says what of each mechanism is not seen, and why."""
    events = [line.event for line in read_record(run)]
    assert not [event for event in events if isinstance(event, MonitorError)]
    (end,) = [event for event in events if isinstance(event, RunEnd)]
    assert (end.status, end.error, end.steps) == (status, None, 4)
    first, *_, last = [event for event in events if isinstance(event, Manifest)]
    for manifest in (first, last):
        norms = [m for m in manifest.mechanisms if m.name == "gradient_norms"]
        blind = [m for m in norms if m.state.value == "unobservable"]
        assert [(m.layers, m.reason.partition(":")[0]) for m in blind] == [(sharded, "sharded")]
    (proofs,) = [m for m in last.mechanisms if m.name == "certificates"]
    assert (proofs.state.value, proofs.reason.partition(":")[0]) == ("unobservable", "sharded")
    for measurement in read_metrics(run):
        assert set(measurement.layers) == set(LAYERS) - set(sharded)
        assert measurement.loss is not None
        assert measurement.clip_factor is None
    assert verify_record(run).complete


@pytest.mark.parametrize("columns", [False, True], ids=["fsdp2", "tensor_parallel"])
def test_a_sharded_loop_is_not_disturbed(tmp_path: Path, *, columns: bool) -> None:
    """The weights are those without a monitor; layers that are whole are read, and no others."""
    for bare, watched in run_ranks(train_sharded, tmp_path, columns):
        assert bare == watched
    if columns:
        assert_said(tmp_path / "run", ("fc1", "fc2"), Status.PARTLY_MONITORED)
    else:
        assert_said(tmp_path / "run", LAYERS, Status.NOT_MONITORED)


def test_a_lightning_fit_with_sharded_parameters_is_not_disturbed(tmp_path: Path) -> None:
    """`ModelParallelStrategy` on two processes: the same weights, one record, and no norm in it."""
    for report in run_script(SCRIPT, tmp_path):
        bare, watched = report["weights"]
        assert bare == watched
        assert report["steps"] == 4
    assert_said(tmp_path / "run", LAYERS, Status.NOT_MONITORED)
    events = [line.event for line in read_record(tmp_path / "run")]
    (found,) = [event for event in events if isinstance(event, NoGradients)]
    assert found.step == 0
