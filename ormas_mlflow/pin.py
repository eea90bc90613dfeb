"""Which MLflow run is meant: decided once, at the start, without a network."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A place for the tags of a run.

    Attributes:
        uri: tracking URI.
        run_id: the run; None for one that the sink creates, and therefore also terminates.
        experiment: name of the experiment for a created run.
        artifact_location: where a created experiment keeps its artifacts; None leaves it to MLflow.
        run_name: name for a created run; None leaves it to MLflow.
    """

    uri: str
    run_id: str | None
    experiment: str
    artifact_location: str | None
    run_name: str | None

    @property
    def owned(self) -> bool:
        """Whether the run is created, and ended, by the sink."""
        return self.run_id is None

    def same_run(self, other: "Pin") -> bool:
        """Whether both name the same existing run."""
        return self.run_id is not None and (self.uri, self.run_id) == (other.uri, other.run_id)


def ambient_run(tracking_uri: str | None) -> str | None:
    """Return the run that the calling thread or the environment works in.

    Args:
        tracking_uri: a store that was asked for; a run of another store does not count.
    """
    active = mlflow.active_run()
    if active is not None and _agrees(tracking_uri, mlflow.get_tracking_uri()):
        return str(active.info.run_id)
    named = os.environ.get("MLFLOW_RUN_ID")
    if named and _agrees(tracking_uri, os.environ.get("MLFLOW_TRACKING_URI")):
        return named
    return None


def connect(pin: Pin) -> MlflowClient:
    """Return a client for the pinned store; the folder of a SQLite store is made."""
    _, sqlite, path = pin.uri.partition("sqlite:///")
    if sqlite and path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)  # MLflow 2 does not do it itself
    return MlflowClient(tracking_uri=pin.uri)


def create_run(client: MlflowClient, pin: Pin) -> str:
    """Create the run of an owned pin, and its experiment if there is none, and return its id."""
    experiment = client.get_experiment_by_name(pin.experiment)
    if experiment is not None:
        experiment_id = experiment.experiment_id
    else:
        experiment_id = _create_experiment(client, pin)
    run = client.create_run(experiment_id, run_name=pin.run_name)
    return str(run.info.run_id)


def tags_of(client: MlflowClient, run_id: str) -> Mapping[str, str]:
    """Return the tags that are on a run now."""
    return dict(client.get_run(run_id).data.tags)


def _create_experiment(client: MlflowClient, pin: Pin) -> str:
    try:
        return client.create_experiment(pin.experiment, pin.artifact_location)
    except MlflowException:
        # Another process may have been faster.
        experiment = client.get_experiment_by_name(pin.experiment)
        if experiment is None:
            raise
        return str(experiment.experiment_id)


def _agrees(asked: str | None, found: str | None) -> bool:
    return asked is None or found is None or asked.rstrip("/") == found.rstrip("/")
