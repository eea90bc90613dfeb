"""However a process ends: what was written is whole, and the user's own ending is not changed."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_support import child_environment, run_warm, warm_python

from ormas_core import RecordGap, RunEnd, Status, read_metrics, read_record, read_run, run_facts
from ormas_core import verify_record as verify

TRAINING = """
import os, signal, sys, threading
import torch
from torch import nn
from ormas_core import Monitor, MonitorConfig

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
config = MonitorConfig(check_every=1, anchor_every=3)
optimizer.zero_grad()
optimizer.step()  # torch imports more at the first step

def start():
    return Monitor(model, optimizer, out=sys.argv[1], config=config, verbose=False)

def train(monitor, steps):
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        monitor.step(loss)
        optimizer.step()
        print(step, flush=True)
"""
STEPS = 14


def run(code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a training and wait for its end."""
    return run_warm(TRAINING + code, *arguments)


def ends(out: Path) -> list[RunEnd]:
    """Return the ends that a record has."""
    return [line.event for line in read_record(out) if isinstance(line.event, RunEnd)]


def require_sound(out: Path, *, rows: int, complete: bool) -> None:
    """Check that nothing that was written is lost, and nothing reads as tampered with."""
    found = verify(out)
    assert not found.failed, found.checks
    assert found.complete is complete
    assert len(list(read_metrics(out))) == rows
    assert not (out / "record.lock").exists() or not complete


