"""The writer: whole lines only, nothing overwritten by accident, a record that survives a kill."""

import io
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import event_samples
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ormas_core import record
from ormas_core.errors import RecordExistsError, RecordFormatError
from ormas_core.events import (
    LossReduced,
)
from ormas_core.record import METRICS_FILE, RECORD_FILE, RecordWriter, read_record, verify_record
from ormas_core.record.reader import _tail
from ormas_core.record_events import RecordGap
from ormas_core.testing import measurement, run_start

ROOT = Path(record.__file__).parents[2]


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file under `folder`."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_events_go_to_the_record_and_measurements_to_the_metrics(tmp_path: Path) -> None:
    """Two chained files, each with its own numbers from 0."""
    writer = RecordWriter(tmp_path / "a" / "b")
    writer.write(run_start())
    writer.write(measurement(0, {"head": 1.0}))
    writer.write(event_samples.run_end())
    writer.close()
    assert [line.event.kind for line in read_record(writer.folder)] == ["run_start", "run_end"]
    assert [row.norms for row in record.read_metrics(writer.folder)] == [(1.0,)]


def test_a_line_is_in_the_file_when_write_returns(tmp_path: Path) -> None:
    """Nothing waits in a buffer for a close that a crash prevents."""
    writer = RecordWriter(tmp_path)
    writer.write(run_start())
    assert len(list(read_record(tmp_path))) == 1
    writer.write(measurement(0, {"head": 1.0}))
    assert len(list(record.read_metrics(tmp_path))) == 1
    writer.close()


def test_an_anchor_names_the_state_of_both_files(tmp_path: Path) -> None:
    """Before anything is written it names the genesis, then the last line and row."""
    writer = RecordWriter(tmp_path)
    empty = writer.anchor(0)
    assert (empty.head, empty.lines) == ("0" * 64, 0)
    assert (empty.metrics_head, empty.metrics_rows, empty.metrics_bytes) == ("0" * 64, 0, 0)
    writer.write(run_start())
    writer.write(measurement(0, {"head": 1.0}))
    found = writer.anchor(5)
    writer.close()
    (line,) = read_record(tmp_path)
    assert (found.step, found.head, found.lines, found.metrics_rows) == (5, line.hash, 1, 1)
    assert found.metrics_head != empty.metrics_head
    assert found.metrics_bytes == (tmp_path / METRICS_FILE).stat().st_size


