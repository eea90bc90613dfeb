"""What a training with the HF callback leaves behind: no graph, no hook."""

import contextlib
import gc
import weakref
from pathlib import Path
from typing import Any

import torch
from hf_support import make, of
from support import ToyNet, global_hooks, hf_arguments, hf_trainer
from torch import Tensor, nn
from transformers import TrainerCallback

from ormas_core import Measurement, RunEnd, Stage, Status


class _Counted(TrainerCallback):
    """Counts the tensors that are alive after some steps."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step in (10, 30):
            gc.collect()
            self.counts.append(sum(isinstance(each, Tensor) for each in gc.get_objects()))


def test_case_53_the_end_of_backward_keeps_no_graph(tmp_path: Path) -> None:
    """Live tensors do not grow with the steps whose gradients are read before clipping."""
    callback, sink = make(tmp_path)
    counted = _Counted()
    arguments = hf_arguments(tmp_path / "hf", max_grad_norm=1.0)
    hf_trainer(ToyNet(), arguments, [callback, counted]).train()
    assert {m.stage for m in of(sink, Measurement)} == {Stage.PRE_CLIP}
    first, second = counted.counts
    assert second <= first


def test_a_parameter_among_the_outputs_gets_no_hook(tmp_path: Path) -> None:
    """Models return scales and prototypes of theirs; a hook on a parameter would stay."""

    class Net(ToyNet):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            found = super().forward(x, labels)
            return {"loss": found["loss"] * self.scale, "scale": self.scale}

    callback, sink = make(tmp_path)
    net = Net()
    arguments = hf_arguments(tmp_path / "hf", max_steps=3, max_grad_norm=1.0)
    hf_trainer(net, arguments, [callback]).train()
    assert {m.stage for m in of(sink, Measurement)} == {Stage.PRE_CLIP}
    assert not net.scale._backward_hooks


def test_what_is_dropped_after_an_exception_leaves_no_hook_and_an_ended_record(
    tmp_path: Path,
) -> None:
    """An exception in a sampled step, no close: model and hooks go with trainer and callback."""

    class Net(ToyNet):
        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            if len(of(sink, Measurement)) == 2:
                raise RuntimeError("of the user")
            return super().forward(x, labels)

    callback, sink = make(tmp_path)
    trainer = hf_trainer(Net(), hf_arguments(tmp_path / "hf"), [callback])
    model = weakref.ref(trainer.model)
    with contextlib.suppress(RuntimeError):
        trainer.train()
    assert global_hooks()
    del trainer, callback
    gc.collect()
    assert not global_hooks()
    assert model() is None
    (end,) = of(sink, RunEnd)
    assert (end.status, end.checks) == (Status.INTERRUPTED, 2)
