"""Fits that die with nobody to tell the callback, in processes of their own."""

import signal
from pathlib import Path

import pytest
from process_support import FRAMEWORKS, run_warm

from ormas_core import RunEnd, Status, read_metrics, read_record, verify_record

PRELUDE = """
import multiprocessing, os, signal, subprocess, sys, warnings
from pathlib import Path

from lightning.pytorch import Callback
from lightning_support import lit
from support import Toy, lightning_net, lightning_trainer, loader, toy_loss
from torch.utils.data import DataLoader

from ormas_lightning import LightningMonitorCallback

warnings.filterwarnings("ignore", ".*isinstance.treespec, LeafSpec.")


def step_that(fails):
    def training_step(self, batch, batch_idx):
        if batch_idx == 5:
            fails()
        return toy_loss(self, **batch)
    return training_step


def divide():
    raise ZeroDivisionError


def fit(*callbacks, data=None, **methods):
    folder = Path(sys.argv[1])
    callback = LightningMonitorCallback(out=folder / "run", check_every=1, verbose=False)
    trainer = lightning_trainer(folder, [*callbacks, callback])
    trainer.fit(lit(**methods), loader() if data is None else data)
"""


def ends(folder: Path) -> list[RunEnd]:
    """Return the ends that the record has."""
    return [e.event for e in read_record(folder / "run") if isinstance(e.event, RunEnd)]


SCRIPTS = {
    # name: (what the script does, its exit code, the error in the record)
    "another callback fails over the exception": (
        """
class Fails(Callback):
    def on_exception(self, trainer, pl_module, exception):
        raise LookupError("mine") from exception

fit(Fails(), training_step=step_that(divide))
""",
        1,
        "LookupError",
    ),
    "sys.exit": ("fit(training_step=step_that(lambda: sys.exit(3)))", 3, "SystemExit"),
    "exception": ("fit(training_step=step_that(divide))", 1, "ZeroDivisionError"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_crash_without_close_is_recorded_when_the_interpreter_exits(
    tmp_path: Path, name: str
) -> None:
    """All checks up to the step, and the type of what ended it, `on_exception` called or not."""
    script, code, error = SCRIPTS[name]
    done = run_warm(PRELUDE + script, str(tmp_path), modules=FRAMEWORKS)
    assert done.returncode == code, done.stderr
    (end,) = ends(tmp_path)
    assert (end.status, end.error, end.checks) == (Status.INTERRUPTED, error, 5)
    assert len(list(read_metrics(tmp_path / "run"))) == 5
    assert verify_record(tmp_path / "run").complete


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.abort()", -signal.SIGABRT),
        ("os._exit(4)", 4),
    ],
)
def test_a_fit_that_is_killed_leaves_what_it_had(tmp_path: Path, how: str, code: int) -> None:
    """No handler runs; every check before it is there, whole, and the record has no end."""
    done = run_warm(
        PRELUDE + f"fit(training_step=step_that(lambda: {how}))", str(tmp_path), modules=FRAMEWORKS
    )
    assert done.returncode == code, done.stderr
    assert [row.step for row in read_metrics(tmp_path / "run")] == list(range(5))
    found = verify_record(tmp_path / "run")
    assert not found.failed
    assert not found.complete
    assert ends(tmp_path) == []


def test_a_fit_that_dies_before_its_first_step_leaves_the_folder_free(tmp_path: Path) -> None:
    """In `configure_optimizers` nothing has begun: no record, and the next fit makes it."""
    done = run_warm(
        PRELUDE + "fit(configure_optimizers=lambda self: divide())",
        str(tmp_path),
        modules=FRAMEWORKS,
    )
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert not (tmp_path / "run").exists()


SIGTERM = """
class Scheduler(Callback):
    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == 3:
            print(len(multiprocessing.active_children()), "workers", flush=True)
            kill = ["kill", "-TERM", "--", f"-{os.getpgid(0)}"]
            subprocess.run(kill, start_new_session=True, check=True)


signal.signal(signal.SIGTERM, lambda *_: print("mine", os.getpid() == MAIN, flush=True))
MAIN = os.getpid()
fit(Scheduler(), data=DataLoader(Toy(), batch_size=16, num_workers=2))
"""


def test_case_51_sigterm_for_a_process_and_its_workers_closes_the_record_once(
    tmp_path: Path,
) -> None:
    """As a scheduler does it; workers inherit handlers and monitor, the main process ends it alone.

    A handler that was there before is called too. What ends the fit first, the signal or a worker
    that is gone, is a matter of luck.
    """
    done = run_warm(PRELUDE + SIGTERM, str(tmp_path), modules=FRAMEWORKS)
    assert done.returncode >= 0, done
    first, *others = done.stdout.splitlines()
    assert first == "2 workers"
    assert others.count("mine True") == 1
    (end,) = ends(tmp_path)
    assert end.status is Status.INTERRUPTED
    assert end.error in ("SIGTERMException", "RuntimeError"), done.stderr
    assert end.steps in (3, 4)  # SIGTERM is heeded at the next batch
    assert [row.step for row in read_metrics(tmp_path / "run")] == list(range(end.steps))
    assert verify_record(tmp_path / "run").complete
