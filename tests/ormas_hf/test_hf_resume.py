"""Trainings of the HF Trainer that resume from a checkpoint, in a process of their own."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from support import ToyNet, hf_arguments, hf_trainer
from transformers import TrainerCallback

from ormas_core import (
    Measurement,
    MemorySink,
    RecordExistsError,
    RunResumed,
    RunStart,
    read_metrics,
    read_record,
    verify_record,
)
from ormas_hf import HFMonitorCallback


class StopAt(TrainerCallback):
    """Ends the training at a step as a lost machine would, as far as Python sees it."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise RuntimeError("the machine is gone")


class SaveAt(TrainerCallback):
    """Asks for a checkpoint, after every other callback has spoken."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_save = control.should_save or state.global_step == self.step


def make(out: Path, **options: Any) -> HFMonitorCallback:
    """Return a callback as a new process would make it."""
    return HFMonitorCallback(**{"out": out, "check_every": 1, "verbose": False, **options})


def train(
    folder: Path, *callbacks: TrainerCallback, resume: int | None = None, **changes: Any
) -> None:
    """Train 25 steps with a checkpoint every ten, or as far as it comes."""
    settings = {"save_strategy": "steps", "save_steps": 10, "max_steps": 25, **changes}
    trainer = hf_trainer(ToyNet(), hf_arguments(folder / "hf", **settings), callbacks)
    with contextlib.ExitStack() as stack:
        for callback in callbacks:
            if isinstance(callback, HFMonitorCallback):
                stack.enter_context(callback)
        trainer.train(
            resume_from_checkpoint=str(folder / "hf" / f"checkpoint-{resume}") if resume else None
        )


def saved(folder: Path, step: int) -> dict[str, Any]:
    """Return the callbacks' states in a checkpoint."""
    path = folder / "hf" / f"checkpoint-{step}" / "trainer_state.json"
    found = json.loads(path.read_text(encoding="utf-8"))["stateful_callbacks"]
    return {key: value for key, value in found.items() if key.startswith("ormas:")}


@pytest.mark.parametrize("restore", [False, True])
def test_a_training_from_a_checkpoint_goes_on_with_the_record(
    tmp_path: Path, *, restore: bool
) -> None:
    """Whether the Trainer restores callbacks itself or not: one chain, restored baselines."""
    out = tmp_path / "run"
    with pytest.raises(RuntimeError, match="the machine is gone"):
        train(tmp_path, make(out), StopAt(15))
    before = (out / "record.jsonl").read_bytes()
    callback = make(out)
    train(tmp_path, callback, resume=10, restore_callback_states_from_checkpoint=restore)
    assert (out / "record.jsonl").read_bytes().startswith(before)
    assert verify_record(out).complete
    (found,) = (e.event for e in read_record(out) if isinstance(e.event, RunResumed))
    assert (found.step, found.attempt, found.reached, found.repeated) == (10, 10, 15, 5)
    assert (found.restored, found.checkpoint_rows, found.ended) == (True, 10, True)
    assert [m.step for m in read_metrics(out)] == [*range(15), *range(10, 25)]
    starts = [e.event for e in read_record(out) if isinstance(e.event, RunStart)]
    assert [start.segment for start in starts] == [0, 1]
    assert callback.monitor is not None
    assert {start.run_id for start in starts} == {callback.monitor.run_id}


def test_case_36_states_of_two_monitors_do_not_grow(tmp_path: Path) -> None:
    """Different settings; saved at 10, resumed, saved at 20: an entry each, and its own."""
    folders = {"a": 1, "b": 4}

    def both() -> list[HFMonitorCallback]:
        return [make(tmp_path / name, check_every=every) for name, every in folders.items()]

    with pytest.raises(RuntimeError):
        train(tmp_path, *both(), StopAt(15))
    train(tmp_path, *both(), resume=10)
    keys = {f"ormas:{tmp_path / name}" for name in folders}
    for step in (10, 20):
        states = saved(tmp_path, step)
        assert set(states) == keys
        assert all(state["attributes"]["attempt"] == step for state in states.values())
    assert [m.step for m in read_metrics(tmp_path / "a")] == [*range(15), *range(10, 25)]
    assert [m.step for m in read_metrics(tmp_path / "b")] == [0, 4, 8, 12, 12, 16, 20, 24]


def test_a_checkpoint_that_another_callback_asks_for_has_the_state(tmp_path: Path) -> None:
    """Also between two checks, and asked for when this callback has been called already."""
    train(tmp_path, make(tmp_path / "run", check_every=5), SaveAt(7))
    (state,) = saved(tmp_path, 7).values()
    assert state["attributes"]["attempt"] == 7
    assert state["attributes"]["rows"] == 2


def test_a_training_from_the_beginning_does_not_touch_the_record(tmp_path: Path) -> None:
    """No checkpoint, no resuming: the folder is refused, unless that is asked for."""
    train(tmp_path, make(tmp_path / "run"), max_steps=2)
    with pytest.raises(RecordExistsError):
        train(tmp_path, make(tmp_path / "run"), max_steps=2)
    sink = MemorySink()
    train(tmp_path, make(tmp_path / "run", resume=True, sinks=[sink]), max_steps=2)
    (found,) = (e for e in sink.events if isinstance(e, RunResumed))
    assert (found.step, found.restored) == (0, False)
    assert verify_record(tmp_path / "run").complete


def test_a_second_training_in_one_process_is_no_resuming(tmp_path: Path) -> None:
    """A new segment with steps from 0, as ever, even where the first one saved its state."""
    callback = make(tmp_path / "run", sinks=[sink := MemorySink()])
    arguments = hf_arguments(tmp_path / "hf", save_strategy="steps", save_steps=5, max_steps=6)
    trainer = hf_trainer(ToyNet(), arguments, [callback])
    with callback:
        trainer.train()
        trainer.train()
    assert not [e for e in sink.events if isinstance(e, RunResumed)]
    assert [e.step for e in sink.events if isinstance(e, Measurement)] == [*range(6), *range(6)]
