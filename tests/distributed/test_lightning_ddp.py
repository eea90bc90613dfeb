"""Lightning with `strategy="ddp"` on two processes, with MLflow in both ways."""

from pathlib import Path
from typing import Any

from ranks_support import run_script
from truth import Truth, assert_one_truth, make_store

from ormas_core import RunStart, Stage, read_metrics

SCRIPT = Path(__file__).parent / "scripts" / "lightning_ddp.py"


def _run(folder: Path, mlflow: str) -> tuple[Truth, list[Any]]:
    if mlflow == "alone":
        make_store(folder)
    reports = run_script(SCRIPT, folder, mlflow)
    store = f"sqlite:///{folder}/mlflow.db"
    truth = assert_one_truth(folder, reports, others=["mlflow.db"], tracking_uri=store)
    return truth, reports


def test_one_record_and_one_mlflow_run(tmp_path: Path) -> None:
    """Rank 0 alone writes, before clipping, and the sink makes the only run of its store."""
    truth, _ = _run(tmp_path, "alone")
    assert truth.every(RunStart)[0].framework == "lightning"
    assert {row.stage for row in read_metrics(truth.run)} == {Stage.PRE_CLIP}


def test_the_run_of_the_logger_gets_the_tags(tmp_path: Path) -> None:
    """With Lightning's MLflow logger there is still one run, the logger's, and it has our tags."""
    truth, reports = _run(tmp_path, "logger")
    assert truth.mlflow_run.info.run_id == reports[0]["logger_run"]
    assert reports[1]["logger_run"] is None
