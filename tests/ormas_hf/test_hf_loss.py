"""The loss under the HF Trainer, wherever it is computed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hf_support import make, of
from support import Toy, ToyNet, hf_arguments, hf_trainer
from torch import Tensor, nn
from torch.utils.data import Subset
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback

from ormas_core import (
    Measurement,
    NonfiniteLoss,
    RunEnd,
    Stage,
)


class ConstantLoss(nn.Module):
    """Returns the loss 2.0 whatever the batch, with a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 1)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": 2.0 + (self.fc.weight - self.fc.weight.detach()).sum()}


def test_case_40_one_judgement_per_update_and_the_true_loss(tmp_path: Path) -> None:
    """10 batches, accumulation 4, two epochs: six checks of loss 2.0, the short window included."""
    callback, sink = make(tmp_path)
    arguments = hf_arguments(
        tmp_path / "hf",
        num_train_epochs=2,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=4,
    )
    data = Subset(Toy(), range(10))
    trainer = hf_trainer(ConstantLoss(), arguments, [callback], train_dataset=data)
    trainer.train()
    assert [m.loss for m in of(sink, Measurement)] == pytest.approx([2.0] * 6)
    assert of(sink, RunEnd)[0].steps == trainer.state.global_step == 6


def test_a_loss_divided_by_the_items_of_the_step_adds_up(tmp_path: Path) -> None:
    """A causal model that gets `num_items_in_batch` returns parts; the sum is what HF logs."""
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randint(0, 32, (8,), generator=generator) for _ in range(16)]
    data = [{"input_ids": row, "labels": row} for row in tokens]
    logged = []

    class Log(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kw: Any) -> None:
            if "loss" in logs:
                logged.append(float(logs["loss"]))

    callback, sink = make(tmp_path)
    arguments = hf_arguments(
        tmp_path / "hf",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        logging_strategy="steps",
        logging_steps=1,
    )
    hf_trainer(model, arguments, [callback, Log()], train_dataset=data).train()
    assert len(logged) == 2
    assert [m.loss for m in of(sink, Measurement)] == pytest.approx(logged, abs=2e-4)


def test_note_loss_wins_over_what_the_model_returns(tmp_path: Path) -> None:
    """With a custom loss outside the model, the noted one is judged, once per update."""
    callback, sink = make(tmp_path)

    def custom(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Tensor:
        loss = outputs["loss"] * 3.0
        callback.note_loss(loss)
        return loss

    plain, plain_sink = make(tmp_path / "plain")
    hf_trainer(ToyNet(), hf_arguments(tmp_path / "hf"), [plain]).train()

    class Net(ToyNet):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            return super().forward(x, (x.sum(1) > 0).long())

    arguments = hf_arguments(tmp_path / "hf", max_grad_norm=1e-4)
    hf_trainer(Net(), arguments, [callback], compute_loss_func=custom).train()
    first, expected = of(sink, Measurement)[0], of(plain_sink, Measurement)[0]
    assert first.loss == pytest.approx(3.0 * expected.loss)
    assert first.stage is Stage.PRE_CLIP
    assert first.norms == pytest.approx([3.0 * norm for norm in expected.norms])


@pytest.mark.parametrize("compiled", [False, True])
def test_a_loss_outside_the_model_is_followed_to_before_clipping(
    compiled: bool, tmp_path: Path
) -> None:
    """Where the model returns no loss, a noted one with its graph places the check."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": self.fc(x)}

    callback, sink = make(tmp_path)

    def custom(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        loss = nn.functional.cross_entropy(outputs["logits"], labels)
        callback.note_loss(loss)
        return loss

    arguments = hf_arguments(
        tmp_path / "hf",
        max_steps=3,
        max_grad_norm=1e-4,
        torch_compile=compiled,
        torch_compile_backend="eager" if compiled else None,
    )
    hf_trainer(Net(), arguments, [callback], compute_loss_func=custom).train()
    seen = of(sink, Measurement)
    assert [m.stage for m in seen] == [Stage.PRE_CLIP] * 3
    assert min(m.norms[0] for m in seen) > 1e-2
    assert all(m.loss is not None for m in seen)


def test_a_nan_loss_is_critical_though_the_trainer_logs_an_average(tmp_path: Path) -> None:
    """The Trainer replaces NaN in its log; the monitor reports the step it came from."""

    class Net(ToyNet):
        calls = 0

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            self.calls += 1
            factor = float("nan") if self.calls == 8 else 1.0
            return {"loss": super().forward(x, labels)["loss"] * factor}

    callback, sink = make(tmp_path)
    hf_trainer(Net(), hf_arguments(tmp_path / "hf", max_steps=8), [callback]).train()
    assert [e.step for e in of(sink, NonfiniteLoss)] == [7]


def test_logits_are_not_taken_for_a_loss(tmp_path: Path) -> None:
    """A model that returns a tuple without a loss has none; the Trainer computes it."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 2)

        def forward(self, x: Tensor, labels: Tensor | None = None) -> tuple[Tensor]:
            return (self.fc(x) * 1e3,)

    callback, sink = make(tmp_path)

    def custom(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return nn.functional.cross_entropy(outputs[0], labels)

    arguments = hf_arguments(tmp_path / "hf", max_steps=2)
    hf_trainer(Net(), arguments, [callback], compute_loss_func=custom).train()
    assert [m.loss for m in of(sink, Measurement)] == [None, None]
