"""The loss under the HF Trainer, wherever it is computed."""

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_support import Logged, make, of, tiny_llama, token_rows
from support import Toy, ToyNet, hf_arguments, hf_trainer, loader, sgd
from torch import Tensor, nn
from torch.utils.data import Subset
from transformers import PretrainedConfig, TrainerControl, TrainerState

from ormas_core import (
    LossReduced,
    Manifest,
    Measurement,
    NonfiniteLoss,
    RunEnd,
    Stage,
    describe,
)
from ormas_hf import HFMonitorCallback


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
    # An older Trainer counts only whole windows when it plans how many updates to make.
    assert trainer.state.max_steps in (6, 4)
    assert [m.loss for m in of(sink, Measurement)] == pytest.approx([2.0] * trainer.state.max_steps)
    assert of(sink, RunEnd)[0].steps == trainer.state.global_step == trainer.state.max_steps


def test_a_loss_divided_by_the_items_of_the_step_adds_up(tmp_path: Path) -> None:
    """A causal model that gets `num_items_in_batch` returns parts; the sum is what HF logs."""
    logged = Logged("loss")
    callback, sink = make(tmp_path)
    arguments = hf_arguments(
        tmp_path / "hf",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        logging_strategy="steps",
        logging_steps=1,
    )
    model = tiny_llama()
    hf_trainer(model, arguments, [callback, logged], train_dataset=token_rows()).train()
    assert len(logged.values) == 2
    assert [m.loss for m in of(sink, Measurement)] == pytest.approx(logged.values, abs=2e-4)


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


def test_a_nan_loss_is_critical_and_what_is_logged_a_substitute(
    tmp_path: Path,
) -> None:
    """While the Trainer replaces it, which is its default, and not where that is switched off."""
    for filtered in (True, False):
        callback, sink = make(tmp_path / str(filtered))
        logged = Logged("loss")
        arguments = hf_arguments(
            tmp_path / "hf",
            max_steps=3,
            logging_strategy="steps",
            logging_steps=3,
            logging_nan_inf_filter=filtered,
        )
        net = NanAt(2)
        hf_trainer(net, arguments, [callback, logged]).train()
        (found,) = of(sink, NonfiniteLoss)
        assert (found.step, found.replaced) == (1, filtered)
        assert math.isfinite(logged.values[0]) is filtered
        assert ("is a substitute" in describe(found)) is filtered


class NanAt(ToyNet):
    """Returns a NaN loss in one call, counted from 1."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.calls, self.bad = 0, call

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        factor = float("nan") if self.calls == self.bad else 1.0
        return {"loss": super().forward(x, labels)["loss"] * factor}


@pytest.mark.parametrize("clip", [0.0, 1e-4])
def test_label_smoothing_is_read_before_clipping_and_its_loss_can_be_noted(
    clip: float, tmp_path: Path
) -> None:
    """Gradients need nothing; the loss is off, with what to do, until compute_loss notes it."""
    found = {}
    for noted in (False, True):
        callback, sink = make(tmp_path / str(noted))
        arguments = hf_arguments(
            tmp_path / "hf",
            label_smoothing_factor=0.1,
            max_grad_norm=clip,
            max_steps=2,
            logging_strategy="steps",
            logging_steps=1,
        )
        logged, norms = Logged("loss"), Logged("grad_norm")
        trainer = hf_trainer(Classifier(), arguments, [callback, logged, norms])
        if noted:
            note_what_is_computed(trainer, callback)
        trainer.train()
        seen = of(sink, Measurement)
        totals = [math.hypot(*(norm for norm in m.norms)) for m in seen]
        # An older Trainer has no norm to log where it does not clip.
        assert len(norms.values) == 2 or not (clip or norms.values)
        assert totals == pytest.approx(norms.values or totals, rel=1e-5)
        lines = {m.name: m for m in of(sink, Manifest)[-1].mechanisms}
        found[noted] = [m.loss for m in seen], lines["loss"].state.value, lines["loss"].reason
    losses, state, reason = found[False]
    assert (losses, state) == ([None, None], "off")
    assert "label_smoothing_factor" in reason
    assert "note_loss(loss)" in reason
    assert found[True][0] == pytest.approx(logged.values, rel=1e-3)
    assert found[True][1] == "active"


class Classifier(nn.Module):
    """Returns logits only, unless it is given labels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc1 = nn.Linear(8, 16)
        self.fc2 = nn.Linear(16, 2)
        self.config = PretrainedConfig()  # the Trainer asks it before it smooths labels

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.fc2(torch.relu(self.fc1(x)))
        loss = {} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)}
        return {**loss, "logits": logits}


def note_what_is_computed(trainer: Any, callback: HFMonitorCallback) -> None:
    """Override `compute_loss` as a subclass would, to hand its result on."""
    inner = trainer.compute_loss

    def compute_loss(model: Any, inputs: Any, **kwargs: Any) -> Any:
        loss = inner(model, inputs, **kwargs)
        callback.note_loss(loss)
        return loss

    trainer.compute_loss = compute_loss