ENDINGS = {
    # name: (what the script does, its exit code, the error in the record, last line of stderr)
    "exception": (
        "monitor = start()\ntrain(monitor, 14)\nraise LookupError('mine')",
        1,
        "LookupError",
        "LookupError: mine",
    ),
    "exception in with": (
        "with start() as monitor:\n    train(monitor, 14)\n    raise LookupError('mine')",
        1,
        "LookupError",
        "LookupError: mine",
    ),
    "interrupt": (
        (
            "monitor = start()\ntrain(monitor, 14)\nos.kill(os.getpid(), signal.SIGINT)\n"
            "signal.pause()"
        ),
        -signal.SIGINT,
        "KeyboardInterrupt",
        "KeyboardInterrupt",
    ),
    "interrupt in with": (
        (
            "with start() as monitor:\n    train(monitor, 14)\n"
            "    os.kill(os.getpid(), signal.SIGINT)\n    signal.pause()"
        ),
        -signal.SIGINT,
        "KeyboardInterrupt",
        "KeyboardInterrupt",
    ),
    "exit": ("monitor = start()\ntrain(monitor, 14)\nsys.exit(3)", 3, "unknown", ""),
    "end of the script": ("monitor = start()\ntrain(monitor, 14)", 0, "unknown", ""),
    "handled SIGTERM": (
        (
            "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
            "with start() as monitor:\n    train(monitor, 14)\n"
            "    os.kill(os.getpid(), signal.SIGTERM)\n    signal.pause()"
        ),
        7,
        "SystemExit",
        "",
    ),
    "dropped": (
        (
            "def drop():\n    train(start(), 14)\ndrop()\nassert not os.path.exists(sys.argv[1] + "
            "'/record.lock')"
        ),
        0,
        "unknown",
        "",
    ),
    "exception in a thread": (
        (
            "monitor = start()\n"
            "thread = threading.Thread(target=train, args=(monitor, 14))\nthread.start()\n"
            "thread.join()\nraise LookupError('mine')"
        ),
        1,
        "LookupError",
        "LookupError: mine",
    ),
    "used while the interpreter closes": (
        (
            # It holds the monitor itself: names of a module may be gone before it is.
            "class Late:\n    def __del__(self):\n        self.monitor.step(1.0)\n"
            "        self.monitor.close()\n"
            "late = Late()\nlate.monitor = start()\ntrain(late.monitor, 14)\n"
            "sys.modules['late'] = late"
        ),
        0,
        "unknown",
        "",
    ),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_a_process_that_ends_ends_its_record(tmp_path: Path, name: str) -> None:
    """Closed as interrupted with the exception's type; exit code and traceback are the user's."""
    body, code, error, last = ENDINGS[name]
    done = run(body, str(tmp_path / "run"))
    assert done.returncode == code, done.stderr
    assert [*done.stderr.splitlines(), ""][-2 if last else 0].strip() == last, done.stderr
    require_sound(tmp_path / "run", rows=STEPS, complete=True)
    (end,) = ends(tmp_path / "run")
    assert (end.status, end.error, end.checks) == (Status.INTERRUPTED, error, STEPS)
    assert not (tmp_path / "run" / "record.lock").exists()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_killed_leaves_what_it_had(tmp_path: Path, sent: signal.Signals) -> None:
    """SIGKILL, and SIGTERM as it is by default: whole lines, anchored up to the last anchor."""
    body = f"monitor = start()\ntrain(monitor, 14)\nos.kill(os.getpid(), {int(sent)})"
    done = run(body + "\nsignal.pause()", str(tmp_path / "run"))
    assert done.returncode == -sent
    assert done.stdout.split() == [str(step) for step in range(STEPS)]
    require_sound(tmp_path / "run", rows=STEPS, complete=False)
    assert ends(tmp_path / "run") == []
    facts = run_facts(read_run(tmp_path / "run"))
    assert (facts.status, facts.counts["anchor"]) == (Status.INTERRUPTED, 4)


def test_a_process_that_is_killed_at_any_moment_leaves_whole_lines(tmp_path: Path) -> None:
    """A training that never ends, killed while it writes: each step it reported is there."""
    with subprocess.Popen(
        [warm_python(), "-c", TRAINING + "train(start(), 10**9)", str(tmp_path / "run")],
        env=child_environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        for _ in range(50):
            child.stdout.readline()
        child.kill()
        reported = 50 + len(child.stdout.read().splitlines())
    assert not verify(tmp_path / "run").failed
    assert len(list(read_metrics(tmp_path / "run"))) in (reported, reported + 1)


def test_a_process_that_leaves_at_once_leaves_what_it_had(tmp_path: Path) -> None:
    """`os._exit` runs no handler; the record is like that of a killed process."""
    done = run("train(start(), 14)\nos._exit(5)", str(tmp_path / "run"))
    assert done.returncode == 5
    assert len(list(read_metrics(tmp_path / "run"))) == STEPS
    assert not verify(tmp_path / "run").failed


FORKED = """
monitor = start()
train(monitor, 14)
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert os.path.exists(sys.argv[1] + "/record.lock")
train(monitor, 1)
monitor.close()
"""


def test_the_exit_of_a_forked_child_ends_nothing(tmp_path: Path) -> None:
    """A child that inherits the monitor neither writes nor gives the lock back."""
    done = run(FORKED, str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    require_sound(tmp_path / "run", rows=STEPS + 1, complete=True)
    assert [end.error for end in ends(tmp_path / "run")] == [None]


DROPPED = """
monitor = start()
train(monitor, 3)
monitor.close()
before = len(open(sys.argv[1] + "/record.jsonl").readlines())
del monitor
assert len(open(sys.argv[1] + "/record.jsonl").readlines()) == before
"""


def test_a_closed_run_is_not_ended_again(tmp_path: Path) -> None:
    """Neither when its monitor goes, nor when the process does."""
    done = run(DROPPED, str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    require_sound(tmp_path / "run", rows=3, complete=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB; skipped where none can be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["/bin/mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small file system, and not in every container")
    yield folder
    subprocess.run(["/bin/umount", "-l", str(folder)], check=True)


FILLED = """
ballast = os.path.join(os.path.dirname(sys.argv[1]), "ballast")
monitor = start()
train(monitor, 3)
with open(ballast, "wb", buffering=0) as file:
    try:
        while file.write(b"x" * 256) == 256:
            pass
    except OSError as error:
        assert error.errno == 28
train(monitor, 60)
if len(sys.argv) > 2:
    os.remove(ballast)
    train(monitor, 3)
monitor.close()
print("done")
"""
LIMITED = """
import resource
monitor = start()
train(monitor, 3)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, hard))
train(monitor, 60)
if len(sys.argv) > 2:
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    train(monitor, 3)
monitor.close()
print("done")
"""


def require_one_error(done: "subprocess.CompletedProcess[str]") -> None:
    """Check that the training came to its end, and that one line says why the record did not."""
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")
    (line,) = done.stderr.splitlines()
    assert "cannot be written" in line
    assert "Training goes on" in line


def require_gap(out: Path, *, rows: int) -> None:
    """Check that the record holds together, and says how many measurements it lacks."""
    gaps = [line.event for line in read_record(out) if isinstance(line.event, RecordGap)]
    assert gaps
    require_sound(out, rows=rows - sum(gap.measurements for gap in gaps), complete=False)
    said = {check.name: check.sentence for check in verify(out).checks}
    assert "missing" in said["completeness"], said
    assert not any("torn" in sentence for sentence in said.values())


def test_a_full_disk_costs_measurements_and_no_training(small_disk: Path) -> None:
    """A real one: one error, the training goes on, and the record says what it lacks."""
    done = run(FILLED, str(small_disk / "run"), "freed")
    require_one_error(done)
    require_gap(small_disk / "run", rows=66)


def test_a_disk_that_stays_full_leaves_whole_lines(small_disk: Path) -> None:
    """Nothing that was written is lost, and no line is torn."""
    done = run(FILLED, str(small_disk / "run"))
    require_one_error(done)
    found = verify(small_disk / "run")
    assert not found.failed, found.checks
    assert not any("torn" in check.sentence for check in found.checks)


def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    """The same by RLIMIT_FSIZE, which needs no root."""
    done = run(LIMITED, str(tmp_path / "run"), "freed")
    require_one_error(done)
    require_gap(tmp_path / "run", rows=66)


def test_a_file_that_never_grows_again_leaves_whole_lines(tmp_path: Path) -> None:
    """Nothing that was written is lost, and no line is torn."""
    done = run(LIMITED, str(tmp_path / "run"))
    require_one_error(done)
    found = verify(tmp_path / "run")
    assert not found.failed, found.checks
    assert not any("torn" in check.sentence for check in found.checks)
