"""The life of a callback: trainings that end, are repeated, evaluated, pruned or given up."""

import subprocess
from pathlib import Path

import pytest
from hf_support import Logged, make, of
from process_support import FRAMEWORKS, child_environment, warm_python
from support import BATCH, Toy, ToyNet, global_hooks, hf_arguments, hf_trainer
from torch import Tensor
from torch.nn.modules import module as module_globals
from transformers import EarlyStoppingCallback

from ormas_core import (
    Measurement,
    RunEnd,
    RunStart,
    Status,
    StopRequested,
    read_metrics,
    read_record,
    read_run,
    run_facts,
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


def test_a_batch_size_that_does_not_fit_starts_the_training_again(tmp_path: Path) -> None:
    """`auto_find_batch_size` re-enters the loop: a segment that counts nothing, then the run."""

    class Net(ToyNet):
        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            if self.training and len(x) > BATCH // 2:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            return super().forward(x, labels)

    net = Net()
    callback, sink = make(tmp_path)
    arguments = hf_arguments(tmp_path / "hf", auto_find_batch_size=True, max_steps=4)
    with callback:
        hf_trainer(net, arguments, [callback]).train()
    assert [e.segment for e in of(sink, RunStart)] == [*range(len(of(sink, RunStart)))]
    assert len(of(sink, RunStart)) > 1
    assert [m.step for m in of(sink, Measurement)] == [0, 1, 2, 3]
    assert run_facts(read_run(tmp_path / "run")).status is callback.monitor.facts.status
    assert verify_record(tmp_path / "run").complete
    assert not global_hooks()


def test_everything_around_training_leaves_the_record_alone(tmp_path: Path) -> None:
    """Evaluation, prediction, checkpoints and early stopping: one run, ended once, all steps."""
    callback, sink = make(tmp_path)
    arguments = hf_arguments(
        tmp_path / "hf",
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=True,  # a falling loss is no improvement
    )
    stopping = EarlyStoppingCallback(early_stopping_patience=2)
    trainer = hf_trainer(ToyNet(), arguments, [callback, stopping], eval_dataset=Toy(2))
    trainer.predict(Toy(2))
    trainer.train()
    trainer.evaluate()
    trainer.predict(Toy(2))
    steps = trainer.state.global_step
    assert 2 < steps < 40
    assert [m.step for m in of(sink, Measurement)] == [*range(steps)]
    (end,) = of(sink, RunEnd)
    assert (end.steps, end.error) == (steps, None)
    assert verify_record(tmp_path / "run").complete


@pytest.mark.parametrize("every", [1, 3])
def test_stop_on_ends_the_training_the_trainers_own_way(every: int, tmp_path: Path) -> None:
    """At the next check after the NaN; `on_train_end` comes, and the record says why."""

    class Net(ToyNet):
        calls = 0

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            self.calls += 1
            factor = float("nan") if self.calls >= 5 else 1.0
            return {"loss": super().forward(x, labels)["loss"] * factor}

    callback, sink = make(tmp_path, check_every=every, stop_on="nonfinite_loss")
    trainer = hf_trainer(Net(), hf_arguments(tmp_path / "hf"), [callback])
    trainer.train()
    seen_at = {1: 4, 3: 6}[every]
    (found,) = of(sink, StopRequested)
    assert (found.step, found.reasons) == (seen_at, ("nonfinite_loss",))
    assert trainer.state.global_step == seen_at + 1
    (end,) = of(sink, RunEnd)
    assert (end.status, end.error) == (Status.PROBLEM, None)


def test_two_callbacks_of_one_trainer_keep_apart(tmp_path: Path) -> None:
    """Other settings, other folders: each record is what the callback alone would have made."""
    first, one = make(tmp_path / "a")
    second, two = make(tmp_path / "b", check_every=4, layers="fc2")
    hf_trainer(ToyNet(), hf_arguments(tmp_path / "hf", max_steps=9), [first, second]).train()
    assert [m.step for m in of(one, Measurement)] == [*range(9)]
    assert [m.step for m in of(two, Measurement)] == [0, 4, 8]
    norms = {m.step: dict(zip(m.layers, m.norms, strict=True)) for m in of(one, Measurement)}
    for m in of(two, Measurement):
        assert dict(zip(m.layers, m.norms, strict=True)) == {"fc2": norms[m.step]["fc2"]}
    assert verify_record(tmp_path / "a" / "run").complete
    assert verify_record(tmp_path / "b" / "run").complete


def test_case_32_the_callback_works_before_and_after_the_reporters(tmp_path: Path) -> None:
    """The order is the Trainer's defaults, its reporters, the user's; measurements are the same."""
    found = []
    for place in ("first", "last"):
        callback, sink = make(tmp_path / place)
        logged = Logged("loss")
        arguments = hf_arguments(
            tmp_path / "hf", max_steps=4, logging_strategy="steps", logging_steps=1
        )
        order = [callback, logged] if place == "first" else [logged, callback]
        trainer = hf_trainer(ToyNet(), arguments, order)
        names = [type(each).__name__ for each in trainer.callback_handler.callbacks]
        assert names.index("DefaultFlowCallback") == 0
        trainer.train()
        assert [m.loss for m in of(sink, Measurement)] == pytest.approx(logged.values, rel=1e-3)
        found.append([(m.step, m.norms, m.loss) for m in of(sink, Measurement)])
    assert found[0] == found[1]


SCRIPT = """
import sys
from pathlib import Path

import torch
from support import ToyNet, hf_arguments, hf_trainer

from ormas_hf import HFMonitorCallback


class Net(ToyNet):
    calls = 0

    def forward(self, x, labels):
        self.calls += 1
        if self.calls == 6:
            raise ZeroDivisionError
        return super().forward(x, labels)


folder = Path(sys.argv[1])
callback = HFMonitorCallback(out=folder / "run", check_every=1, verbose=False)
hf_trainer(Net(), hf_arguments(folder / "hf"), [callback]).train()
"""


def test_a_crash_without_close_is_recorded_when_the_interpreter_exits(tmp_path: Path) -> None:
    """All checks up to the step, and the type of the exception that nobody caught."""
    done = subprocess.run(
        [warm_python(FRAMEWORKS), "-c", SCRIPT, str(tmp_path)],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    (end,) = (e.event for e in read_record(tmp_path / "run") if isinstance(e.event, RunEnd))
    assert (end.status, end.error, end.checks) == (Status.INTERRUPTED, "ZeroDivisionError", 5)
    assert len(list(read_metrics(tmp_path / "run"))) == 5
    assert verify_record(tmp_path / "run").complete
