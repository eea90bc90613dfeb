"""What users do with the callback in the middle of a training."""

from pathlib import Path
from typing import Any

import torch
from hf_support import make, of
from support import ToyNet, global_hooks, hf_arguments, hf_trainer
from transformers import TrainerCallback

from ormas_core import Manifest, Measurement, MechanismState, RunEnd, Status


def test_a_callback_added_in_the_middle_watches_from_there_on(tmp_path: Path) -> None:
    """The Trainer sends it no beginning; its steps are counted from its own."""

    class Add(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 10:
                trainer.add_callback(callback)

    callback, sink = make(tmp_path)
    trainer = hf_trainer(ToyNet(), hf_arguments(tmp_path / "hf"), [Add()])
    trainer.train()
    (end,) = of(sink, RunEnd)
    assert (end.status, end.steps) == (Status.HEALTHY, 30)
    assert [m.step for m in of(sink, Measurement)] == list(range(30))


def test_an_exchanged_optimizer_is_not_taken_for_the_one_before(tmp_path: Path) -> None:
    """Its steps are not checked, no certificate speaks of it, and the run is not called healthy."""

    class Exchange(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 10:
                new = torch.optim.Adagrad(trainer.model.parameters(), lr=1e-3)
                trainer.optimizer = trainer.accelerator.prepare(new)
                trainer.callback_handler.optimizer = trainer.optimizer  # what callbacks are given

    callback, sink = make(tmp_path)
    trainer = hf_trainer(ToyNet(), hf_arguments(tmp_path / "hf"), [callback, Exchange()])
    trainer.train()
    assert [m.step for m in of(sink, Measurement)] == list(range(10))
    (end,) = of(sink, RunEnd)
    assert end.status is Status.PARTLY_MONITORED
    (line,) = [m for m in of(sink, Manifest)[-1].mechanisms if m.name == "optimizers"]
    assert (line.state, "Adagrad" in line.reason) == (MechanismState.UNOBSERVABLE, True)


def test_a_callback_closed_in_the_middle_stays_closed(tmp_path: Path) -> None:
    """The user has seen enough; the training goes on without it."""

    class Close(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 10:
                callback.close()

    callback, sink = make(tmp_path)
    hf_trainer(ToyNet(), hf_arguments(tmp_path / "hf"), [callback, Close()]).train()
    (end,) = of(sink, RunEnd)
    assert (end.status, end.steps) == (Status.INTERRUPTED, 10)
    assert not global_hooks()
