"""The writer: two chained files of whole lines, on the disk when they must be."""

import os
from dataclasses import replace
from pathlib import Path

import event_samples
import pytest

from ormas_core import record
from ormas_core.errors import RecordFormatError
from ormas_core.events import (
    LossReduced,
)
from ormas_core.record import METRICS_FILE, RECORD_FILE, RecordWriter, read_record, verify_record
from ormas_core.record.strict import MAX_VALUES
from ormas_core.testing import measurement, run_start


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


def test_a_line_that_no_reader_takes_is_not_written(tmp_path: Path) -> None:
    """Of too many values or too many bytes; what is written before and after verifies."""
    writer = RecordWriter(tmp_path)
    writer.write(run_start())
    for name, count, says in (("x", MAX_VALUES, "values; a line has"), ("x" * 99, 90_000, "bytes")):
        with pytest.raises(RecordFormatError, match=says):
            writer.write(run_start((name,) * count))
    writer.write(writer.anchor(0))
    writer.close()
    assert not verify_record(tmp_path).failed
