"""The chain of a run folder: every change of what was written is found."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import event_samples
import pytest
from chain_support import assert_agrees, chain_holds
from seal_support import outcomes, sentence

from ormas_core.events import Anchor
from ormas_core.record import (
    METRICS_FILE,
    RECORD_FILE,
    chain,
    encode,
    read_record,
    verify_record,
)
from ormas_core.record.verify import CHECKS, WHOLE

FILES = (RECORD_FILE, METRICS_FILE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small finished run: 4 record lines with anchors between them, 1 metrics row."""
    run = tmp_path / "run"
    event_samples.write_run(run, checks=1)
    return run


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
