"""What users do with the callback in the middle of a training."""

from pathlib import Path
from typing import Any

from hf_support import make, of
from support import ToyNet, global_hooks, hf_arguments, hf_trainer
from transformers import TrainerCallback

from ormas_core import Measurement, RunEnd, Status


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
