"""What waits for a slow tracker is bounded, and tags are never what is given up."""

import threading

from ormas_mlflow.metrics import MetricValue
from ormas_mlflow.outbox import Batch, Outbox


def value(step: int) -> MetricValue:
    """A point of a curve."""
    return MetricValue("ormas.loss", 1.0, 0, step)


def test_everything_waiting_is_one_batch() -> None:
    """However many events there were, they leave together; of a tag, its latest value."""
    outbox = Outbox()
    for step in range(5):
        outbox.put({"ormas.alarms": str(step), f"ormas.alarm.{step}": "x"}, [value(step)])
    batch = outbox.take(0.0)
    assert batch is not None
    assert batch.tags["ormas.alarms"] == "4"
    assert len(batch.tags) == 6
    assert [metric.step for metric in batch.metrics] == [0, 1, 2, 3, 4]


def test_full_outbox_drops_the_oldest_metrics_and_counts_them() -> None:
    """Metrics give way; every tag stays."""
    outbox = Outbox(metric_limit=3)
    for step in range(10):
        outbox.put({f"ormas.alarm.{step}": "x"}, [value(step)])
    batch = outbox.drain()
    assert [metric.step for metric in batch.metrics] == [7, 8, 9]
    assert outbox.dropped == 7
    assert len(batch.tags) == 10


def test_closed_outbox_is_emptied_before_it_ends() -> None:
    """What was put before closing is still taken."""
    outbox = Outbox()
    outbox.put({"a": "1"})
    outbox.close()
    assert outbox.take(60.0) == Batch({"a": "1"})
    assert outbox.take(60.0) is None


def test_taking_waits_for_something() -> None:
    """The worker sleeps until there is something to send or nothing more will come."""
    outbox = Outbox()
    taken: list[Batch | None] = []
    taker = threading.Thread(target=lambda: taken.extend([outbox.take(0.0), outbox.take(0.0)]))
    taker.start()
    outbox.put({"a": "1"})
    outbox.close()
    taker.join()
    assert taken == [Batch({"a": "1"}), None]
