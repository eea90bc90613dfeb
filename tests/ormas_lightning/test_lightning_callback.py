"""The Lightning callback in real fits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning_support import make
from support import Toy, add_layers, lightning_net, lightning_trainer, loader, of, toy_loss, weights
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.modules import module as module_globals
from torch.utils.data import DataLoader

from ormas_core import (
    ConfigError,
    Manifest,
    Measurement,
    NonfiniteLoss,
    RecordExistsError,
    RunEnd,
    RunStart,
    Stage,
    Status,
    UnknownOptionError,
    read_record,
    verify_record,
)
from ormas_lightning import LightningMonitorCallback


class ConstantLoss(nn.Module):
    """Gives the loss 2.0 whatever the batch, with a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 1)

    def value(self, x: Tensor) -> Tensor:
        return 2.0 + 0.0 * self.fc(x).mean() + (self.fc.weight - self.fc.weight.detach()).sum()


def test_fit_is_bit_identical_with_and_without_the_callback(tmp_path: Path) -> None:
    """All weights after 40 steps are equal."""
    found = []
    for callbacks in ([], [make(tmp_path)[0]]):
        net = lightning_net()
        lightning_trainer(tmp_path, callbacks).fit(net, loader())
        found.append(weights(net))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_no_hook_on_unsampled_steps(tmp_path: Path) -> None:
    """Hooks exist in the batches of sampled steps only, and none is ever on a module."""
    hooked = {}

    class Look(Callback):
        def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
            hooked[trainer.global_step] = bool(module_globals._global_forward_hooks)
            assert not any(m._forward_hooks or m._backward_hooks for m in pl_module.modules())

    callback, _ = make(tmp_path, check_every=10)
    lightning_trainer(tmp_path, [callback, Look()]).fit(lightning_net(), loader())
    assert hooked == {step: step % 10 == 0 for step in range(40)}


def test_validation_between_steps_runs_without_hooks(tmp_path: Path) -> None:
    """Neither the sanity check nor validation sees a hook, whatever is sampled next."""
    seen = []

    class Net(type(lightning_net())):  # type: ignore[misc]
        def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
            seen.append(bool(module_globals._global_forward_hooks))
            toy_loss(self, **batch)

    callback, sink = make(tmp_path)
    trainer = lightning_trainer(tmp_path, [callback], val_check_interval=10)
    trainer.fit(Net(), loader(), loader(2))
    assert len(seen) > 8
    assert not any(seen)
    assert len(of(sink, Measurement)) == 40


def test_clipping_happens_after_the_check(tmp_path: Path) -> None:
    """Norms and stage are those before `gradient_clip_val`."""
    found = []
    for clip in (None, 1e-4):
        callback, sink = make(tmp_path / str(clip))
        lightning_trainer(tmp_path, [callback], gradient_clip_val=clip).fit(
            lightning_net(), loader(1)
        )
        found.append(of(sink, Measurement)[0])
    assert [m.stage for m in found] == [Stage.UNSCALED, Stage.PRE_CLIP]
    assert found[0].norms == found[1].norms


