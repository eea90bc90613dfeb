"""Steps of several backward passes: the gradients that count are those after the last one."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_support import Logged, make, of
from support import Toy, ToyNet, hf_arguments
from torch import nn
from transformers import Trainer

from ormas_core import Measurement, NonfiniteGradient, Stage


def _train(folder: Path, training_step: Any, **arguments: Any) -> tuple[Any, list[float], ToyNet]:
    """Train three clipped steps; return the sink and the norms that the Trainer itself finds."""
    callback, sink = make(folder)
    norms, net = Logged("grad_norm"), ToyNet()
    kind = type("OwnTrainer", (Trainer,), {"training_step": training_step})
    logged = {"logging_strategy": "steps", "logging_steps": 1, "max_grad_norm": 1e-2}
    trainer = kind(
        model=net,
        args=hf_arguments(folder / "hf", **{"max_steps": 3, **logged, **arguments}),
        train_dataset=Toy(6),
        callbacks=[callback, norms],
    )
    trainer.train()
    return sink, norms.values, net


@pytest.mark.parametrize("accumulation", [1, 2])
def test_gradients_are_those_after_the_last_backward_pass(
    accumulation: int, tmp_path: Path
) -> None:
    """Adversarial and multi-task training go backward twice in one step."""

    def twice(self: Any, model: nn.Module, inputs: Any, *more: Any) -> Any:
        Trainer.training_step(self, model, inputs, *more)
        return Trainer.training_step(self, model, {**inputs, "x": inputs["x"] + 0.1}, *more)

    sink, norms, _ = _train(tmp_path, twice, gradient_accumulation_steps=accumulation)
    totals = [math.hypot(*m.norms) for m in of(sink, Measurement)]
    assert totals == pytest.approx(norms, rel=1e-5)
    factors = [m.clip_factor for m in of(sink, Measurement)]
    assert factors == pytest.approx([min(1.0, 1e-2 / norm) for norm in norms], rel=1e-3)
    assert {m.stage for m in of(sink, Measurement)} == {Stage.PRE_CLIP}


def test_a_nan_of_the_second_pass_is_found(tmp_path: Path) -> None:
    """The first pass of the step is sound."""

    def spoilt(self: Any, model: nn.Module, inputs: Any, *more: Any) -> Any:
        loss = Trainer.training_step(self, model, inputs, *more)
        self.accelerator.backward(model(**inputs)["loss"] * torch.nan)
        return loss

    sink, _, _ = _train(tmp_path, spoilt, max_steps=1)
    assert of(sink, NonfiniteGradient)
    assert {found.layer for m in of(sink, Measurement) for found in m.nonfinite} == {
        "fc1",
        "fc2",
        "fc3",
    }
