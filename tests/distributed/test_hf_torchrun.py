"""The transformers Trainer under torchrun on two processes, with MLflow in both ways."""

import math
from pathlib import Path
from typing import Any

import pytest
from ranks_support import run_script
from truth import STEPS, Truth, assert_one_truth, make_store

from ormas_core import RunStart, Stage, read_metrics

SCRIPT = Path(__file__).parent / "scripts" / "hf_torchrun.py"


def _run(folder: Path, mlflow: str) -> tuple[Truth, list[Any]]:
    if mlflow == "alone":
        make_store(folder)
    reports = run_script(SCRIPT, folder, mlflow, torchrun=True)
    store = f"sqlite:///{folder}/mlflow.db"
    truth = assert_one_truth(folder, reports, others=["mlflow.db"], tracking_uri=store)
    return truth, reports


def _assert_norms_are_the_trainers(truth: Truth, reports: list[Any], stage: Stage) -> None:
    rows = list(read_metrics(truth.run))
    assert {row.stage for row in rows} == {stage}
    ours = [math.hypot(*(norm or 0.0 for norm in row.norms)) for row in rows]
    assert len(ours) == STEPS
    assert ours == pytest.approx(reports[0]["grad_norms"], rel=1e-5)


def test_one_record_and_one_mlflow_run_and_norms_before_clipping(tmp_path: Path) -> None:
    """Rank 0 alone writes, and reads what the Trainer then clips; the sink makes the only run."""
    truth, reports = _run(tmp_path, "alone")
    assert truth.every(RunStart)[0].framework == "transformers"
    _assert_norms_are_the_trainers(truth, reports, Stage.PRE_CLIP)


def test_the_run_of_the_reporter_gets_the_tags(tmp_path: Path) -> None:
    """With `report_to="mlflow"` there is still one run, the Trainer's, and it has our tags."""
    truth, reports = _run(tmp_path, "reporter")
    assert "train_loss" in truth.mlflow_run.data.metrics
    _assert_norms_are_the_trainers(truth, reports, Stage.UNSCALED)
