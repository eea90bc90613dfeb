"""What waits to be sent: filled by the training thread, emptied by the worker, bounded."""

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ormas_mlflow.metrics import MetricValue

METRIC_LIMIT: Final = 10_000


@dataclass(frozen=True, slots=True)
class Batch:
    """Tags and metric values that are sent together."""

    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[MetricValue, ...] = ()


class Outbox:
    """Holds the latest value of each tag and up to `metric_limit` metric values.

    When a tracker is too slow for that, the oldest metric values are dropped and counted. A tag is
    only ever replaced by its next value. No call waits for anything but a copy in memory, except
    `take`.
    """

    def __init__(self, metric_limit: int = METRIC_LIMIT) -> None:
        self._changed = threading.Condition()
        self._tags: dict[str, str] = {}
        self._metrics: deque[MetricValue] = deque(maxlen=metric_limit)
        self._limit = metric_limit
        self._closed = False
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """How many metric values were dropped so far."""
        return self._dropped

    def put(self, tags: Mapping[str, str], metrics: Iterable[MetricValue] = ()) -> None:
        """Add tags and metric values."""
        with self._changed:
            self._tags.update(tags)
            for value in metrics:
                self._dropped += len(self._metrics) == self._limit
                self._metrics.append(value)
            self._changed.notify()

    def close(self) -> None:
        """Say that nothing more will be put."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self, pause: float) -> Batch | None:
        """Wait for something and return all there is; None when closed and empty.

        Args:
            pause: seconds to let more gather first; closing ends them at once.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed, timeout=pause)
            self._changed.wait_for(lambda: self._closed or self._tags or self._metrics)
            return self._empty() if self._tags or self._metrics else None

    def drain(self) -> Batch:
        """Return all there is, without waiting."""
        with self._changed:
            return self._empty()

    def _empty(self) -> Batch:
        batch = Batch(self._tags, tuple(self._metrics))
        self._tags = {}
        self._metrics.clear()
        return batch
