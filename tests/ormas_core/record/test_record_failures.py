"""The writer on a full disk, interrupted, forked and killed: whole lines only."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import event_samples
import pytest

from ormas_core import record
from ormas_core.events import (
    LossReduced,
)
from ormas_core.record import RecordWriter, read_record, verify_record
from ormas_core.record_events import RecordGap
from ormas_core.testing import run_start

ROOT = Path(record.__file__).parents[2]
_DISK_FULL = """
import resource, sys
from ormas_core.events import LossReduced
from ormas_core.record import RecordWriter
from ormas_core.testing import measurement, run_start

def write_until_full(event):
    for _ in range(10_000):
        before = writer.anchor(0)
        writer.write(event)
        if writer.anchor(0) == before:
            return
    raise AssertionError("the limit was never met")

writer = RecordWriter(sys.argv[1])
writer.write(run_start())
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), hard))
for event in (LossReduced(step=1, elements=2), measurement(0, {"head": 1.0})):
    write_until_full(event)
    write_until_full(event)
    before = [writer.anchor(0).lines, writer.anchor(0).metrics_rows]
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
writer.write(measurement(1, {"head": 1.0}))
writer.write(writer.anchor(2))
writer.close()
print(*before)
"""
# The record is filled first, so the gap is told when there is room again.


@pytest.mark.parametrize("limit", [5_000, 5_001, 5_113])
def test_a_full_disk_leaves_whole_lines(tmp_path: Path, limit: int) -> None:
    """A line that fits only in part is taken back, so a later one continues the chain."""
    done = subprocess.run(
        [sys.executable, "-c", _DISK_FULL, str(tmp_path), str(limit)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (error,) = done.stderr.splitlines()
    assert "cannot be written: " in error
    assert "Training goes on." in error
    lines, rows = map(int, done.stdout.split())
    *_, gap, anchor = [line.event for line in read_record(tmp_path)]
    assert isinstance(gap, RecordGap)
    assert (gap.events, gap.measurements) == (2, 2)
    assert anchor.kind == "anchor"
    assert len(list(read_record(tmp_path))) == lines + 2
    assert len(list(record.read_metrics(tmp_path))) == rows + 1
    verification = verify_record(tmp_path)
    assert not verification.failed, verification.checks
    assert not any("torn" in check.sentence for check in verification.checks)


class _Interrupted:
    """A file in which Ctrl-C arrives during the next write: before, within, or after it."""

    def __init__(self, file: Any, written: int) -> None:
        self._file = file
        self._written = written

    def write(self, line: bytes) -> int:
        self._file.write(line[: self._written])
        raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("written", [0, 1, 40, 10_000])
def test_an_interrupt_during_a_write_breaks_no_chain(tmp_path: Path, written: int) -> None:
    """The line is taken back, and what is written while the run ends continues the chain."""
    writer = RecordWriter(tmp_path)
    writer.write(run_start())
    file = writer._record._file
    writer._record._file = _Interrupted(file, written)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        writer.write(LossReduced(step=1, elements=2))
    writer._record._file = file
    writer.write(event_samples.run_end())
    writer.write(writer.anchor(1))
    writer.close()
    assert [line.event.kind for line in read_record(tmp_path)] == ["run_start", "run_end", "anchor"]
    assert verify_record(tmp_path).complete


_FORKED = """
import os, sys
from ormas_core.events import LossReduced
from ormas_core.record import RecordWriter
from ormas_core.testing import measurement, run_start

writer = RecordWriter(sys.argv[1])
writer.write(run_start())
child = os.fork()
if child == 0:
    writer.write(LossReduced(step=1, elements=2))
    writer.write(measurement(1, {"head": 1.0}))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
writer.write(LossReduced(step=2, elements=2))
writer.write(writer.anchor(2))
writer.close()
"""


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    """A data loader's worker holds a copy of the writer; two writers would break the chain."""
    done = subprocess.run(
        [sys.executable, "-c", _FORKED, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line.event.step for line in read_record(tmp_path)] == [0, 2, 2]
    assert list(record.read_metrics(tmp_path)) == []
    assert not verify_record(tmp_path).failed


_ENDLESS = """
import sys
from ormas_core.record import RecordWriter
from ormas_core.testing import measurement, run_start

writer = RecordWriter(sys.argv[1])
writer.write(run_start())
step = 0
while True:
    writer.write(measurement(step, {"head": 1.0}))
    writer.write(writer.anchor(step))
    print(step, flush=True)
    step += 1
"""


def test_a_killed_run_leaves_a_valid_prefix(tmp_path: Path) -> None:
    """SIGKILL in the middle of writing: every line that was reported is there and verifies."""
    with subprocess.Popen(
        [sys.executable, "-c", _ENDLESS, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        reported = [int(child.stdout.readline()) for _ in range(200)]
        child.send_signal(signal.SIGKILL)
        child.stdout.read()
    assert child.returncode == -signal.SIGKILL
    verification = verify_record(tmp_path)
    assert not verification.failed, verification.checks
    assert not verification.complete
    steps = [line.event.step for line in read_record(tmp_path)]
    assert steps[1:201] == reported == list(range(200))
    said = {check.name: check.sentence for check in verification.checks}
    assert "INTERRUPTED" in said["completeness"]