def test_a_loss_computed_from_logits_is_judged_before_clipping(tmp_path: Path) -> None:
    """`compute_loss_func` without `note_loss`: the graph of the logits shows the end."""
    callback, sink = make(tmp_path)

    def custom(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return nn.functional.cross_entropy(outputs["logits"], labels) * 1e3

    arguments = hf_arguments(tmp_path / "hf", max_steps=2, max_grad_norm=1e-2)
    hf_trainer(Classifier(), arguments, [callback], compute_loss_func=custom).train()
    seen = of(sink, Measurement)
    assert {m.stage for m in seen} == {Stage.PRE_CLIP}
    assert all(math.hypot(*m.norms) > 1.0 for m in seen)


def test_a_noted_number_counts_over_the_loss_that_the_model_returns(tmp_path: Path) -> None:
    """A float has no graph: the loss is the noted one, gradients are read by the model's."""
    callback, sink = make(tmp_path)

    class Net(ToyNet):
        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            callback.note_loss(7.5)
            return super().forward(x, labels)

    arguments = hf_arguments(tmp_path / "hf", max_steps=2, max_grad_norm=1e-4)
    hf_trainer(Net(), arguments, [callback]).train()
    assert [(m.loss, m.stage) for m in of(sink, Measurement)] == [(7.5, Stage.PRE_CLIP)] * 2


class Replicated(nn.DataParallel):
    """DataParallel as over two devices: short-lived copies in two threads, losses gathered."""

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        copies = [self.module._replicate_for_data_parallel() for _ in range(2)]
        for copy_, original in zip(copies, [self.module] * 2, strict=True):
            for name in ("fc1", "fc2", "fc3"):  # as torch's `replicate` wires them
                layer = getattr(original, name)
                twin = layer._replicate_for_data_parallel()
                twin.weight, twin.bias = layer.weight * 1.0, layer.bias * 1.0
                setattr(copy_, name, twin)
        parts = list(zip(copies, x.chunk(2), labels.chunk(2), strict=True))
        with ThreadPoolExecutor(2) as pool:
            losses = pool.map(lambda part: part[0](part[1], part[2])["loss"], parts)
        return {"loss": torch.stack(list(losses))}


def test_case_39_the_vector_loss_of_data_parallel_is_averaged(tmp_path: Path) -> None:
    """Copies in two threads: parameters have their gradients, the loss is the mean of both."""
    net = ToyNet()
    optimizer = sgd(net)
    callback, sink = make(tmp_path)
    arguments = hf_arguments(tmp_path / "hf")
    arguments._n_gpu = 2
    wrapped, control, state = Replicated(net), TrainerControl(), TrainerState()
    wrapped.device_ids = []
    expected = []
    with callback:
        callback.on_train_begin(arguments, state, control, model=net, optimizer=optimizer)
        for batch in list(loader(3)):
            callback.on_step_begin(arguments, state, control)
            losses = wrapped(**batch)["loss"]
            losses.mean().backward()
            expected.append((losses.mean().item(), net.fc2.weight.grad.norm().item()))
            callback.on_pre_optimizer_step(arguments, state, control)
            optimizer.step()
            optimizer.zero_grad()
        callback.on_train_end(arguments, state, control)
    seen = of(sink, Measurement)
    assert [m.loss for m in seen] == pytest.approx([loss for loss, _ in expected])
    assert {m.loss_elements for m in seen} == {2}
    assert [e.elements for e in of(sink, LossReduced)] == [2]
    for m, (_, weight) in zip(seen, expected, strict=True):
        assert dict(zip(m.layers, m.norms, strict=True))["fc2"] >= weight
    notes = {m.name: m for m in of(sink, Manifest)[0].mechanisms}
    assert "2 devices" in notes["data_parallel"].reason


def test_a_penalty_on_gradients_is_not_taken_for_the_backward_pass(tmp_path: Path) -> None:
    """`torch.autograd.grad` goes through the logits too, and fills no `.grad`."""
    callback, sink = make(tmp_path)
    norms = Logged("grad_norm")

    def custom(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        loss = nn.functional.cross_entropy(outputs["logits"], labels)
        (slope,) = torch.autograd.grad(loss, net.fc1.weight, create_graph=True)
        return loss + slope.square().sum()

    net = Classifier()
    arguments = hf_arguments(
        tmp_path / "hf",
        max_steps=3,
        max_grad_norm=1e-2,
        gradient_accumulation_steps=2,
        logging_strategy="steps",
        logging_steps=1,
    )
    hf_trainer(net, arguments, [callback, norms], compute_loss_func=custom).train()
    totals = [math.hypot(*m.norms) for m in of(sink, Measurement)]
    assert totals == pytest.approx(norms.values, rel=1e-5)
    assert {m.stage for m in of(sink, Measurement)} == {Stage.PRE_CLIP}
