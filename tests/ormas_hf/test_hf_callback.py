"""The HF callback in real trainings."""

import contextlib
import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_support import make, of
from support import (
    BATCH,
    Toy,
    ToyNet,
    global_hooks,
    hf_arguments,
    hf_trainer,
    plant_explosion,
    weights,
)
from torch import Tensor
from torch.nn.modules import module as module_globals
from transformers import TrainerCallback

from ormas_core import (
    Alarm,
    ConfigError,
    Diagnosis,
    Measurement,
    RunEnd,
    Stage,
    Status,
    UnknownOptionError,
)
from ormas_hf import HFMonitorCallback


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
    assert not global_hooks()


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
