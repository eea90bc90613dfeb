"""The sink on a real SQLite store: what lands there, what it refuses, and how it fails."""

import os
import pickle
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
from mlflow import MlflowClient, environment_variables
from mlflow_support import alarm, all_runs, feed, ormas_tags, sql_store
from tag_support import cleared
from torch import nn

from ormas_core import (
    Alarm,
    Anchor,
    ConfigError,
    LossRecovered,
    LossSpike,
    MemorySink,
    MissingExtraError,
    Monitor,
    MonitorConfig,
    OrmasError,
    read_record,
)
from ormas_core.testing import check_sink, measurement, run_start
from ormas_mlflow import MLflowSink

ROOT = Path(__file__).parents[2]

pytestmark = sql_store


def train(*sinks: Any, out: Path, steps: int = 40, explode_at: int = 30) -> Monitor:
    """A small torch loop in which layer `2` explodes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    config = MonitorConfig(check_every=1, warmup=8)
    with Monitor(model, optimizer, out, config=config, sinks=sinks, verbose=False) as monitor:
        for step in range(steps):
            optimizer.zero_grad()
            loss = model(torch.randn(16, 4)).pow(2).mean()
            loss.backward()
            if step >= explode_at:
                for parameter in model[2].parameters():
                    parameter.grad = parameter.grad * 1e6
            monitor.step(loss)
            if step < explode_at:
                optimizer.step()
    return monitor


def test_contract(store: str) -> None:
    """Closing without events, closing twice and a second run on the same sink all work."""
    events = [measurement(0, {"fc1": 1.0}, loss=1.0), alarm()]
    check_sink(lambda: MLflowSink(tracking_uri=store, experiment="contract"), events)


def test_closing_an_unused_sink_touches_nothing(store: str) -> None:
    """A sink that saw no run opens none."""
    before = all_runs(store).keys()
    MLflowSink(tracking_uri=store, experiment="unused").close()
    assert all_runs(store).keys() == before
    assert MlflowClient(tracking_uri=store).get_experiment_by_name("unused") is None


def test_monitor_end_to_end(store: str, tmp_path: Path) -> None:
    """A real loop with an exploding layer leaves verdict, alarm and head on the run."""
    sink, memory = MLflowSink(tracking_uri=store, experiment="loop"), MemorySink()
    monitor = train(sink, memory, out=tmp_path / "run")
    tags = ormas_tags(store, sink.run_id)
    facts = monitor.facts
    assert facts.counts.get("sink_error", 0) == 0
    found = [event for event in memory.events if isinstance(event, Alarm)]
    assert {event.layer for event in found} == {"2"}
    assert tags["ormas.alarm.2"] == (
        f"exploding at step {found[0].step}: {found[0].value:.3g}, normal {found[0].normal:.3g}"
    )
    assert tags["ormas.status"] == facts.status == "problem"
    assert tags["ormas.alarms"] == str(len(facts.alarms))
    assert tags["ormas.record.head"] == facts.head
    assert facts.start is not None
    assert tags["ormas.run_id"] == facts.start.run_id


def test_heads_of_anchors_arrive_while_the_run_is_going_on(store: str, tmp_path: Path) -> None:
    """A record that is rewritten later differs from them; they do not wait for the end."""
    sink = MLflowSink(tracking_uri=store, experiment="witness")
    model = nn.Linear(4, 1)
    config = MonitorConfig(check_every=1, anchor_every=2)
    monitor = Monitor(model, out=tmp_path / "run", config=config, sinks=[sink], verbose=False)
    for _ in range(4):
        model.zero_grad()
        loss = model(torch.ones(1, 4)).sum()
        loss.backward()
        monitor.step(loss)
    expected = [
        f"{line.event.lines}:{line.event.head}"
        for line in read_record(tmp_path / "run")
        if isinstance(line.event, Anchor)
    ]
    key = f"ormas.record.anchors.{monitor.run_id[:8]}.2"
    deadline = time.monotonic() + 60
    found = ""
    while found.split() != expected and time.monotonic() < deadline:
        time.sleep(0.1)
        found = ormas_tags(store, sink.run_id).get(key, "") if sink.run_id else ""
    assert len(expected) == 2
    assert found.split() == expected
    monitor.close()


def test_runs_with_a_problem_can_be_searched(store: str, tmp_path: Path) -> None:
    """The tags work in the filters that MLflow documents."""
    sink = MLflowSink(tracking_uri=store, experiment="search")
    train(sink, out=tmp_path / "bad")
    train(MLflowSink(tracking_uri=store, experiment="search"), out=tmp_path / "ok", explode_at=99)
    client = MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("search")
    assert experiment is not None
    for query in ("tags.`ormas.status` = 'problem'", "tags.`ormas.alarm.2` LIKE 'exploding%'"):
        found = client.search_runs([experiment.experiment_id], filter_string=query)
        assert [run.info.run_id for run in found] == [sink.run_id], query


def test_metrics_land_at_their_steps(store: str) -> None:
    """Every check is one point per curve, whatever the batches were."""
    sink = MLflowSink(tracking_uri=store, experiment="metrics")
    feed(sink, *(measurement(step, {"a": 3.0, "b": 4.0}, loss=0.5) for step in range(1200)))
    assert sink.run_id is not None
    client = MlflowClient(tracking_uri=store)
    for key, value in (
        ("ormas.loss", 0.5),
        ("ormas.gradient_norm", 5.0),
        ("ormas.layers_without_gradient", 0.0),
    ):
        points = client.get_metric_history(sink.run_id, key)
        assert sorted(point.step for point in points) == list(range(1200))
        assert {point.value for point in points} == {value}


def test_many_layers_are_still_three_curves(store: str) -> None:
    """There is no metric per layer: over 1,000 on one step break a later `log_model`."""
    sink = MLflowSink(tracking_uri=store, experiment="metrics")
    feed(sink, measurement(0, {f"layer.{number}": 1.0 for number in range(1500)}, loss=0.5))
    assert sink.run_id is not None
    assert len(MlflowClient(tracking_uri=store).get_run(sink.run_id).data.metrics) == 3


def test_embedded_store_writes_nothing_elsewhere(tmp_path: Path) -> None:
    """The embedded store is one file in its folder; artifacts of the run would be there too."""
    folder = tmp_path / "my run #1 (50%) é"
    sink = MLflowSink.embedded(folder)
    feed(sink, alarm())
    # MLflow 2 makes an empty folder there for its own default, whatever store it is given.
    own = [Path.cwd() / "mlruns"] if mlflow.__version__.startswith("2.") else []
    assert list(Path.cwd().rglob("*")) == own
    assert {path.name for path in tmp_path.iterdir()} == {"cwd", folder.name}
    assert {path.name for path in folder.iterdir()} == {"mlflow.db"}
    assert sink.run_id is not None
    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    assert client.get_run(sink.run_id).data.tags["ormas.alarms"] == "1"
    note = tmp_path / "note.txt"
    note.write_text("a user's artifact")
    client.log_artifact(sink.run_id, str(note))
    assert list(Path.cwd().rglob("*")) == own
    assert len(list((folder / "mlartifacts").rglob("note.txt"))) == 1


def test_missing_run_is_one_sink_error(store: str, tmp_path: Path) -> None:
    """A run that does not exist costs the sink; the record and the other sinks get everything."""
    sink, memory = MLflowSink(tracking_uri=store, run_id="0" * 32), MemorySink()
    monitor = train(sink, memory, out=tmp_path / "run")
    assert monitor.facts.counts["sink_error"] == 1
    assert monitor.facts.status == "problem"
    assert memory.closed
    assert "0" * 32 in next(e.error for e in memory.events if e.kind == "sink_error")  # type: ignore[union-attr]


@pytest.mark.skipif(
    not hasattr(environment_variables, "MLFLOW_ALLOW_FILE_STORE"),
    reason="this MLflow takes a plain folder",
)
def test_folder_store_is_refused_with_a_hint(tmp_path: Path) -> None:
    """Where MLflow refuses a plain folder, the error says in one line what to use instead."""
    sink = MLflowSink(tracking_uri=f"file://{tmp_path}/mlruns")
    with pytest.raises(OrmasError, match=r"MLflowSink\.embedded\(folder\)") as caught:
        feed(sink)
    assert "\n" not in str(caught.value)
    assert "MlflowException" in str(caught.value)
    sink.close()


def test_failure_is_said_once(store: str) -> None:
    """After the error was raised, the sink stays silent, and a new run tries anew."""
    sink = MLflowSink(tracking_uri=store, run_id="0" * 32)
    with pytest.raises(OrmasError):
        feed(sink)
    sink.write(alarm())
    sink.close()
    with pytest.raises(OrmasError):
        feed(sink)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("tracking_uri", ""),
        ("tracking_uri", Path("x")),
        ("run_id", 7),
        ("experiment", None),
        ("artifact_location", ""),
        ("close_timeout", -1),
        ("close_timeout", float("nan")),
        ("close_timeout", True),
    ],
)
def test_bad_options_are_refused_at_once(option: str, value: object) -> None:
    """An unusable option is an error before training, with its name and value."""
    with pytest.raises(ConfigError, match=option) as caught:
        MLflowSink(**{option: value})  # type: ignore[arg-type]
    assert caught.value.subject == option


def test_folder_that_no_uri_can_name_is_refused(tmp_path: Path) -> None:
    """A database URI ends at a question mark; a store under another name would be worse."""
    with pytest.raises(ConfigError, match="question mark"):
        MLflowSink.embedded(tmp_path / "why?")


def test_copies_are_fresh_sinks(store: str) -> None:
    """A sink can be sent to another process at any time; the copy has the settings only."""
    sink = MLflowSink(tracking_uri=store, experiment="copies", close_timeout=3)
    sink.write(run_start())
    copy = pickle.loads(pickle.dumps(sink))  # noqa: S301 - our own bytes
    sink.close()
    assert copy.run_id is None
    feed(copy)
    assert copy.run_id not in {None, sink.run_id}


def test_each_optimizer_has_its_own_episodes_and_curves(store: str) -> None:
    """A spike that ends for one leaves that of the other open; likewise for a layer of both."""
    disc, gen = "0:SGD", "1:Adam"
    spike = LossSpike(step=12, value=9.0, normal=1.0, sigma=8.0)
    over = LossRecovered(step=16, value=1.0, normal=1.0, since_step=12)
    sink = MLflowSink(tracking_uri=store, experiment="lanes")
    feed(
        sink,
        *(replace(measurement(12, {"a": 3.0}, loss=2.0), lane=lane) for lane in (disc, gen)),
        *(replace(alarm("shared", step=12), lane=lane) for lane in (disc, gen)),
        replace(spike, lane=disc),
        replace(spike, step=13, lane=gen),
        replace(over, lane=disc),
        replace(cleared("shared", step=16), lane=gen),
    )
    tags = ormas_tags(store, sink.run_id)
    assert tags["ormas.loss"] == (
        "spike at step 12 (0:SGD): 9, normal 1 (recovered at step 16); "
        "spike at step 13 (1:Adam): 9, normal 1"
    )
    assert tags["ormas.alarm.shared"] == (
        "exploding at step 12 (0:SGD): 100, normal 1; "
        "exploding at step 12 (1:Adam): 100, normal 1 (cleared at step 16)"
    )
    assert sink.run_id is not None
    metrics = MlflowClient(tracking_uri=store).get_run(sink.run_id).data.metrics
    assert {key for key in metrics if ".loss" in key} == {
        "ormas.loss.0_SGD",
        "ormas.loss.1_Adam",
    }


def test_missing_mlflow_says_what_to_install(tmp_path: Path) -> None:
    """Without MLflow the import fails with the pip line."""
    (tmp_path / "mlflow.py").write_text("raise ImportError('not installed')")
    script = "import ormas_core\ntry:\n    import ormas_mlflow\nexcept ImportError as e:\n"
    script += f"    assert type(e) is ormas_core.{MissingExtraError.__name__}\n    print(e)\n"
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pip install 'ormas[mlflow]'" in done.stdout


def test_process_exits_with_an_unclosed_sink_on_a_dead_tracker(tmp_path: Path) -> None:
    """A worker that is still trying a dead tracker does not keep the interpreter alive."""
    script = textwrap.dedent("""
        import socket
        from ormas_core.testing import run_start
        from ormas_mlflow import MLflowSink
        silent = socket.create_server(("127.0.0.1", 0))
        sink = MLflowSink(tracking_uri=f"http://127.0.0.1:{silent.getsockname()[1]}")
        sink.write(run_start())
        silent.accept()  # the worker is in its first call now, and nobody will answer
        print("trained")
    """)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_HTTP_REQUEST_TIMEOUT": "600"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "trained\n"
