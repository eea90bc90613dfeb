"""The HF callback in real trainings."""

import contextlib
import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState, PartialState
from support import BATCH, Toy, ToyNet, hf_arguments, hf_trainer, plant_explosion, weights
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.modules import module as module_globals
from torch.utils.data import Subset
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback

from ormas_core import (
    Alarm,
    ConfigError,
    Diagnosis,
    Manifest,
    Measurement,
    MemorySink,
    NonfiniteLoss,
    RunEnd,
    RunStart,
    Stage,
    Status,
    UnknownOptionError,
    verify_record,
)
from ormas_hf import HFMonitorCallback


@pytest.fixture(autouse=True)
def _fresh_accelerate_state() -> Any:
    """Trainers of one process share accelerate's state; each test starts without it."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState._reset_state()


def of(sink: MemorySink, kind: type) -> list[Any]:
    return [event for event in sink.events if isinstance(event, kind)]


def make(folder: Path, **options: Any) -> tuple[HFMonitorCallback, MemorySink]:
    sink = MemorySink()
    options = {"check_every": 1, "verbose": False, "sinks": [sink], **options}
    return HFMonitorCallback(out=folder / "run", **options), sink


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_training_is_bit_identical_with_and_without_the_callback(
    clip: float, tmp_path: Path
) -> None:
    """All weights after 40 steps are equal, with and without clipping."""
    found = []
    for callbacks in ([], [make(tmp_path)[0]]):
        net = ToyNet()
        arguments = hf_arguments(tmp_path / "hf", max_grad_norm=clip)
        hf_trainer(net, arguments, callbacks).train()
        found.append(weights(net))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_no_hook_on_unsampled_steps(tmp_path: Path) -> None:
    """In the forward pass of an unsampled step there is no hook anywhere."""
    hooked = {}

    class Net(ToyNet):
        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            found = [m for m in self.modules() if m._forward_hooks or m._backward_hooks]
            hooked[len(hooked)] = bool(module_globals._global_forward_hooks or found)
            return super().forward(x, labels)

    callback, _ = make(tmp_path, check_every=10)
    net = Net()
    hf_trainer(net, hf_arguments(tmp_path / "hf"), [callback]).train()
    assert hooked == {step: step % 10 == 0 for step in range(40)}
    assert not any(m._forward_hooks for m in net.modules())


def test_default_clipping_does_not_hide_the_layer_that_exploded(tmp_path: Path) -> None:
    """At max_grad_norm 1.0 the exploding layer is named, and no other layer is blamed."""
    net = ToyNet()
    plant_explosion(net, 20)
    callback, sink = make(tmp_path)
    hf_trainer(net, hf_arguments(tmp_path / "hf", max_grad_norm=1.0), [callback]).train()
    alarms = [(a.layer, a.diagnosis, a.step, a.stage) for a in of(sink, Alarm)]
    assert alarms == [("fc2", Diagnosis.EXPLODING, 20, Stage.PRE_CLIP)]


def test_norms_before_clipping_equal_the_trainers_own(tmp_path: Path) -> None:
    """The total of the layer norms is the `grad_norm` that the Trainer logs."""
    logged = []

    class Log(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kw: Any) -> None:
            if "grad_norm" in logs:
                logged.append(logs["grad_norm"])

    callback, sink = make(tmp_path)
    arguments = hf_arguments(
        tmp_path / "hf",
        max_grad_norm=1e-3,
        logging_strategy="steps",
        logging_steps=1,
        gradient_accumulation_steps=2,
    )
    hf_trainer(ToyNet(), arguments, [callback, Log()]).train()
    measured = of(sink, Measurement)
    assert {m.stage for m in measured} == {Stage.PRE_CLIP}
    totals = [sum(norm**2 for norm in m.norms) ** 0.5 for m in measured]
    assert totals == pytest.approx(logged, rel=1e-5)
    assert min(totals) > 1e-2


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


def test_case_35_train_twice_is_two_segments_with_new_baselines(tmp_path: Path) -> None:
    """One record, two segments, baselines restarted, one set of hooks, close idempotent."""

    class Net(ToyNet):
        factor = 1.0

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": super().forward(x, labels)["loss"] * self.factor}

    net = Net()
    callback, sink = make(tmp_path)
    trainer = hf_trainer(net, hf_arguments(tmp_path / "hf"), [callback])
    trainer.train()
    net.factor = 1e-6  # far off the first run's baseline
    trainer.train()
    trainer.evaluate(Toy(2))
    callback.close()
    callback.close()
    assert [e.segment for e in of(sink, RunStart)] == [0, 1]
    assert len({e.run_id for e in of(sink, RunStart)}) == 1
    assert [e.status for e in of(sink, RunEnd)] == [Status.HEALTHY] * 2
    assert [m.step for m in of(sink, Measurement)] == [*range(40)] * 2
    assert verify_record(tmp_path / "run").complete


def test_close_in_finally_keeps_the_users_exception(tmp_path: Path) -> None:
    """The exception comes through, and the record ends as interrupted with its type."""

    class Net(ToyNet):
        calls = 0

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            self.calls += 1
            if self.calls == 6:
                raise ZeroDivisionError
            return super().forward(x, labels)

    callback, sink = make(tmp_path)
    net = Net()

    def train() -> None:
        try:
            hf_trainer(net, hf_arguments(tmp_path / "hf"), [callback]).train()
        finally:
            callback.close()

    with pytest.raises(ZeroDivisionError):
        train()
    end = of(sink, RunEnd)[0]
    assert (end.status, end.error, end.steps) == (Status.INTERRUPTED, "ZeroDivisionError", 5)
    assert verify_record(tmp_path / "run").complete
    assert not module_globals._global_forward_hooks
    assert not any(m._forward_hooks for m in net.modules())


def test_the_context_manager_closes_too(tmp_path: Path) -> None:
    """`with HFMonitorCallback(...)` ends the record when the block is left."""
    callback, sink = make(tmp_path)
    arguments = hf_arguments(tmp_path / "hf")

    def train() -> None:
        with callback:
            callback.on_train_begin(arguments, None, None, model=ToyNet(), optimizer=None)
            raise KeyError

    with pytest.raises(KeyError):
        train()
    assert of(sink, RunEnd)[0].error == "KeyError"


def test_evaluation_inside_training_is_not_observed(tmp_path: Path) -> None:
    """Evaluating every ten steps adds no check and no loss."""
    callback, sink = make(tmp_path)
    arguments = hf_arguments(tmp_path / "hf", eval_strategy="steps", eval_steps=10)
    hf_trainer(ToyNet(), arguments, [callback], eval_dataset=Toy(2)).train()
    plain, plain_sink = make(tmp_path / "plain")
    hf_trainer(ToyNet(), hf_arguments(tmp_path / "hf"), [plain]).train()
    assert [m.loss for m in of(sink, Measurement)] == [m.loss for m in of(plain_sink, Measurement)]


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


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_real_scaler_gives_unscaled_norms(clip: float, tmp_path: Path) -> None:
    """With an active CPU scaler, norms are those without one."""
    found = []
    for scaled in (False, True):
        callback, sink = make(tmp_path / str(scaled))
        arguments = hf_arguments(tmp_path / "hf", max_steps=3, max_grad_norm=0.0)
        trainer = hf_trainer(ToyNet(), arguments, [callback])
        if scaled:
            trainer.accelerator.scaler = GradScaler("cpu")
        trainer.args.max_grad_norm = clip if not scaled else 0.0
        trainer.train()
        found.append(of(sink, Measurement))
    plain, scaled_run = found
    assert [m.scale for m in scaled_run] == [65536.0] * 3
    assert {m.stage for m in scaled_run} == {Stage.SCALED}
    assert scaled_run[0].norms == pytest.approx(plain[0].norms, rel=1e-5)


def test_a_compiled_model_is_watched_by_its_parameters(tmp_path: Path) -> None:
    """With `torch_compile` no hook is used, gradients are judged, and the manifest says why."""
    net = ToyNet()
    plant_explosion(net, 20)
    callback, sink = make(tmp_path)
    arguments = hf_arguments(
        tmp_path / "hf", torch_compile=True, torch_compile_backend="eager", max_grad_norm=0.0
    )
    hf_trainer(net, arguments, [callback]).train()
    lines = {m.name: m for m in of(sink, Manifest)[-1].mechanisms}
    assert lines["channel_maxima"].state.value == "unobservable"
    assert lines["loss"].state.value == "off"
    assert of(sink, Alarm)[0].layer == "fc2"


def test_wrong_options_fail_where_the_callback_is_constructed() -> None:
    """A misspelt option is a TypeError, a bad value a ValueError."""
    with pytest.raises(UnknownOptionError, match="chek_every"):
        HFMonitorCallback(chek_every=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="warmup"):
        HFMonitorCallback(warmup=0)


def test_the_batch_size_of_the_toy_data_is_what_the_loops_assume() -> None:
    """40 steps come from 40 batches; the other tests count on it."""
    assert len(Toy()) == 40 * BATCH


def test_the_model_can_be_copied_and_saved_inside_a_sampled_step(tmp_path: Path) -> None:
    """An EMA copy at step begin and a save between micro-batches hold nothing of ours."""
    saved = []

    class Copy(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
            copy.deepcopy(kw["model"])

        def on_substep_end(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
            buffer = io.BytesIO()
            torch.save(kw["model"], buffer)
            saved.append(b"ormas" in buffer.getvalue())

    callback, sink = make(tmp_path)
    arguments = hf_arguments(tmp_path / "hf", gradient_accumulation_steps=2, max_steps=3)
    hf_trainer(ToyNet(), arguments, [callback, Copy()]).train()
    assert saved == [False] * 3
    assert len(of(sink, Measurement)) == 3
    assert not module_globals._has_any_global_hook()


def test_a_swallowed_exception_is_no_healthy_end(tmp_path: Path) -> None:
    """`close()` before the Trainer said that training ended reads interrupted."""

    class Net(ToyNet):
        calls = 0

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            self.calls += 1
            if self.calls == 30:
                raise ZeroDivisionError
            return super().forward(x, labels)

    callback, sink = make(tmp_path)
    with contextlib.suppress(ZeroDivisionError):
        hf_trainer(Net(), hf_arguments(tmp_path / "hf"), [callback]).train()
    callback.close()
    end = of(sink, RunEnd)[0]
    assert (end.status, end.error) == (Status.INTERRUPTED, "unknown")


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
