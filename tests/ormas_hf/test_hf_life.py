"""The life of a callback: trainings that end, are repeated, evaluated, pruned or given up."""

from pathlib import Path

import pytest
from hf_support import make, of
from support import Toy, ToyNet, hf_arguments, hf_trainer
from torch import Tensor
from torch.nn.modules import module as module_globals

from ormas_core import (
    Measurement,
    RunEnd,
    RunStart,
    Status,
    verify_record,
)


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
