"""The sink: events in, tags and metrics on one MLflow run out, by way of a worker thread."""

import math
import os
from pathlib import Path
from typing import Any, Self

import mlflow

from ormas_core import ConfigError, Event, Measurement, RunEnd, RunStart, Status
from ormas_mlflow.metrics import RunMetrics
from ormas_mlflow.pin import Pin, ambient_run
from ormas_mlflow.tags import RunTags
from ormas_mlflow.worker import Worker


class MLflowSink:
    """Puts verdict, alarms and record head on an MLflow run as tags, and a few metrics.

    The run is pinned when training starts: `run_id`; else the innermost run that is active in the
    training thread; else the one that `MLFLOW_RUN_ID` names; else a new one in `experiment`, which
    the sink also terminates. An active or named run of another store than `tracking_uri` does not
    count. No other run is ever started, ended or renamed, and no global MLflow setting changes.
    A further `fit()` on the same record stays with the run, unless another one is active by then.

    All calls are made by a daemon thread, so a slow or dead tracker holds nothing up until
    `close`, which waits for `close_timeout` at most.

    Args:
        tracking_uri: the store; None takes the one MLflow is set to when training starts.
        run_id: an existing run of that store.
        experiment: where a new run is created.
        artifact_location: where a new experiment keeps artifacts; None leaves it to MLflow.
        close_timeout: seconds to wait at the end for what is not yet delivered.

    Raises:
        ConfigError: an argument cannot be used.
    """

    def __init__(
        self,
        *,
        tracking_uri: str | None = None,
        run_id: str | None = None,
        experiment: str = "ormas",
        artifact_location: str | None = None,
        close_timeout: float = 10.0,
    ) -> None:
        for name, text in (
            ("tracking_uri", tracking_uri),
            ("run_id", run_id),
            ("artifact_location", artifact_location),
        ):
            if text is not None:
                _require_text(name, text)
        _require_text("experiment", experiment)
        _require_seconds("close_timeout", close_timeout)
        self._tracking_uri = tracking_uri
        self._run_id = run_id
        self._experiment = experiment
        self._artifact_location = artifact_location
        self._close_timeout = float(close_timeout)
        self._followed: tuple[str, str] | None = None
        self._worker: Worker | None = None
        self._latest: Worker | None = None
        self._tags = RunTags()
        self._metrics = RunMetrics()
        self._ended = False
        self._interrupted = True

    @classmethod
    def embedded(
        cls,
        folder: str | os.PathLike[str],
        *,
        run_id: str | None = None,
        experiment: str = "ormas",
        close_timeout: float = 10.0,
    ) -> Self:
        """Return a sink with a store of its own: one SQLite file in `folder`, no server.

        Look at it with `mlflow ui --backend-store-uri sqlite:///FOLDER/mlflow.db`.

        Args:
            folder: created when training starts; nothing is written anywhere else. (MLflow 2 leaves
                an empty `mlruns` in the working folder.)
            run_id: see the class.
            experiment: see the class.
            close_timeout: see the class.

        Raises:
            ConfigError: an argument cannot be used.
        """
        place = Path(folder).resolve()
        if "?" in str(place):
            raise ConfigError(
                "folder", f"a database URI cannot hold a path with a question mark; got {place}"
            )
        return cls(
            tracking_uri=f"sqlite:///{place.as_posix()}/mlflow.db",
            run_id=run_id,
            experiment=experiment,
            artifact_location=(place / "mlartifacts").as_uri(),
            close_timeout=close_timeout,
        )

    @property
    def run_id(self) -> str | None:
        """The MLflow run that the latest training went to; None while it is not known."""
        return self._latest.run_id if self._latest is not None else self._run_id

    def follow(self, *, run_id: str, tracking_uri: str) -> None:
        """Use the run that the framework's own MLflow logger writes to, from the next start on.

        An adapter says so. `run_id` and `tracking_uri` of this sink count more, and so does a run
        that is active in the training thread.
        """
        if self._tracking_uri is None and self._run_id is None:
            self._followed = (run_id, tracking_uri)

    def write(self, event: Event, /) -> None:
        """Take one event; the worker thread sends what follows from it.

        Raises:
            OrmasError: the tracker has failed. Said once; events are then ignored until a new
                `RunStart`.
        """
        if isinstance(event, RunStart):
            self._begin(event)
        worker = self._worker
        if worker is None:
            return
        if worker.failed:
            self._worker = None
            raise worker.failure()
        if isinstance(event, RunEnd):
            self._ended, self._interrupted = True, event.status is Status.INTERRUPTED
        rows = self._metrics.rows(event) if isinstance(event, Measurement) else ()
        worker.outbox.put(self._tags.update(event), rows)

    def close(self) -> None:
        """Deliver what is left, within `close_timeout`.

        Raises:
            OrmasError: the tracker has failed.
            TimeoutError: there was more to deliver than the time allowed; the rest is given up.
        """
        worker, self._worker = self._worker, None
        if worker is None:
            return
        self._finish(worker)
        worker.wait(self._close_timeout)

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings: a copy in another process starts afresh."""
        fresh = {"_worker": None, "_latest": None, "_tags": RunTags(), "_metrics": RunMetrics()}
        return {**self.__dict__, **fresh}

    def _begin(self, start: RunStart) -> None:
        if self._worker is not None:
            self._finish(self._worker)  # a run that never ended; what is left of it still goes out
        before = self._latest if start.segment else None
        pin = self._pin(start, before)
        if before is not None and (pin is before.pin or pin.same_run(before.pin)):
            self._worker = Worker(pin, before)
        else:
            self._worker = Worker(pin)
            self._tags = RunTags()
        self._latest = self._worker
        self._metrics = RunMetrics()
        self._ended, self._interrupted = False, True

    def _pin(self, start: RunStart, before: Worker | None) -> Pin:
        run_id = self._run_id or ambient_run(self._tracking_uri)
        uri = self._tracking_uri
        if run_id is None and self._followed is not None:
            run_id, uri = self._followed
        if before is not None and (before.pin.owned or run_id is None):
            # Frameworks do not always open a run again for a second fit.
            return before.pin
        return Pin(
            uri=uri or mlflow.get_tracking_uri(),
            run_id=run_id,
            experiment=self._experiment,
            artifact_location=self._artifact_location,
            run_name=start.name,
        )

    def _finish(self, worker: Worker) -> None:
        if not self._ended:
            worker.outbox.put(self._tags.unfinished())
        worker.finish(interrupted=self._interrupted)


def _require_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigError(name, f"{name} must be a non-empty text; got {value!r}")


def _require_seconds(name: str, value: object) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or value < 0
    ):
        raise ConfigError(name, f"{name} must be a number of seconds, 0 or more; got {value!r}")
