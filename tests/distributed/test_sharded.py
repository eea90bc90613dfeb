"""Parameters spread over processes: nothing is disturbed, and what cannot be read is said."""

from pathlib import Path

import pytest
from ranks_support import run_ranks, run_script
from sharded_loops import LAYERS, Weights, train_sharded

from ormas_core import (
    Manifest,
    MonitorError,
    NoGradients,
    RunEnd,
    RunStart,
    Status,
    read_metrics,
    read_record,
    verify_record,
)

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[Weights, Weights]]]:
    """The folder of the plain loops, and the weights of the first rank, without and with."""
    folder = tmp_path_factory.mktemp("sharded")
    return folder, run_ranks(train_sharded, folder)[0]


def assert_said(run: Path, whole: tuple[str, ...] = ()) -> None:
    """The record is complete, and says which layers and mechanisms are not seen, and why.

    Args:
        run: the run folder.
        whole: layers that are not sharded, the only ones that are read.
    """
    events = [line.event for line in read_record(run)]
    assert not [event for event in events if isinstance(event, MonitorError)]
    (start,) = [event for event in events if isinstance(event, RunStart)]
    (end,) = [event for event in events if isinstance(event, RunEnd)]
    status = Status.PARTLY_MONITORED if whole else Status.NOT_MONITORED
    assert (end.status, end.error, end.steps) == (status, None, 4)
    assert [e.step for e in events if isinstance(e, NoGradients)] == ([] if whole else [0])
    sharded = tuple(layer for layer in start.layers if layer not in whole)
    first, *_, last = [event for event in events if isinstance(event, Manifest)]
    for manifest in (first, last):
        norms = [m for m in manifest.mechanisms if m.name == "gradient_norms"]
        blind = [m for m in norms if m.state.value == "unobservable"]
        assert [(m.layers, m.reason.partition(":")[0]) for m in blind] == [(sharded, "sharded")]
    (proofs,) = [m for m in last.mechanisms if m.name == "certificates"]
    assert (proofs.state.value, proofs.reason.partition(":")[0]) == ("unobservable", "sharded")
    for measurement in read_metrics(run):
        assert set(measurement.layers) == set(whole)
        assert measurement.loss is not None
        assert measurement.clip_factor is None
    assert verify_record(run).complete


@pytest.mark.parametrize(
    ("place", "kind", "whole"),
    [(0, "by_fsdp1", ()), (1, "by_fsdp2", ()), (2, "by_columns", LAYERS[2:])],
)
def test_a_sharded_loop_is_not_disturbed(
    trained: tuple[Path, list[tuple[Weights, Weights]]],
    place: int,
    kind: str,
    whole: tuple[str, ...],
) -> None:
    """By FSDP, old and new, or tensor parallel: the weights are those without a monitor.

    Layers that are whole are read, and no others.
    """
    folder, weights = trained
    bare, watched = weights[place]
    assert bare == watched
    assert_said(folder / kind, whole)


def test_a_sharded_loss_is_refused_with_what_to_do(
    trained: tuple[Path, list[tuple[Weights, Weights]]],
) -> None:
    """It is a part that says nothing alone; gradients are judged as ever."""
    run = trained[0] / "loss"
    events = [line.event for line in read_record(run)]
    assert not [event for event in events if isinstance(event, MonitorError)]
    *_, manifest = [event for event in events if isinstance(event, Manifest)]
    (line,) = [m for m in manifest.mechanisms if m.name == "loss"]
    assert line.state.value == "off"
    assert "full_tensor()" in line.reason
    assert [(m.loss, m.layers) for m in read_metrics(run)] == [(None, LAYERS[::-1])] * 4


def test_a_lightning_fit_with_sharded_parameters_is_not_disturbed(tmp_path: Path) -> None:
    """`ModelParallelStrategy` on two processes: the same weights, one record, and no norm in it."""
    for bare, watched in run_script(SCRIPTS / "lightning_sharded.py", tmp_path):
        assert bare == watched
    assert_said(tmp_path / "run")


def test_a_model_that_transformers_shards_is_not_disturbed(tmp_path: Path) -> None:
    """By its own `DistributedConfig`, under torchrun: the same weights, and no norm in the record.

    The HF Trainer clips, and its clip factor is not guessed.
    """
    for bare, watched in run_script(SCRIPTS / "hf_sharded.py", tmp_path, torchrun=True):
        assert bare == watched
    assert_said(tmp_path / "run")
