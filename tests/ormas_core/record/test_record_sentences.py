"""What each question says, and which events may stand where."""

import hashlib
import json
import os
from pathlib import Path

import event_samples
import pytest
from seal_support import outcomes, sentence

from ormas_core.errors import RecordFormatError
from ormas_core.events import Event
from ormas_core.record import (
    METRICS_FILE,
    RECORD_FILE,
    chain,
    encode,
    read_run,
    verify_record,
)
from ormas_core.testing import measurement, run_start
from ormas_core.version import RECORD_SCHEMA

FILES = (RECORD_FILE, METRICS_FILE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small finished run: 4 record lines with anchors between them, 1 metrics row."""
    run = tmp_path / "run"
    event_samples.write_run(run, checks=1)
    return run


def test_every_check_says_what_was_found(folder: Path) -> None:
    """Word for word: what was counted, where it fails, and what was claimed against what is."""
    path = folder / RECORD_FILE
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert [check.sentence for check in verify_record(folder).checks] == [
        f"{len(lines)} lines of record.jsonl, each hash and link as written; 2 anchors.",
        "The record ends in run_end and its anchor.",
        "1 rows of metrics.jsonl, each hash and link as written; anchors pin 1 of them.",
        f"Format version {RECORD_SCHEMA}; every line is an event of a known kind in its place.",
        "The record holds no certificate.",
        "There is no record.dsse.json: the record is not signed.",
        "There is no signature.",
        "The record names no model file.",
        "Not asked for; --witness compares with heads kept elsewhere.",
        "Not asked for; --canonical serialises every line again.",
    ]

    path.write_bytes(whole + b"{")
    torn = verify_record(folder)
    assert sentence(torn, "chain") == (
        f"{len(lines)} lines of record.jsonl, each hash and link as written; 2 anchors. "
        f"A torn last line at byte {len(whole)} is left out."
    )
    assert sentence(torn, "completeness") == (
        "INTERRUPTED: the record does not end in run_end and its anchor; it is covered up to the "
        f"anchor in line {len(lines)} of {len(lines)} (step 1)."
    )

    changed = lines[1].replace(b'"manifest"', b'"manifesto"')
    claimed = json.loads(changed)["hash"]
    body = changed[: changed.rindex(b',"hash"')] + b"}"
    found = hashlib.sha256(body).hexdigest()
    path.write_bytes(lines[0] + changed + b"".join(lines[2:]))
    broken = verify_record(folder)
    assert sentence(broken, "chain") == (
        f"record.jsonl, line 2: its bytes hash to {found[:12]}, it claims {claimed[:12]}."
    )
    assert outcomes(broken)["completeness"] == "unchecked"

    path.write_bytes(lines[0] + lines[2])
    follows, before = json.loads(lines[2])["prev"], json.loads(lines[0])["hash"]
    assert sentence(verify_record(folder), "chain") == (
        f"record.jsonl, line 2: it follows {follows[:12]}, the line before is {before[:12]}."
    )

    path.write_bytes(b"{}\n")
    assert sentence(verify_record(folder), "chain") == (
        "record.jsonl, line 1: the line does not end in a hash member."
    )
    path.write_bytes(b"")
    assert sentence(verify_record(folder), "chain") == "record.jsonl holds no whole line."


def chained(*events: Event) -> bytes:
    """Return a file of these events with an intact chain."""
    data, head = b"", chain.GENESIS
    for seq, event in enumerate(events):
        line, head = chain.seal({**encode(event), "seq": seq, "prev": head})
        data += line
    return data


START, END = run_start(), event_samples.run_end()
REMARK = event_samples.sample_events()["loss_reduced"]
ROW = measurement(0, {"head": 1.0})


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([REMARK], "line 1: the record begins with loss_reduced, not run_start."),
        ([END], "line 1: the record begins with run_end, not run_start."),
        ([START, ROW], "line 2: a measurement does not belong into this file."),
        ([START, END, REMARK], "line 3: a loss_reduced follows the end of the run."),
        ([START, END, END], "line 3: a run_end follows the end of the run."),
    ],
)
def test_events_that_the_monitor_never_writes_there_fail_the_schema(
    folder: Path, events: list[Event], says: str
) -> None:
    """An intact chain of a record that cannot be one is a forgery."""
    (folder / RECORD_FILE).write_bytes(chained(*events))
    verification = verify_record(folder)
    assert outcomes(verification)["chain"] == "pass"
    assert outcomes(verification)["schema"] == "fail"
    assert sentence(verification, "schema") == f"record.jsonl, {says}"


def test_metrics_hold_measurements_only(folder: Path) -> None:
    """Whatever else is in that file was not measured."""
    (folder / METRICS_FILE).write_bytes(chained(ROW, START))
    expected = "metrics.jsonl, line 2: a run_start does not belong into this file."
    assert sentence(verify_record(folder), "schema") == expected


def test_sink_errors_and_a_further_segment_may_follow_the_end(folder: Path) -> None:
    """Sinks are closed after the run has ended, and a run may go on."""
    late = event_samples.sample_events()["sink_error"]
    (folder / RECORD_FILE).write_bytes(chained(START, REMARK, END, late, START, END))
    assert outcomes(verify_record(folder))["chain"] == "pass"


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_place_of_a_file_keeps_no_reader_waiting(folder: Path, name: str) -> None:
    """Reading one would wait for a writer that never comes."""
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(RecordFormatError, match="is a named pipe, not a regular file") as caught:
        list(read_run(folder))
    assert name in str(caught.value)
