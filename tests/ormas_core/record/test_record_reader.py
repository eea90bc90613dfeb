"""Reading lines: what is no event is refused, and what was written comes back."""

import hashlib
import shutil
from pathlib import Path

import event_samples
import pytest

from ormas_core.errors import RecordFormatError
from ormas_core.events import Measurement
from ormas_core.record import (
    METRICS_FILE,
    RECORD_FILE,
    read_metrics,
    read_record,
    verify_record,
)
from ormas_core.record.reader import parse_line


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small finished run: 4 record lines with anchors between them, 1 metrics row."""
    run = tmp_path / "run"
    event_samples.write_run(run, checks=1)
    return run


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "not valid JSON"),
        (b'{"loss":NaN}', "not valid JSON: bare NaN"),
        (b'{"seq":0,"seq":0}', "not valid JSON: a member name occurs twice"),
        (b'{"prev":"0"}', "seq must be an integer"),
        (b'{"prev":0,"seq":0}', "prev a string"),
        (b'{"prev":"0","seq":true}', "seq must be an integer"),
        (b'{"prev":"0","seq":0}', "unknown event kind None"),
        (b'{"a":' + b"[" * 100_000 + b"}", "not valid JSON"),
    ],
)
def test_a_sealed_line_that_is_no_event_is_refused(tmp_path: Path, body: bytes, says: str) -> None:
    """A right hash makes no event: the reader names the line, the verifier fails the chain."""
    seal = hashlib.sha256(body).hexdigest().encode()
    line = body[:-1] + b',"hash":"' + seal + b'"}'
    with pytest.raises(RecordFormatError, match=says):
        parse_line(line)
    (tmp_path / RECORD_FILE).write_bytes(line + b"\n")
    with pytest.raises(RecordFormatError) as caught:
        list(read_record(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path / RECORD_FILE}, line 1: ")
    assert caught.value.subject == str(tmp_path / RECORD_FILE)
    assert verify_record(tmp_path).failed


def test_a_metrics_row_that_is_no_measurement_is_refused(folder: Path) -> None:
    """`read_metrics` yields measurements and nothing else."""
    shutil.copy(folder / RECORD_FILE, folder / METRICS_FILE)
    with pytest.raises(RecordFormatError, match="row 0: run_start, no measurement"):
        list(read_metrics(folder))


def test_measurements_come_back_as_they_were(tmp_path: Path) -> None:
    """What the rules were given can be given to them again."""
    event_samples.write_run(tmp_path, checks=3)
    rows = list(read_metrics(tmp_path))
    assert [type(row) for row in rows] == [Measurement] * 3
    assert [row.norms for row in rows] == [(1.5, None), (2.5, None), (3.5, None)]
