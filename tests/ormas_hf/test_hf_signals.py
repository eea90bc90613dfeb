"""Signals under the Trainer: real ones, sent to real processes in the middle of a training."""

import signal
from pathlib import Path

import pytest
from process_support import FRAMEWORKS, run_warm

from ormas_core import (
    RunEnd,
    RunStart,
    Status,
    read_metrics,
    read_record,
    read_run,
    run_facts,
    verify_record,
)

# The signal comes in a callback of the third step: no sleeping, and no race with the training.
TRAINING = """
import os, signal, sys
from pathlib import Path
from support import ToyNet, hf_arguments, hf_trainer
from transformers import TrainerCallback
from ormas_core import Monitor
from ormas_hf import HFMonitorCallback

class Sends(TrainerCallback):
    def __init__(self, send):
        self.send = send

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            self.send()

def to_me(which):
    os.kill(os.getpid(), which)

def train(send, closing=False, **settings):
    global callback  # as in a script, which has no function around it
    folder = Path(sys.argv[1])
    before = [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)]
    callback = HFMonitorCallback(out=folder / "run", check_every=1, verbose=False)
    trainer = hf_trainer(ToyNet(), hf_arguments(folder / "hf", **settings), [callback, Sends(send)])
    try:
        trainer.train()
    finally:
        assert before == [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)]
        print("left in", os.getpid(), flush=True)
        if closing:
            callback.close()
"""

HANDLED = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"


@pytest.mark.parametrize("closing", [True, False], ids=["closed", "left-open"])
@pytest.mark.parametrize(
    ("before", "sent", "code", "error"),
    [
        ("", signal.SIGINT, -signal.SIGINT, "KeyboardInterrupt"),
        (HANDLED, signal.SIGTERM, 7, "SystemExit"),
    ],
    ids=["ctrl-c", "sigterm"],
)
def test_an_interrupted_training_is_closed_with_the_reason(
    tmp_path: Path, *, closing: bool, before: str, sent: int, code: int, error: str
) -> None:
    """Ctrl-C, and a SIGTERM that the script turns into its exit; with `close()` and without.

    Python tells nobody of an exit that is not an error, so that without `close()` its reason is
    unknown. The handlers are the script's own all the time.
    """
    body = f"{before}train(lambda: to_me({int(sent)}), closing={closing})"
    done = run_warm(TRAINING + body, str(tmp_path), modules=FRAMEWORKS)
    assert done.returncode == code, done.stderr
    (end,) = ends(tmp_path / "run")
    known = closing or error == "KeyboardInterrupt"
    assert (end.status, end.error) == (Status.INTERRUPTED, error if known else "unknown")
    assert (end.steps, end.checks) == (3, 3)
    assert verify_record(tmp_path / "run").complete


def test_a_sigterm_that_nobody_handles_leaves_whole_lines(tmp_path: Path) -> None:
    """The process is gone at once; what was checked is there, and reads as interrupted."""
    done = run_warm(
        TRAINING + f"train(lambda: to_me({int(signal.SIGTERM)}))", str(tmp_path), modules=FRAMEWORKS
    )
    assert done.returncode == -signal.SIGTERM
    assert not ends(tmp_path / "run")
    assert len(list(read_metrics(tmp_path / "run"))) == 3
    assert not verify_record(tmp_path / "run").failed
    assert run_facts(read_run(tmp_path / "run")).status is Status.INTERRUPTED


def test_case_51_a_schedulers_sigterm_reaches_the_workers_of_the_data_loader_too(
    tmp_path: Path,
) -> None:
    """Sent to the whole process group: one end in the record, written by the training process.

    Workers are forks that inherit the script's handler, and the monitor with its record.
    """
    body = (
        f"{HANDLED}os.setpgid(0, 0)\n"
        "train(lambda: os.killpg(0, signal.SIGTERM), closing=True, dataloader_num_workers=2)"
    )
    done = run_warm(TRAINING + body, str(tmp_path), modules=FRAMEWORKS)
    assert done.returncode == 7, done.stderr
    assert done.stdout.count("left in") == 1
    events = [line.event for line in read_record(tmp_path / "run")]
    assert len([e for e in events if isinstance(e, RunStart)]) == 1
    (end,) = ends(tmp_path / "run")
    assert (end.status, end.error, end.steps) == (Status.INTERRUPTED, "SystemExit", 3)
    assert verify_record(tmp_path / "run").complete
    assert not (tmp_path / "run" / "record.lock").exists()


def ends(out: Path) -> list[RunEnd]:
    """Return the ends that a record has."""
    return [line.event for line in read_record(out) if isinstance(line.event, RunEnd)]
