"""Metrics and alarms in the trainer's own loggers."""

import csv
import threading
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning_support import Gan, lit, make, scaled_step
from support import lightning_net, lightning_trainer, loader, of

from ormas_core import Alarm, ConfigError, Manifest, Measurement, RunEnd, SinkError, Status
from ormas_lightning import loggers

EXPLODING = {20: 1e6, 21: 1e6}


class Slow(DummyLogger):
    """Answers only when it is allowed to, as a server that is away."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = threading.Event()
        self.threads: set[str] = set()
        self.steps: list[int] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if any(name.startswith(loggers.PREFIX) for name in metrics):
            self.allowed.wait(30.0)
            self.threads.add(threading.current_thread().name)
            self.steps.append(-1 if step is None else step)


class Broken(DummyLogger):
    """Raises at every call that is ours."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if any(name.startswith(loggers.PREFIX) for name in metrics):
            raise OSError("no space left")


def fit(folder: Path, callback: Any, net: Any, batches: int, logger: Any) -> None:
    """Fit with loggers that the trainer itself writes to at every step."""
    options = {"logger": logger, "log_every_n_steps": 1}
    lightning_trainer(folder, [callback], **options).fit(net, loader(batches))


def test_csv_and_tensorboard_get_metrics_and_alarms(tmp_path: Path) -> None:
    """At the trainer's steps; per layer as far as a pattern wants, alarms of every layer."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    table = CSVLogger(tmp_path, name="csv")
    board = TensorBoardLogger(tmp_path, name="board")
    callback, sink = make(tmp_path, to_loggers="fc1")
    fit(tmp_path, callback, lit(training_step=scaled_step(EXPLODING)), 24, [table, board])
    with (Path(table.log_dir) / "metrics.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    checks = of(sink, Measurement)
    alarms = of(sink, Alarm)
    assert {alarm.layer for alarm in alarms} == {"fc1", "fc2", "fc3"}
    losses = {int(row["step"]): float(row["ormas/loss"]) for row in rows if row["ormas/loss"]}
    assert losses == pytest.approx({m.step: m.loss for m in checks})
    names = {name for name in rows[0] if name.startswith("ormas/gradient_norm")}
    assert names == {"ormas/gradient_norm", "ormas/gradient_norm/fc1"}
    raised = [row for row in rows if row["ormas/alarm/fc3"]]
    assert (raised[0]["step"], float(raised[0]["ormas/alarm/fc3"])) == ("20", 1.0)
    events = EventAccumulator(board.log_dir)
    events.Reload()
    points = {point.step: point.value for point in events.Scalars("ormas/gradient_norm/fc1")}
    fc1 = {m.step: dict(zip(m.layers, m.norms, strict=True))["fc1"] for m in checks}
    assert points == pytest.approx(fc1, rel=1e-5)
    assert events.Scalars("ormas/alarms")[-1].value == len(
        [e for e in sink.events if e.kind in {"alarm", "loss_spike"}]
    )


def test_mlflow_gets_them_through_lightnings_logger(tmp_path: Path) -> None:
    """In the logger's own run, with each optimizer's curves under its name."""
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    logger = MLFlowLogger("mine", tracking_uri=uri, artifact_location=str(tmp_path / "artifacts"))
    callback, _ = make(tmp_path, to_loggers=["gen.*"])
    fit(tmp_path, callback, Gan(), 4, logger)
    metrics = logger.experiment.get_run(logger.run_id).data.metrics
    ours = {name for name in metrics if name.startswith("ormas/")}
    assert {name for name in ours if "gradient_norm/" in name} == {
        "ormas/1_Adam/gradient_norm/gen.0",
        "ormas/1_Adam/gradient_norm/gen.2",
    }
    assert {"ormas/0_SGD/loss", "ormas/1_Adam/loss", "ormas/alarms"} <= ours
    history = logger.experiment.get_metric_history(logger.run_id, "ormas/0_SGD/loss")
    assert [point.step for point in history] == [0, 2, 4, 6]


@pytest.mark.usefixtures("offline_wandb")
def test_wandb_gets_them_offline(tmp_path: Path) -> None:
    """Through `WandbLogger`, without a network."""
    from lightning.pytorch.loggers import WandbLogger

    logger = WandbLogger(save_dir=str(tmp_path), offline=True, project="ours")
    callback, sink = make(tmp_path, to_loggers=True)
    try:
        fit(tmp_path, callback, lightning_net(), 3, logger)
        last = of(sink, Measurement)[-1]
        assert logger.experiment.summary["ormas/loss"] == pytest.approx(last.loss)
        assert logger.experiment.summary["ormas/alarms"] == 0.0
        assert logger.experiment.summary["ormas/gradient_norm/fc2"] == pytest.approx(
            dict(zip(last.layers, last.norms, strict=True))["fc2"]
        )
    finally:
        logger.experiment.finish()
    assert not of(sink, SinkError)


def test_a_slow_logger_does_not_hold_training(tmp_path: Path) -> None:
    """It is called in another thread: the fit is over before its first call has returned."""
    slow = Slow()
    callback, sink = make(tmp_path, to_loggers=True)
    net = lit(on_train_end=lambda self: slow.allowed.set())
    fit(tmp_path, callback, net, 5, slow)
    assert slow.threads == {"ormas-logger"}
    assert slow.steps == [0, 1, 2, 3, 4, 5]
    assert not of(sink, SinkError)


def test_what_a_slow_logger_did_not_take_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is bounded, so is the wait at the end, and the number left out is in the record."""
    monkeypatch.setattr(loggers, "MOST_WAITING", 2)
    monkeypatch.setattr(loggers, "LAST_WAIT_S", 0.01)
    slow = Slow()
    callback, sink = make(tmp_path, to_loggers=True)
    fit(tmp_path, callback, lightning_net(), 6, slow)
    slow.allowed.set()
    (failure,) = of(sink, SinkError)
    assert "Slow is too slow" in failure.error
    assert len(of(sink, Measurement)) == 6


def test_a_broken_logger_is_dropped_and_the_others_go_on(tmp_path: Path) -> None:
    """One `sink_error`, no exception in training, and a table with every step."""
    table = CSVLogger(tmp_path, name="csv")
    callback, sink = make(tmp_path, to_loggers=True)
    fit(tmp_path, callback, lightning_net(), 20, [Broken(), table])
    (failure,) = of(sink, SinkError)
    assert (failure.sink, failure.error) == ("LoggerSink", "OSError: no space left")
    assert of(sink, RunEnd)[0].status is Status.HEALTHY
    text = (Path(table.log_dir) / "metrics.csv").read_text(encoding="utf-8")
    assert len(text.splitlines()) >= 21


def test_without_loggers_the_manifest_says_so(tmp_path: Path) -> None:
    """Asked for, and nowhere to send it."""
    callback, sink = make(tmp_path, to_loggers=True)
    lightning_trainer(tmp_path, [callback]).fit(lightning_net(), loader(1))
    lines = {m.name: m for m in of(sink, Manifest)[0].mechanisms}
    assert lines["loggers"].state.value == "off"


@pytest.mark.parametrize("wanted", [1, [""], ["a", 2]])
def test_what_is_no_pattern_is_refused_at_once(tmp_path: Path, wanted: Any) -> None:
    """Where the callback is constructed."""
    with pytest.raises(ConfigError, match="to_loggers"):
        make(tmp_path, to_loggers=wanted)
