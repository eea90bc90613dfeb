"""What a Lightning Trainer does besides training, and every way a fit can end."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.tuner import Tuner
from lightning_support import lit, make, scaled_step
from support import Toy, add_layers, lightning_net, lightning_trainer, loader, of, toy_loss
from torch import Tensor
from torch.nn.modules import module as module_globals
from torch.utils.data import DataLoader

from ormas_core import (
    Measurement,
    MemorySink,
    NonfiniteLoss,
    RunEnd,
    RunResumed,
    RunStart,
    Status,
    verify_record,
)

# The finders of Lightning write and remove a checkpoint in a folder of the test, and say so.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers", "ignore:Checkpoint directory"
)


class Tunable(LightningModule):
    """Has a rate to find and a batch size to find."""

    def __init__(self) -> None:
        super().__init__()
        add_layers(self)
        self.lr, self.batch_size = 1e-3, 4

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Toy(8), batch_size=self.batch_size)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return toy_loss(self, **batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class EveryStep(Tunable):
    """Has every kind of step."""

    validation_step = test_step = predict_step = Tunable.training_step


def events(sink: MemorySink) -> list[tuple[int, Status]]:
    return [(e.steps, e.status) for e in of(sink, RunEnd)]


@pytest.mark.parametrize("first", ["finder", "monitor"])
def test_case_52_a_learning_rate_finder_is_not_seen(tmp_path: Path, first: str) -> None:
    """Its hidden fit makes no record line and moves no baseline, in either order, in either fit.

    A second fit of the same callback is a new segment, not one that resumes.
    """
    callback, sink = make(tmp_path)
    finder = LearningRateFinder(max_lr=10.0, num_training_steps=15)
    callbacks = [finder, callback] if first == "finder" else [callback, finder]
    for _ in range(2):
        trainer = lightning_trainer(tmp_path, callbacks, max_steps=12, max_epochs=-1)
        trainer.fit(Tunable())
    assert len(finder.optimal_lr.results["loss"]) >= 10
    assert [m.step for m in of(sink, Measurement)] == [*range(12)] * 2
    assert len(of(sink, RunStart)) == 2
    assert of(sink, RunResumed) == []
    assert [steps for steps, _ in events(sink)] == [12, 12]
    assert not any(status is Status.PROBLEM for _, status in events(sink))


def test_a_batch_size_finder_is_not_seen(tmp_path: Path) -> None:
    """Only the fit with the size that was found is recorded."""
    callback, sink = make(tmp_path)
    finder = BatchSizeFinder(steps_per_trial=2, max_trials=3, init_val=2)
    net = Tunable()
    lightning_trainer(tmp_path, [callback, finder], max_steps=5, max_epochs=-1).fit(net)
    assert net.batch_size > 4
    assert [m.step for m in of(sink, Measurement)] == list(range(5))
    assert len(of(sink, RunStart)) == 1


def test_the_tuner_leaves_no_record(tmp_path: Path) -> None:
    """`Tuner.lr_find` and `scale_batch_size` are no training; the fit after them is the first."""
    callback, sink = make(tmp_path)
    net = Tunable()
    tuner = Tuner(lightning_trainer(tmp_path, [callback], max_epochs=1))
    tuner.scale_batch_size(net, steps_per_trial=2, max_trials=2, init_val=2)
    tuner.lr_find(net, num_training=10, max_lr=10.0)
    assert sink.events == []
    assert not (tmp_path / "run").exists()
    lightning_trainer(tmp_path, [callback], max_steps=3, max_epochs=-1).fit(net)
    assert [m.step for m in of(sink, Measurement)] == [0, 1, 2]
    assert [e.segment for e in of(sink, RunStart)] == [0]


def test_validate_test_and_predict_are_no_training(tmp_path: Path) -> None:
    """Before and after a fit, with its sanity check, they leave record and events alone."""
    callback, sink = make(tmp_path)
    trainer, net = lightning_trainer(tmp_path, [callback]), EveryStep()
    trainer.validate(net, loader(2), verbose=False)
    assert sink.events == []
    trainer.fit(net, loader(3), loader(2))
    before = (tmp_path / "run" / "record.jsonl").read_bytes()
    trainer.validate(net, loader(2), verbose=False)
    trainer.test(net, loader(2), verbose=False)
    assert len(trainer.predict(net, loader(2))) == 2
    assert (tmp_path / "run" / "record.jsonl").read_bytes() == before
    assert [m.step for m in of(sink, Measurement)] == [0, 1, 2]
    assert not module_globals._global_forward_hooks


def test_fast_dev_run_does_not_occupy_the_run_folder(tmp_path: Path) -> None:
    """Its record is beside it and is overwritten; the real fit after it begins a record."""
    for _ in range(2):
        callback, sink = make(tmp_path)
        lightning_trainer(tmp_path, [callback], fast_dev_run=2).fit(lightning_net(), loader())
        assert [m.step for m in of(sink, Measurement)] == [0, 1]
        assert not (tmp_path / "run").exists()
        assert verify_record(tmp_path / "run_fast_dev_run").complete
    lightning_trainer(tmp_path, [callback]).fit(lightning_net(), loader(3))
    assert [e.segment for e in of(sink, RunStart)] == [0, 0]
    assert len({e.run_id for e in of(sink, RunStart)}) == 2
    assert verify_record(tmp_path / "run").complete


def test_case_47_two_callbacks_in_one_trainer_keep_apart(tmp_path: Path) -> None:
    """Each with its own folder, settings and state key; the checkpoint loads with weights_only."""
    sparse, one = make(tmp_path / "one", check_every=5)
    dense, two = make(tmp_path / "two")
    trainer = lightning_trainer(tmp_path, [sparse, dense])
    trainer.fit(lightning_net(), loader(10))
    assert [m.step for m in of(one, Measurement)] == [0, 5]
    assert [m.step for m in of(two, Measurement)] == list(range(10))
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    saved = torch.load(tmp_path / "saved.ckpt", weights_only=True)["callbacks"]
    assert {key for key in saved if key.startswith("ormas:")} == {
        sparse.state_key,
        dense.state_key,
    }
    assert saved[sparse.state_key]["run_id"] != saved[dense.state_key]["run_id"]
    assert all(verify_record(tmp_path / name / "run").complete for name in ("one", "two"))


class Raises(Callback):
    """Interrupts the fit after three steps."""

    def __init__(self, how: Any) -> None:
        self.how = how

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == 3:
            self.how()


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("how", "error"),
    [
        (interrupt, "KeyboardInterrupt"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "SIGTERMException"),
    ],
    ids=["ctrl-c", "sigterm"],
)
def test_an_interrupted_fit_is_closed_with_the_reason(tmp_path: Path, how: Any, error: str) -> None:
    """Ctrl-C, which Lightning turns into a graceful stop, and a scheduler's SIGTERM."""
    callback, sink = make(tmp_path)
    handler, on_ctrl_c = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    trainer = lightning_trainer(tmp_path, [callback, Raises(how)])
    try:
        with pytest.raises(SystemExit):
            trainer.fit(lightning_net(), loader(8))
    finally:
        signal.signal(signal.SIGINT, on_ctrl_c)  # Lightning leaves it ignored
    assert signal.getsignal(signal.SIGTERM) is handler
    (end,) = of(sink, RunEnd)
    assert (end.status, end.error) == (Status.INTERRUPTED, error)
    assert end.steps in (3, 4)  # SIGTERM is heeded at the next batch
    assert verify_record(tmp_path / "run").complete
    assert not module_globals._global_forward_hooks


def test_stop_on_ends_the_fit_as_lightning_does(tmp_path: Path) -> None:
    """`trainer.should_stop` is set at the check that saw it, and the fit ends with that batch."""
    callback, sink = make(tmp_path, stop_on="nonfinite_loss")
    trainer = lightning_trainer(tmp_path, [callback])
    trainer.fit(lit(training_step=scaled_step({4: float("nan")})), loader(20))
    assert [e.step for e in of(sink, NonfiniteLoss)] == [4]
    assert trainer.should_stop
    assert trainer.global_step == of(sink, RunEnd)[0].steps == 5
    assert callback.monitor is not None
    assert callback.monitor.facts.stopped is not None


def test_fsdp_is_refused_by_lightning_without_a_gpu(tmp_path: Path) -> None:
    """By the trainer itself, before any callback is asked; `ModelParallelStrategy` is not."""
    callback, sink = make(tmp_path)
    with pytest.raises(Exception, match=r"(?i)fsdp.*(gpu|cuda)"):
        lightning_trainer(tmp_path, [callback], strategy="fsdp")
    assert sink.events == []
