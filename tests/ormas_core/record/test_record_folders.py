"""A folder that holds a record: refused, deleted or continued, never overwritten by accident."""

import io
import os
from pathlib import Path

import event_samples
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ormas_core.errors import RecordExistsError, RecordFormatError
from ormas_core.record import METRICS_FILE, RECORD_FILE, RecordWriter, read_record, verify_record
from ormas_core.record.reader import _tail
from ormas_core.testing import measurement, run_start


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file under `folder`."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


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
