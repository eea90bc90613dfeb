"""Reads back the record heads that the sink has left on an MLflow run."""

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from ormas_core import ANCHORS_TAG, ConfigError


def witness_tags(run_id: str, record_id: str, *, tracking_uri: str | None = None) -> list[str]:
    """Return the values of the tags that hold heads of a record, for `ormas_core.parse_heads`.

    Args:
        run_id: the MLflow run.
        record_id: the `run_id` that the record bears; an MLflow run may have heads of several.
        tracking_uri: its store; None takes the one MLflow is set to.

    Raises:
        ConfigError: the store does not answer, or has no such run.
    """
    try:
        tags = MlflowClient(tracking_uri=tracking_uri).get_run(run_id).data.tags
    except MlflowException as error:
        raise ConfigError(
            "witness", f"MLflow gave no run {run_id!r}: {error!s:.300}. Look at --tracking-uri."
        ) from error
    prefix = f"{ANCHORS_TAG}{record_id[:8]}."
    return [value for key, value in sorted(tags.items()) if key.startswith(prefix)]
