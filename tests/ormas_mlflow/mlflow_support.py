"""What the tests of the MLflow sink share: events to send, and what a store holds afterwards."""

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run, ViewType

from ormas_core import Alarm, Diagnosis, Event, RunEnd, Stage, Status
from ormas_core.testing import run_start
from ormas_mlflow import MLflowSink

# MLflow's own table definitions use an option that SQLAlchemy 2.1 calls deprecated.
sql_store = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"
)


def alarm(layer: str = "fc1", step: int = 60) -> Alarm:
    """An exploding layer."""
    return Alarm(
        step=step,
        layer=layer,
        diagnosis=Diagnosis.EXPLODING,
        value=100.0,
        normal=1.0,
        sigma=9.0,
        stage=Stage.UNSCALED,
    )


def run_end(status: Status = Status.HEALTHY) -> RunEnd:
    """The end of a run."""
    return RunEnd(step=9, steps=9, checks=9, counts={}, status=status)


def feed(sink: MLflowSink, *events: Event, segment: int = 0, close: bool = True) -> None:
    """Send a run with `events` in it."""
    for event in (run_start(segment=segment), *events, run_end()):
        sink.write(event)
    if close:
        sink.close()


def all_runs(uri: str) -> dict[str, Run]:
    """Every run of every experiment, deleted ones included."""
    client = MlflowClient(tracking_uri=uri)
    experiments = [e.experiment_id for e in client.search_experiments(view_type=ViewType.ALL)]
    found = client.search_runs(experiments, run_view_type=ViewType.ALL, max_results=10_000)
    return {run.info.run_id: run for run in found}


def ormas_tags(uri: str, run_id: str | None) -> dict[str, str]:
    """The tags of a run that are ours."""
    assert run_id is not None
    tags = MlflowClient(tracking_uri=uri).get_run(run_id).data.tags
    return {key: value for key, value in tags.items() if key.startswith("ormas.")}


def user_run(uri: str) -> str:
    """A run that a user or framework has opened through a client."""
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("user")
    assert experiment is not None
    return str(client.create_run(experiment.experiment_id).info.run_id)