@pytest.mark.parametrize("present", [RECORD_FILE, METRICS_FILE])
def test_an_existing_record_is_refused_with_both_ways_out(tmp_path: Path, present: str) -> None:
    """Either file counts; the message names the folder, `out=` and `overwrite=True`."""
    (tmp_path / present).write_bytes(b"precious\n")
    (tmp_path / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(FileExistsError, match="already holds a record") as caught:
        RecordWriter(tmp_path)
    assert isinstance(caught.value, RecordExistsError)
    assert caught.value.subject == str(tmp_path)
    assert str(caught.value) == (
        f"The run folder {str(tmp_path)!r} already holds a record ({present}). Nothing was "
        "changed. Choose another folder with out=..., pass resume=True to go on with that record, "
        "or overwrite=True to delete it."
    )
    assert contents(tmp_path) == before


def test_a_link_to_nowhere_counts_as_a_record(tmp_path: Path) -> None:
    """Writing through a dangling link would put the record somewhere else."""
    (tmp_path / RECORD_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecordExistsError):
        RecordWriter(tmp_path)
    RecordWriter(tmp_path, overwrite=True).close()
    assert not (tmp_path / RECORD_FILE).is_symlink()
    assert not (tmp_path / "elsewhere").exists()


def test_overwrite_deletes_the_record_files_only(tmp_path: Path) -> None:
    """Everything else in the run folder is the user's, checkpoints above all."""
    event_samples.write_run(tmp_path)
    others = {"report.html": b"x", "rank-1/record.jsonl": b"y", "record.jsonl.bak": b"z"}
    for name, data in others.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    RecordWriter(tmp_path, overwrite=True).close()
    assert contents(tmp_path) == {**others, RECORD_FILE: b"", METRICS_FILE: b""}


def test_a_further_segment_continues_the_chain(tmp_path: Path) -> None:
    """`append` goes on at the last line of both files; the first segment's bytes stay."""
    event_samples.write_run(tmp_path)
    before = contents(tmp_path)
    event_samples.write_run(tmp_path, segment=1)
    after = contents(tmp_path)
    assert all(
        after[name].startswith(data) and after[name] != data for name, data in before.items()
    )
    assert verify_record(tmp_path).complete
    lines = list(read_record(tmp_path))
    assert [line.seq for line in lines] == list(range(len(lines)))
    assert [line.event.kind for line in lines].count("run_start") == 2


def test_append_counts_before_overwrite(tmp_path: Path) -> None:
    """A further segment of the same run never deletes the first one."""
    event_samples.write_run(tmp_path)
    before = contents(tmp_path)
    RecordWriter(tmp_path, append=True, overwrite=True).close()
    assert contents(tmp_path) == before


def test_append_starts_a_record_where_there_is_none(tmp_path: Path) -> None:
    """A first segment may be the one that continues."""
    event_samples.write_run(tmp_path, segment=1)
    assert verify_record(tmp_path).complete


def test_append_continues_after_a_line_longer_than_a_block(tmp_path: Path) -> None:
    """The last line is found however long it is: here one that names 20,000 layers."""
    layers = [f"encoder.layer.{i}" for i in range(20_000)]
    for segment in range(2):
        writer = RecordWriter(tmp_path, append=segment > 0)
        writer.write(run_start(layers, segment=segment))
        writer.close()
    assert (tmp_path / RECORD_FILE).stat().st_size > 2 * 65536 * 2
    assert [line.seq for line in read_record(tmp_path)] == [0, 1]
    assert verify_record(tmp_path).failed is False


@given(
    lines=st.lists(st.sampled_from([b"\n", b"a\n", b"bcd\n", b"ef ghij kl\n"]), max_size=4),
    torn=st.sampled_from([b"", b"", b"x", b"yz"]),
    block=st.integers(1, 12) | st.just(100),
)
def test_the_last_line_is_found_whatever_the_block(
    lines: list[bytes], torn: bytes, block: int
) -> None:
    """Read backwards in blocks of any size, the last line is the one that reading on ends at."""
    data = b"".join([*lines, torn])
    expected = torn or (lines[-1] if lines else b"")
    assert _tail(io.BytesIO(data), block) == expected


@pytest.mark.parametrize("name", [RECORD_FILE, METRICS_FILE])
def test_a_torn_file_is_not_continued(tmp_path: Path, name: str) -> None:
    """A line after a torn one could not be told from tampering; nothing is changed."""
    event_samples.write_run(tmp_path)
    path = tmp_path / name
    os.truncate(path, path.stat().st_size - 1)
    before = contents(tmp_path)
    with pytest.raises(RecordFormatError, match="ends in a torn line") as caught:
        RecordWriter(tmp_path, append=True)
    assert str(path) in str(caught.value)
    assert contents(tmp_path) == before


def test_a_run_start_after_close_continues_the_record(tmp_path: Path) -> None:
    """The same sink serves a second `fit()`, also when another writer came in between."""
    writer = RecordWriter(tmp_path)
    writer.write(run_start())
    writer.close()
    event_samples.write_run(tmp_path, segment=1)
    writer.write(run_start(segment=2))
    writer.write(measurement(0, {"head": 1.0}))
    writer.write(writer.anchor(0))
    writer.close()
    verification = verify_record(tmp_path)
    assert not verification.failed, verification.checks


def test_other_events_after_close_are_refused(tmp_path: Path) -> None:
    """A late event does not open a record again."""
    writer = RecordWriter(tmp_path)
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(event_samples.run_end())
    assert contents(tmp_path)[RECORD_FILE] == b""


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


def test_what_must_survive_a_power_cut_is_forced_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Critical events, anchors and the end; the rows that an anchor pins before the anchor."""
    writer = RecordWriter(tmp_path)
    writer.write(run_start())
    forced: list[tuple[str, int]] = []

    def fsync(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        forced.append((name, len((tmp_path / RECORD_FILE).read_bytes().splitlines())))

    monkeypatch.setattr(os, "fsync", fsync)
    writer.write(LossReduced(step=1, elements=2))
    writer.write(measurement(1, {"head": 1.0}))
    assert forced == []
    writer.write(event_samples.sample_events()["nonfinite_loss"])
    writer.write(writer.anchor(1))
    writer.write(event_samples.run_end())
    writer.close()
    assert forced == [(RECORD_FILE, 3), (METRICS_FILE, 3), (RECORD_FILE, 4), (RECORD_FILE, 5)]


def test_a_disk_that_cannot_be_forced_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Some file systems refuse; the lines are written all the same."""

    def refuse(descriptor: int) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    writer = RecordWriter(tmp_path)
    writer.write(run_start())
    for step in range(3):
        writer.write(writer.anchor(step))
    writer.close()
    assert len(caplog.records) == 2  # one for each file
    assert all("could not be forced" in record.message for record in caplog.records)
    assert len(list(read_record(tmp_path))) == 4


def test_equal_events_make_different_lines(tmp_path: Path) -> None:
    """Number and link make every line unique, so a repetition cannot hide."""
    writer = RecordWriter(tmp_path)
    for _ in range(3):
        writer.write(replace(LossReduced(step=1, elements=2), time_ns=5))
    writer.close()
    assert len({line.hash for line in read_record(tmp_path)}) == 3
