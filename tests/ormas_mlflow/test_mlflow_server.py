"""The sink against a real server: what goes over the wire, and what a dead one costs."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
from mlflow import MlflowClient
from mlflow_support import run_end, sql_store
from torch import nn

from ormas_core import (
    Alarm,
    Diagnosis,
    MemorySink,
    Monitor,
    MonitorConfig,
    OrmasError,
    SinkError,
    Stage,
    read_record,
)
from ormas_core.testing import check_sink, measurement, run_start
from ormas_mlflow import MLflowSink
from ormas_mlflow.outbox import Outbox
from ormas_mlflow.tags import alarm_key

pytestmark = sql_store


class Wire:
    """Every HTTP request of this process: its thread, the bodies of batches, how many got by."""

    def __init__(self) -> None:
        self.threads: set[str] = set()
        self.batches: list[dict[str, Any]] = []
        self.answered = 0
        self.gate = threading.Event()
        self.gate.set()

    def note(self, request: requests.PreparedRequest) -> None:
        """Remember a request; hold it back while the gate is closed."""
        self.threads.add(threading.current_thread().name)
        assert request.url is not None
        if request.url.endswith("/runs/log-batch"):
            assert request.body is not None
            self.batches.append(json.loads(request.body))
            self.gate.wait()


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """Listen at the lowest layer that every call of MLflow goes through."""
    heard = Wire()
    send = requests.adapters.HTTPAdapter.send

    def listening(
        self: requests.adapters.HTTPAdapter, request: requests.PreparedRequest, *a: Any, **kw: Any
    ) -> requests.Response:
        heard.note(request)
        response = send(self, request, *a, **kw)
        heard.answered = len(heard.batches)
        return response

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", listening)
    return heard


@pytest.fixture
def silent() -> Iterator[str]:
    """The URI of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://user:secret@127.0.0.1:{server.getsockname()[1]}"


def alarm(layer: str) -> Alarm:
    """A layer whose gradient has vanished."""
    return Alarm(
        step=60,
        layer=layer,
        diagnosis=Diagnosis.VANISHING,
        value=1e-9,
        normal=0.1,
        sigma=9.0,
        stage=Stage.UNSCALED,
    )


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another thread does."""
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("waited 30 s in vain")


def feed_until_it_fails(sink: MLflowSink) -> None:
    """A failure comes with the next event or, where there is none, with closing."""
    sink.write(run_start())
    sink.close()


def train(
    *sinks: Any, out: Path, steps: int, at: dict[int, Callable[[], None]] | None = None
) -> Monitor:
    """Train a small model; `at` has what else happens before a step."""
    torch.manual_seed(0)
    model, batch = nn.Linear(4, 1), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = MonitorConfig(check_every=1)
    with Monitor(model, optimizer, out, config=config, sinks=sinks, verbose=False) as monitor:
        for step in range(steps):
            (at or {}).get(step, lambda: None)()
            optimizer.zero_grad()
            loss = model(batch).pow(2).mean()
            loss.backward()
            monitor.step(loss)
            optimizer.step()
    return monitor


def test_contract_over_http(server: Any) -> None:
    """The sink contract holds against a server."""
    check_sink(lambda: MLflowSink(tracking_uri=server.uri), [measurement(0, {"a": 1.0}, loss=1.0)])


def test_hundreds_of_alarms_with_illegal_names(server: Any, wire: Wire) -> None:
    """400 long and illegal layer names: a tag each, the right count, and no limit is passed."""
    layers = [f"blocks[{number}]/../" + "x" * (number % 300) for number in range(398)]
    layers += ["w[0]", "w(0)"]
    sink = MLflowSink(tracking_uri=server.uri, experiment="alarms")
    for event in (run_start(layers), *map(alarm, layers)):
        sink.write(event)
    for step in range(350):
        sink.write(measurement(step, {"a": 1.0}, loss=1.0))
    sink.write(run_end())
    sink.close()
    assert sink.run_id is not None
    tags = MlflowClient(tracking_uri=server.uri).get_run(sink.run_id).data.tags
    assert tags["ormas.alarms"] == "400"
    found = {key: value for key, value in tags.items() if key.startswith("ormas.alarm.")}
    assert found.keys() == {alarm_key(layer) for layer in layers}
    assert len(found) == 400
    assert all("vanishing at step 60: 1e-09, normal 0.1" in value for value in found.values())
    for batch in wire.batches:
        sent, values = batch.get("tags", []), batch.get("metrics", [])
        assert len(sent) <= 100
        assert len(sent) + len(values) <= 1000
        assert all(len(tag["key"]) <= 250 and len(tag["value"]) < 5000 for tag in sent)
        assert len(json.dumps(batch)) < 1_000_000


def test_slow_server_costs_few_calls(server: Any, wire: Wire) -> None:
    """What gathers while a call is under way leaves in the next one, all of it."""
    wire.gate.clear()
    sink = MLflowSink(tracking_uri=server.uri, experiment="slow")
    sink.write(run_start())
    until(lambda: len(wire.batches) == 1)
    for step in range(250):
        sink.write(measurement(step, {"a": 1.0}, loss=1.0))
    sink.write(run_end())
    wire.gate.set()
    sink.close()
    assert [len(batch.get("metrics", [])) for batch in wire.batches] == [0, 750]


def test_dropped_metrics_are_counted_on_the_run(
    server: Any, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server too slow for the outbox costs metric values, which a tag owns up to; no alarm."""
    monkeypatch.setattr("ormas_mlflow.worker.Outbox", lambda: Outbox(metric_limit=3))
    wire.gate.clear()
    sink = MLflowSink(tracking_uri=server.uri, experiment="slow")
    sink.write(run_start())
    until(lambda: len(wire.batches) == 1)
    for step in range(10):
        sink.write(measurement(step, {"a": 1.0}, loss=1.0))
        sink.write(alarm(f"layer.{step}"))
    sink.write(run_end())
    wire.gate.set()
    sink.close()
    assert sink.run_id is not None
    data = MlflowClient(tracking_uri=server.uri).get_run(sink.run_id).data
    assert data.tags["ormas.metrics_dropped"] == "27"
    assert data.tags["ormas.alarms"] == "10"
    assert len([key for key in data.tags if key.startswith("ormas.alarm.")]) == 10


