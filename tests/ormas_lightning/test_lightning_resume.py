"""Lightning fits that resume from a checkpoint, in a process that knows of no earlier one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from support import lightning_net, lightning_trainer, loader

from ormas_core import (
    Measurement,
    MemorySink,
    RecordExistsError,
    RunResumed,
    RunStart,
    read_metrics,
    read_record,
    verify_record,
)
from ormas_lightning import LightningMonitorCallback

# Lightning warns of the folder that the fit before has filled, and of resuming within an epoch;
# both are the point here.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Checkpoint directory", "ignore:You're resuming from a checkpoint"
)


class StopAt(Callback):
    """Ends the fit at a step as a lost machine would, as far as Python sees it."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == self.step:
            raise RuntimeError("the machine is gone")


def make(out: Path, **options: Any) -> LightningMonitorCallback:
    """Return a callback as a new process would make it."""
    return LightningMonitorCallback(**{"out": out, "check_every": 1, "verbose": False, **options})


def fit(folder: Path, *callbacks: Callback, ckpt_path: Path | None = None) -> None:
    """Fit 25 steps with a checkpoint every ten, or as far as it comes."""
    checkpoints = ModelCheckpoint(
        folder / "checkpoints", "{step}", every_n_train_steps=10, save_top_k=-1
    )
    trainer = lightning_trainer(
        folder, [*callbacks, checkpoints], enable_checkpointing=True, max_steps=25
    )
    trainer.fit(lightning_net(), loader(), ckpt_path=ckpt_path and str(ckpt_path))


def checkpoint(folder: Path, step: int) -> Path:
    """Return the checkpoint of a step."""
    return folder / "checkpoints" / f"step={step}.ckpt"


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """A folder with a fit that came to step 15 and saved at step 10."""
    with pytest.raises(RuntimeError, match="the machine is gone"):
        fit(tmp_path, make(tmp_path / "run"), StopAt(15))
    return tmp_path


def test_a_fit_from_a_checkpoint_goes_on_with_the_record(interrupted: Path) -> None:
    """Without being asked to: one chain, the steps of the checkpoint, restored baselines."""
    out = interrupted / "run"
    before = (out / "record.jsonl").read_bytes()
    fit(interrupted, make(out), ckpt_path=checkpoint(interrupted, 10))
    assert (out / "record.jsonl").read_bytes().startswith(before)
    assert verify_record(out).complete
    (found,) = (e.event for e in read_record(out) if isinstance(e.event, RunResumed))
    assert (found.step, found.attempt, found.reached, found.repeated) == (10, 10, 15, 5)
    assert (found.restored, found.checkpoint_rows, found.ended) == (True, 10, True)
    assert [m.step for m in read_metrics(out)] == [*range(15), *range(10, 25)]
    starts = [e.event for e in read_record(out) if isinstance(e.event, RunStart)]
    assert [start.segment for start in starts] == [0, 1]
    assert len({start.run_id for start in starts}) == 1


def test_the_state_is_under_a_key_of_its_own_and_loads_safely(interrupted: Path) -> None:
    """Two callbacks of different folders do not share one, and nothing needs unpickling."""
    path = checkpoint(interrupted, 10)
    saved = torch.load(path, weights_only=True)["callbacks"]
    assert saved[f"ormas:{interrupted / 'run'}"]["attempt"] == 10
    keys = [make(interrupted / name).state_key for name in ("a", "b")]
    assert len(set(keys)) == 2


def test_two_callbacks_are_resumed_each_with_its_own(tmp_path: Path) -> None:
    """Different settings, one checkpoint."""
    folders = [tmp_path / "a", tmp_path / "b"]
    both = [make(folders[0], check_every=1), make(folders[1], check_every=4)]
    with pytest.raises(RuntimeError):
        fit(tmp_path, *both, StopAt(15))
    both = [make(folders[0], check_every=1), make(folders[1], check_every=4)]
    fit(tmp_path, *both, ckpt_path=checkpoint(tmp_path, 10))
    steps = [[m.step for m in read_metrics(folder)] for folder in folders]
    assert steps[0] == [*range(15), *range(10, 25)]
    assert steps[1] == [0, 4, 8, 12, 12, 16, 20, 24]
    assert all(verify_record(folder).complete for folder in folders)


def test_a_fit_from_the_beginning_does_not_touch_the_record(interrupted: Path) -> None:
    """No checkpoint, no resuming: the folder is refused, unless that is asked for."""
    with pytest.raises(RecordExistsError):
        fit(interrupted, make(interrupted / "run"))
    sink = MemorySink()
    fit(interrupted, make(interrupted / "run", resume=True, sinks=[sink]))
    (found,) = (e for e in sink.events if isinstance(e, RunResumed))
    assert (found.step, found.restored) == (0, False)
    assert verify_record(interrupted / "run").complete


def test_a_second_fit_of_the_same_callback_may_resume_too(tmp_path: Path) -> None:
    """In one process, back to an earlier checkpoint; and a third one starts afresh."""
    callback = make(tmp_path / "run", sinks=[sink := MemorySink()])
    fit(tmp_path, callback)
    fit(tmp_path, callback, ckpt_path=checkpoint(tmp_path, 20))
    fit(tmp_path, callback)
    (found,) = (e for e in sink.events if isinstance(e, RunResumed))
    assert (found.step, found.reached, found.ended) == (20, 25, True)
    steps = [e.step for e in sink.events if isinstance(e, Measurement)]
    assert steps == [*range(25), *range(20, 25), *range(25)]
    assert verify_record(tmp_path / "run").complete
