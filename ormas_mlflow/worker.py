"""The only thread that talks to MLflow."""

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Final, TypeVar

from mlflow import MlflowClient
from mlflow.entities import Metric, RunTag

from ormas_core import OrmasError
from ormas_mlflow.outbox import Batch, Outbox
from ormas_mlflow.pin import Pin, connect, create_run, tags_of
from ormas_mlflow.tags import METRICS_DROPPED, with_earlier

TAGS_PER_CALL: Final = 100
METRICS_PER_CALL: Final = 900  # 1,000 entities of all kinds are the limit
_PAUSE_S: Final = 0.5
_SHOWN_KEYS: Final = 3
_ERROR_PART: Final = 110
_CREDENTIALS: Final = re.compile(r"//[^/@\s]*@")
_FOLDER: Final = re.compile(r"file:|[./]")

_T = TypeVar("_T")


class Worker:
    """Sends what the outbox holds to one MLflow run, in a daemon thread of its own.

    Args:
        pin: the run, or where to create one.
        before: the worker of the segment before this one on the same run; it is waited for, in the
            new thread, so that the two cannot overtake each other.

    Attributes:
        run_id: the MLflow run, once known.
        earlier: tags that another record had left on the run, once known.
    """

    def __init__(self, pin: Pin, before: "Worker | None" = None) -> None:
        self.pin = pin
        self.outbox = Outbox()
        self.run_id = pin.run_id
        self.earlier: Mapping[str, str] | None = None
        self._before = before
        self._sending: Batch | None = None
        self._error: Exception | None = None
        self._abandoned = False
        self._end = "FINISHED"
        # A daemon: a tracker that hangs must not keep the interpreter from exiting.
        self._thread = threading.Thread(target=self._work, name="ormas-mlflow", daemon=True)
        self._thread.start()

    @property
    def failed(self) -> bool:
        """Whether the tracker has failed; nothing is sent from then on."""
        return self._error is not None

    def failure(self) -> OrmasError:
        """Return the failure, said so that a person can act on it."""
        text = _brief(_public(" ".join(str(self._error).split())))
        uri = _public(self.pin.uri)
        hint = ""
        if _FOLDER.match(self.pin.uri):
            hint = " (for a folder, use MLflowSink.embedded(folder) or a sqlite:/// URI)"
        failure = OrmasError(
            uri,
            f"MLflow at {uri} failed for run {self.run_id or '(not created)'}{hint}: "
            f"{type(self._error).__name__}: {text}. "
            "Nothing more is sent there; the record has it all.",
        )
        failure.__cause__ = self._error
        return failure

    def finish(self, *, interrupted: bool) -> None:
        """Say that nothing more will come. What is left is still sent; do not wait for it here."""
        self._end = "FAILED" if interrupted else "FINISHED"
        if self.outbox.dropped:
            self.outbox.put({METRICS_DROPPED: str(self.outbox.dropped)})
        self.outbox.close()

    def wait(self, timeout: float) -> None:
        """Wait until everything is delivered.

        Raises:
            OrmasError: the tracker failed.
            TimeoutError: `timeout` seconds were not enough; what is left is given up.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._abandoned = True
            raise TimeoutError(self._late(timeout))
        if self.failed:
            raise self.failure()

    def join(self) -> None:
        """Wait until the thread has ended, however it ended."""
        self._thread.join()

    def _work(self) -> None:
        try:
            client = connect(self.pin)
            run_id = self._open(client)
            pause = 0.0
            while (batch := self.outbox.take(pause)) is not None:
                self._sending = batch
                self._send(client, run_id, batch)
                self._sending, pause = None, _PAUSE_S
            if self.pin.owned and not self._abandoned:
                client.set_terminated(run_id, self._end)
        except Exception as error:  # noqa: BLE001 - the training thread reports it, whatever it is
            self._error = error

    def _open(self, client: MlflowClient) -> str:
        before, self._before = self._before, None
        if before is not None:
            before.join()
            self.run_id, self.earlier = before.run_id, before.earlier
        if self.run_id is None:
            self.run_id, self.earlier = create_run(client, self.pin), {}
        elif self.pin.owned:
            client.update_run(self.run_id, status="RUNNING")
        elif self.earlier is None:
            self.earlier = tags_of(client, self.run_id)
        return self.run_id

    def _send(self, client: MlflowClient, run_id: str, batch: Batch) -> None:
        """Send a batch in as few calls as the limits allow."""
        tags = [RunTag(*tag) for tag in with_earlier(batch.tags, self.earlier or {}).items()]
        metrics = [Metric(*value) for value in batch.metrics]
        for some_tags, some_metrics in zip_longest(
            _chunks(tags, TAGS_PER_CALL), _chunks(metrics, METRICS_PER_CALL), fillvalue=()
        ):
            client.log_batch(run_id, metrics=some_metrics, tags=some_tags)

    def _late(self, timeout: float) -> str:
        waiting, sending = self.outbox.drain(), self._sending or Batch()
        keys = [*dict.fromkeys([*sending.tags, *waiting.tags])]
        shown = ", ".join(keys[:_SHOWN_KEYS]) + (", ..." if len(keys) > _SHOWN_KEYS else "")
        values = len(sending.metrics) + len(waiting.metrics)
        end = "; the run is left running" if self.pin.owned and self.run_id else ""
        return (
            f"MLflow at {_public(self.pin.uri)} did not take everything within {timeout:g} s of "
            f"closing. Not delivered to run {self.run_id or '(not created)'}: {len(keys)} tags "
            f"({shown or 'none'}) and {values} metric values{end}. The record has it all; a larger "
            "close_timeout waits longer."
        )


def _public(text: str) -> str:
    """Return `text` without the user names and passwords of URIs: it goes into the record."""
    return _CREDENTIALS.sub("//", text)


def _brief(text: str) -> str:
    """Return the beginning and the end: what was tried is said first, and why it failed last."""
    if len(text) <= 2 * _ERROR_PART:
        return text
    return f"{text[:_ERROR_PART]} ... {text[-_ERROR_PART:]}"


def _chunks(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
