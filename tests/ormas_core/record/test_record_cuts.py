"""Records and metrics that are cut, swapped or empty, and what the anchors say of it."""

import json
import os
import shutil
from pathlib import Path

import event_samples
import pytest
from seal_support import outcomes, sentence

from ormas_core.record import (
    METRICS_FILE,
    RECORD_FILE,
    chain,
    encode,
    read_metrics,
    read_record,
    verify_record,
)
from ormas_core.testing import measurement

FILES = (RECORD_FILE, METRICS_FILE)
ANCHOR = b'"event":"anchor"'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small finished run: 4 record lines with anchors between them, 1 metrics row."""
    run = tmp_path / "run"
    event_samples.write_run(run, checks=1)
    return run


def test_a_record_cut_anywhere_is_an_interrupted_one(folder: Path) -> None:
    """Cut at each byte: whole lines verify, a torn one is named by offset, nothing is complete.

    What is left says up to which anchor it is covered.
    """
    path = folder / RECORD_FILE
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(len(whole) - 1, -1, -1):
        os.truncate(path, size)
        verification = verify_record(folder)
        found = outcomes(verification)
        kept = [end for end in ends if end <= size]
        assert found["chain"] == ("pass" if kept else "fail"), size
        assert found["completeness"] == "absent", size
        covered = sentence(verification, "completeness")
        assert "INTERRUPTED" in covered
        anchored = [n for n, line in enumerate(whole[:size].split(b"\n")[:-1], 1) if ANCHOR in line]
        last = f"the anchor in line {anchored[-1]} of {len(kept)}" if anchored else "no anchor"
        assert last in covered
        assert len(list(read_record(folder))) == len(kept)
        if kept and kept[-1] != size:
            assert f"torn last line at byte {kept[-1]} " in sentence(verification, "chain")
        elif kept:
            assert "torn" not in sentence(verification, "chain")


def test_metrics_cut_anywhere_fail_against_the_anchors(folder: Path) -> None:
    """Rows that an anchor pins cannot be cut off unnoticed."""
    path = folder / METRICS_FILE
    for size in range(path.stat().st_size - 1, -1, -1):
        os.truncate(path, size)
        verification = verify_record(folder)
        assert outcomes(verification)["metrics"] == "fail", size
        assert "pins 1 rows; 0 are there" in sentence(verification, "metrics")
        assert list(read_metrics(folder)) == []


def test_metrics_that_are_missing_fail(folder: Path) -> None:
    """A folder without `metrics.jsonl` is not what the monitor wrote."""
    (folder / METRICS_FILE).unlink()
    verification = verify_record(folder)
    assert outcomes(verification)["metrics"] == "fail"
    assert sentence(verification, "metrics") == "metrics.jsonl is missing."


def test_metrics_of_another_run_fail_against_the_anchors(folder: Path, tmp_path: Path) -> None:
    """Rows with an intact chain of their own are still not the ones the record pins."""
    other = tmp_path / "other"
    event_samples.write_run(other, checks=3)
    shutil.copy(other / METRICS_FILE, folder / METRICS_FILE)
    path = folder / METRICS_FILE
    rows = path.read_bytes().splitlines(keepends=True)
    members = {**json.loads(rows[0]), "loss": 0.5}
    del members["hash"]
    path.write_bytes(chain.seal(members)[0])
    verification = verify_record(folder)
    assert outcomes(verification)["metrics"] == "fail"
    assert "pins another row 1" in sentence(verification, "metrics")


@pytest.mark.parametrize(
    ("change", "check", "says"),
    [
        ({"head": "a" * 64}, "chain", "the anchor does not name the line before it"),
        ({"lines": 5}, "chain", "the anchor does not name the line before it"),
        ({"metrics_head": "a" * 64}, "metrics", "pins another row 1"),
        ({"metrics_rows": 2}, "metrics", "pins 2 rows; 1 are there"),
        ({"metrics_rows": -1}, "metrics", "pins -1 rows, fewer than an earlier one"),
        ({"metrics_rows": 0}, "metrics", "pins 0 rows, fewer than an earlier one"),
        ({"metrics_bytes": 7}, "metrics", "pins 7 bytes; the rows have {size}"),
    ],
)
def test_an_anchor_that_disagrees_fails(
    folder: Path, change: dict[str, object], check: str, says: str
) -> None:
    """Each of an anchor's claims is checked, and the sentence names the line."""
    path = folder / RECORD_FILE
    lines = path.read_bytes().splitlines(keepends=True)
    members = {**json.loads(lines[-1]), **change}
    del members["hash"]
    lines[-1] = chain.seal(members)[0]
    path.write_bytes(b"".join(lines))
    verification = verify_record(folder)
    failed = {name for name, outcome in outcomes(verification).items() if outcome == "fail"}
    assert failed == {check}
    size = (folder / METRICS_FILE).stat().st_size
    prefix = (
        "The anchor in line {} of record.jsonl" if check == "metrics" else "record.jsonl, line {}:"
    )
    expected = f"{prefix.format(len(lines))} {says.format(size=size)}."
    assert sentence(verification, check) == expected


def test_the_metrics_sentence_says_how_much_is_pinned(tmp_path: Path) -> None:
    """Rows after the last anchor are covered by the chain alone, and the numbers say so."""
    event_samples.write_run(tmp_path, checks=3, finished=False)
    lines = (tmp_path / RECORD_FILE).read_bytes().splitlines(keepends=True)
    (tmp_path / RECORD_FILE).write_bytes(b"".join(lines[:-1]))
    expected = "3 rows of metrics.jsonl, each hash and link as written; anchors pin 2 of them."
    assert sentence(verify_record(tmp_path), "metrics") == expected


@pytest.mark.parametrize("extra", [b"{", None], ids=["torn", "row"])
def test_rows_after_the_end_of_a_finished_run_fail(tmp_path: Path, extra: bytes | None) -> None:
    """The closing anchor pins all of the metrics, so that nothing can be added to them."""
    event_samples.write_run(tmp_path, checks=1)
    path = tmp_path / METRICS_FILE
    rows = path.read_bytes()
    head = json.loads(rows)["hash"]
    more = (
        chain.seal({**encode(measurement(0, {"head": 1.0})), "seq": 1, "prev": head})[0]
        if extra is None
        else extra
    )
    path.write_bytes(rows + more)
    assert outcomes(verify_record(tmp_path))["metrics"] == "fail"
    assert "The last anchor pins 1 rows" in sentence(verify_record(tmp_path), "metrics")


def test_an_unfinished_second_segment_is_interrupted(tmp_path: Path) -> None:
    """The end of the first segment does not complete a record that was continued."""
    event_samples.write_run(tmp_path)
    event_samples.write_run(tmp_path, segment=1, finished=False)
    verification = verify_record(tmp_path)
    assert not verification.failed
    assert outcomes(verification)["completeness"] == "absent"


def test_an_empty_record_fails(tmp_path: Path) -> None:
    """A file without any line proves nothing."""
    for name in FILES:
        (tmp_path / name).touch()
    verification = verify_record(tmp_path)
    assert outcomes(verification)["chain"] == "fail"
    assert verification.head == chain.GENESIS


def test_a_folder_without_a_record_raises(tmp_path: Path) -> None:
    """There is nothing to verify, which is no verdict."""
    with pytest.raises(FileNotFoundError, match=RECORD_FILE):
        verify_record(tmp_path)
    with pytest.raises(FileNotFoundError, match=RECORD_FILE):
        list(read_record(tmp_path))
