"""The demo, as a user runs it."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient
from process_support import FRAMEWORKS, child_environment, warm_python

from ormas_core import Alarm, Diagnosis, RunFacts, read_record, run_facts, verify_record
from ormas_core.cli import demo, demo_training


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The working folder and output of one `ormas-monitor demo --out DIR`."""
    place = tmp_path_factory.mktemp("demo")
    environment = {**child_environment(), "PYTHONWARNINGS": "default"}
    result = subprocess.run(
        [warm_python(FRAMEWORKS), "-m", "ormas_core.cli.main", "demo", "--out", "runs"],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return place, result.stdout


def test_every_fault_is_named_under_both_frameworks(demo_run: tuple[Path, str]) -> None:
    """The table has four rows, all named."""
    place, out = demo_run
    assert "4 of 4 injected faults named" in out
    for framework in ("lightning", "transformers"):
        facts = run_facts(line.event for line in read_record(place / "runs" / framework))
        assert [(a.layer, a.diagnosis) for a in facts.alarms if isinstance(a, Alarm)] == [
            ("block3.conv", Diagnosis.EXPLODING),
            ("block1.conv", Diagnosis.NO_GRADIENT),
        ]
        assert verify_record(place / "runs" / framework).complete


def test_the_mlflow_tags_are_those_of_the_record(demo_run: tuple[Path, str]) -> None:
    """Status, count, layers and head can be read back from the store in the run folder."""
    place, out = demo_run
    folder = place / "runs" / "lightning"
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiments = [e.experiment_id for e in client.search_experiments()]
    (found,) = client.search_runs(
        experiments, filter_string="tags.`ormas.status` = 'problem' and tags.`ormas.alarms` = '3'"
    )
    assert found.data.tags["ormas.record.head"] == verify_record(folder).head
    assert found.data.tags["ormas.alarm.block3.conv"].startswith("exploding at step 80")
    assert found.data.tags["ormas.record.head"] in out


def test_nothing_is_written_elsewhere(demo_run: tuple[Path, str]) -> None:
    """The working folder holds the runs and nothing else."""
    assert [path.name for path in demo_run[0].iterdir()] == ["runs"]


@pytest.fixture
def facts(demo_run: tuple[Path, str]) -> RunFacts:
    """The facts of the Lightning run."""
    folder = demo_run[0] / "runs" / "lightning"
    return run_facts(line.event for line in read_record(folder))


@pytest.mark.parametrize("case", ["missing", "wrong layer", "stray", "early"])
def test_a_fault_that_is_not_named_right_fails_the_demo(case: str, facts: RunFacts) -> None:
    """A missing, misplaced, additional or premature alarm is no success."""
    assert all(row.found for row in demo._rows("lightning", facts))
    # The layer that explodes also takes the norm that is left after clipping: an alarm apart.
    first, second = (alarm for alarm in facts.alarms if isinstance(alarm, Alarm))
    assert first.step >= demo_training.FAULTS[0].step
    changed = {
        "missing": (second,),
        "wrong layer": (replace(first, layer="block2.conv"), second),
        "stray": (first, second, replace(first, layer="head")),
        "early": (replace(first, step=3), second),
    }[case]
    rows = demo._rows("lightning", replace(facts, alarms=changed))
    assert not all(row.found for row in rows)