def test_training_thread_never_calls_the_tracker(server: Any, wire: Wire, tmp_path: Path) -> None:
    """Every request of a whole run, from creating it to ending it, is the worker's."""
    sink = MLflowSink(tracking_uri=server.uri, experiment="threads")
    train(sink, out=tmp_path / "run", steps=20)
    assert wire.threads == {"ormas-mlflow"}
    assert len(wire.batches) >= 1


def test_given_run_over_http(server: Any) -> None:
    """On a server, a run that is given is read, tagged, and left running."""
    client = MlflowClient(tracking_uri=server.uri)
    run_id = client.create_run(client.create_experiment("given")).info.run_id
    sink = MLflowSink(tracking_uri=server.uri, run_id=run_id)
    for event in (run_start(), alarm("fc1"), run_end()):
        sink.write(event)
    sink.close()
    run = client.get_run(run_id)
    assert run.info.status == "RUNNING"
    assert run.data.tags["ormas.alarm.fc1"] == "vanishing at step 60: 1e-09, normal 0.1"


def test_dead_tracker_from_the_start(wire: Wire, tmp_path: Path) -> None:
    """A port where nobody listens is one sink error; training and the other sinks go on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    memory = MemorySink()
    sink = MLflowSink(tracking_uri=f"http://127.0.0.1:{port}")
    monitor = train(sink, memory, out=tmp_path / "run", steps=30)
    assert monitor.facts.counts["sink_error"] == 1
    assert monitor.facts.checks == 30
    assert monitor.facts.status == "healthy"
    errors = [event for event in memory.events if isinstance(event, SinkError)]
    assert [error.sink for error in errors] == ["MLflowSink"]
    assert f"MLflow at http://127.0.0.1:{port} failed" in errors[0].error
    assert wire.threads == {"ormas-mlflow"}


def test_silent_tracker_is_left_behind_at_close(silent: str, tmp_path: Path) -> None:
    """A tracker that never answers costs `close_timeout` once; the error says what is missing."""
    sink = MLflowSink(tracking_uri=silent, close_timeout=0.2)
    monitor = train(sink, out=tmp_path / "run", steps=5)
    assert monitor.facts.counts["sink_error"] == 1
    events = [line.event for line in read_record(tmp_path / "run")]
    (error,) = [event.error for event in events if isinstance(event, SinkError)]
    assert error.startswith("TimeoutError: MLflow at http://127.0.0.1:")
    assert "within 0.2 s" in error
    assert "tags (ormas.status, ormas.alarms, ormas.run_id, ...) and 15 metric values" in error
    assert "run (not created)" in error
    assert "secret" not in error


def test_run_that_could_not_be_ended_is_said(server: Any, wire: Wire) -> None:
    """A server that hangs once the run is open leaves it open, and the error says so."""
    wire.gate.clear()
    sink = MLflowSink(tracking_uri=server.uri, experiment="stuck", close_timeout=0.1)
    sink.write(run_start())
    until(lambda: len(wire.batches) == 1)
    with pytest.raises(TimeoutError, match="the run is left running"):
        sink.close()
    worker = sink._latest
    assert worker is not None
    wire.gate.set()
    worker.join()
    assert sink.run_id is not None
    run = MlflowClient(tracking_uri=server.uri).get_run(sink.run_id)
    assert (run.info.status, run.data.tags["ormas.status"]) == ("RUNNING", "running")
    assert len(wire.batches) == 1


def test_given_up_worker_sends_nothing_later(silent: str) -> None:
    """After a timeout nothing is waiting any more, and closing again is quiet."""
    sink = MLflowSink(tracking_uri=silent, close_timeout=0)
    sink.write(run_start())
    worker = sink._worker
    assert worker is not None
    with pytest.raises(TimeoutError):
        sink.close()
    assert worker.outbox.drain().tags == {}
    sink.close()


def test_password_in_the_uri_stays_out_of_the_record() -> None:
    """An error goes into the record and to the other sinks, so it names the host only."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    sink = MLflowSink(tracking_uri=f"http://user:secret@127.0.0.1:{port}")
    with pytest.raises(OrmasError) as caught:
        feed_until_it_fails(sink)
    assert f"MLflow at http://127.0.0.1:{port} failed" in str(caught.value)
    assert "Connection refused" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "secret" not in caught.value.subject


def test_killed_server_costs_the_sink_and_nothing_else(
    server: Any, wire: Wire, tmp_path: Path
) -> None:
    """SIGKILL in the middle of training: one sink error, everything else goes on to the end."""
    sink, memory = MLflowSink(tracking_uri=server.uri, experiment="killed"), MemorySink()

    def kill() -> None:
        until(lambda: wire.answered >= 1)
        server.kill()

    monitor = train(sink, memory, out=tmp_path / "run", steps=60, at={20: kill})
    assert monitor.facts.counts["sink_error"] == 1
    assert monitor.facts.checks == 60
    assert monitor.facts.status == "healthy"
    assert memory.closed
    recorded = [line.event.kind for line in read_record(tmp_path / "run")]
    assert recorded.count("sink_error") == 1
    assert recorded.count("run_end") == 1
    assert [event.kind for event in memory.events].count("measurement") == 60
    assert wire.threads == {"ormas-mlflow"}