def test_case_40_one_judgement_per_update_and_the_true_loss(tmp_path: Path) -> None:
    """10 batches, accumulation 4, two epochs: six checks of loss 2.0, the short window included."""
    from lightning.pytorch import LightningModule

    class Net(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = ConstantLoss()

        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            return self.net.value(batch["x"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback, sink = make(tmp_path)
    trainer = lightning_trainer(tmp_path, [callback], max_epochs=2, accumulate_grad_batches=4)
    data = torch.utils.data.Subset(Toy(), range(10))
    trainer.fit(Net(), DataLoader(data, batch_size=1))
    assert [m.loss for m in of(sink, Measurement)] == pytest.approx([2.0] * 6)
    assert of(sink, RunEnd)[0].steps == trainer.global_step == 6


def test_a_real_scaler_gives_unscaled_norms_and_the_true_loss(tmp_path: Path) -> None:
    """Under fp16 with an active CPU scaler, norm and loss are near those of the fp32 fit."""
    found = []
    for plugins in ([], [MixedPrecision("16-mixed", "cpu", scaler=GradScaler("cpu"))]):
        callback, sink = make(tmp_path / str(len(plugins)))
        lightning_trainer(tmp_path, [callback], plugins=plugins).fit(lightning_net(), loader(3))
        found.append(of(sink, Measurement))
    plain, scaled = found
    assert [m.scale for m in scaled] == [65536.0] * 3
    assert {m.stage for m in scaled} == {Stage.UNSCALED}
    for expected, seen in zip(plain, scaled, strict=True):
        assert seen.loss == pytest.approx(expected.loss, rel=1e-2)
        assert seen.norms == pytest.approx(expected.norms, rel=5e-2)


def test_case_35_fit_twice_is_two_segments_with_new_baselines(tmp_path: Path) -> None:
    """One record, two segments, no alarm from the first fit's baseline, one set of hooks."""
    callback, sink = make(tmp_path)
    for scale in (1.0, 1e6):

        class Net(type(lightning_net())):  # type: ignore[misc]
            def training_step(
                self, batch: dict[str, Tensor], batch_idx: int, scale: float = scale
            ) -> Tensor:
                return toy_loss(self, **batch) * scale

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.SGD(self.parameters(), lr=1e-9)

        lightning_trainer(tmp_path, [callback]).fit(Net(), loader(20))
    assert [e.segment for e in of(sink, RunStart)] == [0, 1]
    assert len({e.run_id for e in of(sink, RunStart)}) == 1
    assert [e.status for e in of(sink, RunEnd)] == [Status.HEALTHY] * 2
    assert [m.step for m in of(sink, Measurement)] == [*range(20)] * 2
    assert verify_record(tmp_path / "run").complete
    callback.teardown(lightning_trainer(tmp_path), lightning_net(), "fit")
    assert len(of(sink, RunEnd)) == 2


def test_an_exception_in_training_closes_the_record_as_interrupted(tmp_path: Path) -> None:
    """The user's exception comes through; the record ends and verifies."""

    class Net(type(lightning_net())):  # type: ignore[misc]
        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            if batch_idx == 5:
                raise ZeroDivisionError
            return toy_loss(self, **batch)

    callback, sink = make(tmp_path)
    with pytest.raises(ZeroDivisionError):
        lightning_trainer(tmp_path, [callback]).fit(Net(), loader())
    end = of(sink, RunEnd)[0]
    assert (end.status, end.error, end.steps) == (Status.INTERRUPTED, "ZeroDivisionError", 5)
    assert verify_record(tmp_path / "run").complete
    assert not module_globals._global_forward_hooks


def test_a_nan_loss_is_critical_at_its_step(tmp_path: Path) -> None:
    """The loss that `training_step` returns is what is judged."""

    class Net(type(lightning_net())):  # type: ignore[misc]
        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            return toy_loss(self, **batch) * (float("nan") if batch_idx == 7 else 1.0)

    callback, sink = make(tmp_path)
    lightning_trainer(tmp_path, [callback]).fit(Net(), loader(8))
    assert [e.step for e in of(sink, NonfiniteLoss)] == [7]


def test_wrong_options_fail_where_the_callback_is_constructed() -> None:
    """A misspelt option is a TypeError, a bad value a ValueError."""
    with pytest.raises(UnknownOptionError, match="chek_every"):
        LightningMonitorCallback(chek_every=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="sigma"):
        LightningMonitorCallback(sigma=-1)


def test_a_foreign_record_is_refused_before_training(tmp_path: Path) -> None:
    """The first fit of a callback does not append to a record that was there."""
    lightning_trainer(tmp_path, [make(tmp_path)[0]]).fit(lightning_net(), loader(1))
    before = (tmp_path / "run" / "record.jsonl").read_bytes()
    with pytest.raises(RecordExistsError):
        lightning_trainer(tmp_path, [make(tmp_path)[0]]).fit(lightning_net(), loader(1))
    assert (tmp_path / "run" / "record.jsonl").read_bytes() == before


def test_no_optimizer_is_said_and_the_fit_goes_on(tmp_path: Path) -> None:
    """A module without optimizers is watched by its own backward passes; the manifest says so."""
    from lightning.pytorch import LightningModule

    class Net(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            add_layers(self)

        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            return toy_loss(self, **batch)

        def configure_optimizers(self) -> None:
            return None

    callback, sink = make(tmp_path)
    with pytest.warns(UserWarning, match="run with no optimizer"):
        lightning_trainer(tmp_path, [callback]).fit(Net(), loader(3))
    lines = {m.name: m for m in of(sink, Manifest)[0].mechanisms}
    assert lines["optimizer"].state.value == "off"
    assert "no torch optimizer" in lines["optimizer"].reason
    assert [m.has_gradient for m in of(sink, Measurement)] == [True] * 3


def test_the_record_is_readable_while_the_fit_runs(tmp_path: Path) -> None:
    """Every event is on disk as soon as it is said."""
    lines = []

    class Look(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            lines.append(sum(1 for _ in read_record(tmp_path / "run")))

    callback, _ = make(tmp_path)
    lightning_trainer(tmp_path, [callback, Look()]).fit(lightning_net(), loader(3))
    assert lines[0] >= 2


def test_an_optimizer_with_a_closure_counts_its_steps_and_not_its_evaluations(
    tmp_path: Path,
) -> None:
    """LBFGS evaluates many times in one step; the record has one check per step."""

    class Net(type(lightning_net())):  # type: ignore[misc]
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.LBFGS(self.parameters(), lr=1e-3, max_iter=5)

    callback, sink = make(tmp_path)
    trainer = lightning_trainer(tmp_path, [callback])
    trainer.fit(Net(), loader(4))
    assert of(sink, RunEnd)[0].steps == len(of(sink, Measurement)) == trainer.global_step == 4


def test_the_sink_follows_lightnings_own_mlflow_logger(tmp_path: Path) -> None:
    """With `MLFlowLogger`, a plain `MLflowSink()` tags the logger's run and opens none."""
    from lightning.pytorch.loggers import MLFlowLogger
    from mlflow import MlflowClient

    from ormas_mlflow import MLflowSink

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    logger = MLFlowLogger("mine", tracking_uri=uri, artifact_location=str(tmp_path / "artifacts"))
    callback, _ = make(tmp_path)
    callback._options["sinks"] = (*callback._options["sinks"], MLflowSink(close_timeout=60.0))
    trainer = lightning_trainer(tmp_path, [callback], logger=logger, log_every_n_steps=1)
    trainer.fit(lightning_net(), loader(12))
    client = MlflowClient(tracking_uri=uri)
    experiments = [e.experiment_id for e in client.search_experiments()]
    (run,) = client.search_runs(experiments)
    assert run.info.run_id == logger.run_id
    assert run.data.tags["ormas.record.head"] == verify_record(tmp_path / "run").head
