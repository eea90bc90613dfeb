"""Alarms, verdict and record head of a run as MLflow tags; loss and gradient norm as metrics."""

from ormas_core import missing_extra

try:
    import mlflow  # noqa: F401 - only to name the extra when it is missing
except ImportError as error:
    raise missing_extra("mlflow", "mlflow") from error

from ormas_mlflow.sink import MLflowSink
from ormas_mlflow.witness import witness_tags

__all__ = ["MLflowSink", "witness_tags"]
