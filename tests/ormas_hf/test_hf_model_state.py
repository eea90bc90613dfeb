"""Reports about the state a model gets into, under the Trainer, which calls `model.train()` itself.

Links: 21 github.com/pgniewko/gt-pyg/issues/112, 23 github.com/cleinc/bts/issues/90,
30 github.com/huggingface/transformers/issues/45676.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from hf_support import make, of, tiny_llama, token_rows
from support import ToyNet, hf_arguments, hf_trainer
from torch import Tensor, nn
from transformers import TrainerCallback

from ormas_core import (
    TROUBLE,
    Alarm,
    Diagnosis,
    EvalMode,
    Manifest,
    RunEnd,
    StatisticsAtOdds,
    Status,
    check_checkpoint,
)

UNTOUCHED = "untouched-statistics"


class Normed(ToyNet):
    """The toy network with a batch norm behind its first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(16)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.fc2(torch.relu(self.bn(self.fc1(x)))))
        return {"loss": nn.functional.cross_entropy(self.fc3(hidden), labels)}


def test_case_21_a_batch_norm_that_the_trainer_thaws_is_named(tmp_path: Path) -> None:
    """Frozen once, with `eval()`, which the Trainer's `train()` undoes: the run is not healthy."""
    net = Normed()
    net.bn.requires_grad_(requires_grad=False).eval()
    callback, sink = make(tmp_path)
    hf_trainer(net, hf_arguments(tmp_path / "hf"), [callback]).train()
    assert net.bn.running_mean.any()
    assert not of(sink, EvalMode)
    (found,) = of(sink, StatisticsAtOdds)
    assert (found.step, found.drifting, found.untouched) == (7, ("bn",), ())
    (line,) = [m for m in of(sink, Manifest)[0].mechanisms if "bn" in m.layers and m.reason]
    assert line.reason.startswith("frozen")
    assert of(sink, RunEnd)[0].status is Status.WARNINGS


def test_case_21_one_that_is_frozen_again_at_each_step_is_not(tmp_path: Path) -> None:
    """By a `train()` of the model's own, as documented for it: information, said once."""

    class Keeps(Normed):
        def train(self, mode: bool = True) -> Any:
            super().train(mode)
            self.bn.eval()
            return self

    net = Keeps()
    net.bn.running_mean.fill_(0.1)  # as in a network that was trained before
    net.bn.requires_grad_(requires_grad=False)
    callback, sink = make(tmp_path)
    hf_trainer(net, hf_arguments(tmp_path / "hf"), [callback]).train()
    (found,) = of(sink, EvalMode)
    assert found.modules == ("bn",)
    assert not [e for e in sink.events if isinstance(e, TROUBLE)]


def test_case_23_statistics_that_stay_at_their_start_are_named(tmp_path: Path) -> None:
    """The weights of the batch norm are trained, and its momentum is 0."""
    net = Normed()
    net.bn.momentum = 0.0
    callback, sink = make(tmp_path)
    hf_trainer(net, hf_arguments(tmp_path / "hf"), [callback]).train()
    assert not net.bn.running_mean.any()
    (found,) = of(sink, StatisticsAtOdds)
    assert (found.step, found.drifting, found.untouched) == (1, (), ("bn",))
    torch.save(net.state_dict(), tmp_path / "model.pt")
    named = {
        f.where for f in check_checkpoint(tmp_path / "model.pt").findings if f.code == UNTOUCHED
    }
    assert named == {"bn"}


class Scales(TrainerCallback):
    """Multiplies the query weights of one attention before one update."""

    def __init__(self, weight: Tensor, factor: float, at: int) -> None:
        self.weight, self.factor, self.at = weight, factor, at

    def on_step_begin(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        if state.global_step == self.at:
            with torch.no_grad():
                self.weight.mul_(self.factor)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_case_30_logits_of_attention_that_grow_are_seen_by_the_keys(
    tmp_path: Path, attention: str
) -> None:
    """Logits thirty times as large give the keys thirty times the gradient, and the loss no jump.

    The layer is named at the next check. Logits, their entropy and the heads are not seen.
    """
    model = tiny_llama(num_hidden_layers=3, attn_implementation=attention)
    scales = Scales(model.model.layers[1].self_attn.q_proj.weight, 30.0, at=30)
    callback, sink = make(tmp_path)
    arguments = hf_arguments(tmp_path / "hf", max_steps=40, per_device_train_batch_size=8)
    rows = token_rows(64)
    hf_trainer(model, arguments, [callback, scales], train_dataset=rows).train()
    (found,) = [e for e in sink.events if isinstance(e, TROUBLE)]
    assert isinstance(found, Alarm)
    assert (found.step, found.diagnosis) == (31, Diagnosis.EXPLODING)
    assert found.layer == "model.layers.1.self_attn.k_proj"
    assert 20.0 < found.value / found.normal < 45.0
