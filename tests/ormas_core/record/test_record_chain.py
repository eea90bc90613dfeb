"""The chain of a run folder: what `verify_record` lets through and what it does not."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import event_samples
import pytest

from ormas_core.errors import RecordFormatError
from ormas_core.events import Anchor, Event, Measurement
from ormas_core.record import (
    METRICS_FILE,
    RECORD_FILE,
    Verification,
    chain,
    encode,
    read_metrics,
    read_record,
    read_run,
    verify_record,
)
from ormas_core.record.reader import parse_line
from ormas_core.record.verify import CHECKS, WHOLE
from ormas_core.testing import measurement, run_start
from ormas_core.version import RECORD_SCHEMA

FILES = (RECORD_FILE, METRICS_FILE)
ANCHOR = b'"event":"anchor"'


def chain_holds(data: bytes) -> bool:
    """Check a file's chain with nothing but hashlib and json; a torn last line is left out."""
    prev = "0" * 64
    for seq, raw in enumerate(data.split(b"\n")[:-1]):
        try:
            members = json.loads(raw)
            body = raw[: raw.rindex(b',"hash":"')] + b"}"
        except ValueError:
            return False
        if hashlib.sha256(body).hexdigest() != members["hash"]:
            return False
        if (members["prev"], members["seq"]) != (prev, seq):
            return False
        prev = members["hash"]
    return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small finished run: 4 record lines with anchors between them, 1 metrics row."""
    run = tmp_path / "run"
    event_samples.write_run(run, checks=1)
    return run


def outcomes(verification: Verification) -> dict[str, str]:
    """Return the outcome of every check by name."""
    return {check.name: check.outcome.value for check in verification.checks}


def sentence(verification: Verification, name: str) -> str:
    """Return what one check says."""
    (found,) = (check.sentence for check in verification.checks if check.name == name)
    return found


def assert_agrees(verification: Verification, name: str, data: bytes) -> None:
    """Compare with the other implementation of the chain; anchors pin the metrics besides."""
    if name == RECORD_FILE:
        assert (outcomes(verification)["chain"] == "pass") is chain_holds(data)
    else:
        assert chain_holds(data) or outcomes(verification)["metrics"] == "fail"


def test_a_finished_run_passes_every_check(folder: Path) -> None:
    """An untouched record is complete, and both implementations of the chain agree."""
    verification = verify_record(folder)
    found = outcomes(verification)
    assert list(found) == list(CHECKS)
    assert {name for name, outcome in found.items() if outcome == "pass"} == WHOLE
    assert verification.complete
    assert not verification.failed
    assert all(chain_holds((folder / name).read_bytes()) for name in FILES)


def test_the_head_is_the_one_that_the_last_anchor_names(folder: Path) -> None:
    """`Verification.head` can be compared with what the sinks were sent."""
    *_, before, last = read_record(folder)
    assert isinstance(last.event, Anchor)
    assert verify_record(folder).head == last.event.head == before.hash


def test_without_an_anchor_the_head_is_the_last_hash(tmp_path: Path) -> None:
    """A run that was killed before its first anchor still has a head."""
    event_samples.write_run(tmp_path, anchored=False)
    *_, last = read_record(tmp_path)
    verification = verify_record(tmp_path)
    assert verification.head == last.hash
    assert sentence(verification, "chain").endswith("; no anchor.")
    assert sentence(verification, "metrics").endswith("; anchors pin 0 of them.")
    assert sentence(verification, "completeness").endswith("; no anchor covers any of it.")
    assert not verification.complete


@pytest.mark.parametrize("name", FILES)
def test_every_change_of_a_single_byte_is_found(folder: Path, name: str) -> None:
    """Three mutations of each byte of both files: some check fails, or the last line is torn.

    The independent check of the chain agrees every time.
    """
    path = folder / name
    whole = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for place, byte in enumerate(whole):
            for other in {byte ^ 1, byte ^ 0x20, ord("\n")} - {byte}:
                os.pwrite(file.fileno(), bytes([other]), place)
                verification = verify_record(folder)
                mutated = whole[:place] + bytes([other]) + whole[place + 1 :]
                assert_agrees(verification, name, mutated)
                if place == len(whole) - 1 and name == RECORD_FILE:
                    assert outcomes(verification)["completeness"] == "absent"
                else:
                    assert verification.failed, (place, bytes([byte]), bytes([other]))
            os.pwrite(file.fileno(), bytes([byte]), place)
    assert verify_record(folder).complete


def _edits(lines: list[bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """Yield every deletion, duplication, swap and insertion of whole lines."""
    foreign = chain.seal({**encode(event_samples.run_end()), "seq": 1, "prev": "1" * 64})[0]
    for i, line in enumerate(lines):
        yield f"delete {i}", lines[:i] + lines[i + 1 :]
        yield f"duplicate {i}", [*lines[:i], line, *lines[i:]]
        yield f"swap {i}", [*lines[:i], *lines[i : i + 2][::-1], *lines[i + 2 :]]
        yield f"insert a blank line before {i}", [*lines[:i], b"\n", *lines[i:]]
        yield f"insert a foreign line before {i}", [*lines[:i], foreign, *lines[i:]]
    yield "append a foreign line", [*lines, foreign]


@pytest.mark.parametrize("name", FILES)
def test_every_edit_of_whole_lines_is_found(tmp_path: Path, name: str) -> None:
    """Deleting, repeating, swapping or inserting a line fails a check.

    Deleting the last line of the record leaves an intact prefix, which is no complete record.
    """
    event_samples.write_run(tmp_path, checks=3)
    path = tmp_path / name
    lines = path.read_bytes().splitlines(keepends=True)
    last = len(lines) - 1
    for what, edited in _edits(lines):
        if edited == lines:
            continue  # swapping the last line with nothing
        path.write_bytes(b"".join(edited))
        verification = verify_record(tmp_path)
        assert_agrees(verification, name, b"".join(edited))
        assert not verification.complete, what
        assert verification.failed or (name == RECORD_FILE and what == f"delete {last}"), what


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


@pytest.mark.parametrize("member", ["seq", "prev"])
def test_a_resealed_line_must_still_fit_its_place(folder: Path, member: str) -> None:
    """A right hash over a wrong number or a wrong link is found by that number or link."""
    path = folder / RECORD_FILE
    first, *rest = path.read_bytes().splitlines(keepends=True)
    members = json.loads(first)
    del members["hash"]
    members[member] = {"seq": 1, "prev": "f" * 64}[member]
    path.write_bytes(chain.seal(members)[0])
    assert rest
    verification = verify_record(folder)
    assert outcomes(verification)["chain"] == "fail"
    expected = {"seq": "its number is 1, its place is 0", "prev": "it follows ffffffffffff"}
    assert expected[member] in sentence(verification, "chain")


def test_a_whole_record_written_anew_has_another_head(folder: Path, tmp_path: Path) -> None:
    """Nothing in the folder betrays a forgery of everything; the head that was sent away does."""
    forged = tmp_path / "forged"
    event_samples.write_run(forged, checks=2)
    assert verify_record(forged).complete
    assert verify_record(forged).head != verify_record(folder).head


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
    more = chain.seal({**encode(ROW), "seq": 1, "prev": head})[0] if extra is None else extra
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
