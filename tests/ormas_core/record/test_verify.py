"""The questions that verify answers besides the chain: schema, certificates, gaps, witness."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import event_samples
import pytest
from process_support import child_environment
from seal_support import outcomes, sentence

from ormas_core.audit import EXAMINERS, verify_run
from ormas_core.errors import RecordChangedError, RecordFormatError
from ormas_core.events import (
    Event,
)
from ormas_core.record import (
    METRICS_FILE,
    RECORD_FILE,
    RecordWriter,
    Request,
    chain,
    encode,
    parse_heads,
    read_heads,
    read_record,
    verify,
    verify_record,
)
from ormas_core.record_events import RecordGap
from ormas_core.testing import run_start
from ormas_core.version import RECORD_SCHEMA

START, END = run_start(), event_samples.run_end()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished run of three checks."""
    run = tmp_path / "run"
    event_samples.write_run(run, checks=3)
    return run


def chained(*members: dict[str, Any]) -> bytes:
    """Return a file of these members with an intact chain."""
    data, head = b"", chain.GENESIS
    for seq, each in enumerate(members):
        line, head = chain.seal({**each, "seq": seq, "prev": head})
        data += line
    return data


def rewritten(folder: Path, at: int, **changes: Any) -> None:
    """Write the whole record anew with other members in one line, as a forger would."""
    found: list[dict[str, Any]] = []
    head = chain.GENESIS
    data = b""
    for raw in (folder / RECORD_FILE).read_bytes().splitlines():
        members = json.loads(raw)
        del members["hash"]
        if len(found) == at:
            members |= changes
        if members["event"] == "anchor":
            members["head"] = head
        members["prev"] = head
        line, head = chain.seal(members)
        data += line
        found.append(members)
    (folder / RECORD_FILE).write_bytes(data)


def test_unknown_kinds_are_named_and_counted(folder: Path) -> None:
    """Those of a later version are not guessed at; the chain over them is checked all the same."""
    line = encode(event_samples.sample_events()["loss_reduced"])
    unknown = {**line, "event": "quantum_leap"}
    (folder / RECORD_FILE).write_bytes(chained(encode(START), unknown, unknown))
    found = verify_record(folder)
    assert outcomes(found)["chain"] == "pass"
    assert sentence(found, "schema") == (
        "record.jsonl, line 2: unknown event kind 'quantum_leap' (and 1 more)."
    )


def test_a_later_format_version_fails_the_schema(folder: Path) -> None:
    """Even if every line could be read: what they mean may have changed."""
    later = dataclasses.replace(START, schema=RECORD_SCHEMA + 1)
    (folder / RECORD_FILE).write_bytes(chained(encode(later)))
    assert f"format version {RECORD_SCHEMA + 1}" in sentence(verify_record(folder), "schema")


def test_a_member_of_the_wrong_type_fails_the_schema(folder: Path) -> None:
    """With the member, what was found, and the line."""
    rewritten(folder, 1, mechanisms=7)
    found = verify_record(folder)
    assert outcomes(found)["chain"] == "pass"
    assert sentence(found, "schema") == (
        "record.jsonl, line 2: manifest.mechanisms: expected list, found int."
    )


def test_lost_events_make_a_record_incomplete(folder: Path) -> None:
    """The writer says how many found no room; they are not there."""
    gap = RecordGap(step=1, error="No space left on device", events=2, measurements=3)
    (folder / RECORD_FILE).write_bytes(chained(encode(START), encode(gap), encode(END)))
    found = verify_record(folder)
    assert outcomes(found)["completeness"] == "absent"
    assert sentence(found, "completeness") == (
        "The record says that 5 events found no room and are missing."
    )


def test_a_run_that_is_going_on_says_so(tmp_path: Path) -> None:
    """As long as a writer holds the folder."""
    writer = RecordWriter(tmp_path)
    writer.write(START)
    (tmp_path / "record.lock").touch()
    assert "the run may be going on" in sentence(verify_record(tmp_path), "completeness")
    writer.close()


def test_other_spellings_fail_the_canonical_check_alone(folder: Path) -> None:
    """The chain is over bytes, so that they may be spelled otherwise; RFC 8785 allows one way."""
    lines = (folder / RECORD_FILE).read_bytes().splitlines()
    body = lines[0][: -len(b',"hash":""}') - 64] + b"}"
    spaced = body.replace(b'":', b'": ', 1)
    digest = chain.digest(spaced).encode()
    first = spaced[:-1] + b',"hash":"' + digest + b'"}\n'
    (folder / RECORD_FILE).write_bytes(first)
    found = verify_record(folder, Request(canonical=True))
    assert outcomes(found)["chain"] == outcomes(found)["schema"] == "pass"
    assert sentence(found, "canonical") == (
        "record.jsonl, line 1: not in the spelling of RFC 8785."
    )
    assert outcomes(verify_record(folder))["canonical"] == "skipped"


@pytest.mark.parametrize(
    ("reason", "outcome", "says"),
    [
        (None, "pass", "3 certificates re-checked from what they record."),
        ("condition 2 does not hold", "fail", "line 3: condition 2 does not hold."),
        (RuntimeError("boom"), "fail", "line 3: cannot be followed: RuntimeError."),
    ],
)
def test_certificates_are_re_checked_by_whoever_can(
    folder: Path, monkeypatch: pytest.MonkeyPatch, reason: object, outcome: str, says: str
) -> None:
    """One line in a table plugs a checker in; one that raises refutes, and does not break off."""
    seen: list[Event] = []

    def examine(event: Event) -> str | None:
        seen.append(event)
        if isinstance(reason, Exception):
            raise reason
        return reason  # type: ignore[return-value]

    monkeypatch.setattr(verify, "CLAIMS", frozenset({"loss_reduced"}))
    claim = encode(event_samples.sample_events()["loss_reduced"])
    (folder / RECORD_FILE).write_bytes(
        chained(
            encode(START), encode(event_samples.sample_events()["manifest"]), claim, claim, claim
        )
    )
    unchecked = verify_record(folder)
    assert outcomes(unchecked)["certificates"] == "unchecked"
    monkeypatch.setattr("ormas_core.audit.EXAMINERS", {"loss_reduced": examine})
    found = verify_run(folder)
    assert outcomes(found)["certificates"] == outcome
    assert says in sentence(found, "certificates")
    assert len(seen) == 3


def test_nobody_examines_a_kind_that_does_not_exist() -> None:
    """The table of examiners is not stale."""
    assert set(EXAMINERS) <= verify.CLAIMS


def heads_of(folder: Path) -> dict[int, str]:
    """Return what a sink that keeps anchors would have."""
    return {
        line.event.lines: line.event.head
        for line in read_record(folder)
        if line.event.kind == "anchor"
    }


def test_a_witness_confirms_the_record(folder: Path) -> None:
    """Every head in its place, up to the line before the last anchor."""
    heads = heads_of(folder)
    found = verify_record(folder, Request(heads=heads))
    assert outcomes(found)["witness"] == "pass"
    assert sentence(found, "witness") == (
        f"All {len(heads)} heads of the witness are in their places: nothing up to line "
        f"{max(heads)} of {found.lines} was written anew."
    )


def test_a_record_written_anew_is_found_by_its_witness(folder: Path) -> None:
    """The forgery verifies by itself; the witness names the first anchor that differs."""
    heads = heads_of(folder)
    rewritten(folder, 4, step=7)
    assert verify_record(folder).complete
    found = verify_record(folder, Request(heads=heads))
    assert outcomes(found)["witness"] == "fail"
    first = min(lines for lines in heads if lines > 4)
    assert f"line {first} has the hash " in sentence(found, "witness")
    assert f"and the witness was sent {heads[first][:12]}" in sentence(found, "witness")


def test_a_record_that_was_cut_is_found_by_its_witness(folder: Path) -> None:
    """The witness has a head for a line that is not there any more."""
    heads = heads_of(folder)
    path = folder / RECORD_FILE
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    found = verify_record(folder, Request(heads=heads))
    assert outcomes(found)["witness"] == "fail"
    missing = min(lines for lines in heads if lines > 3)
    assert f"a head for line {missing}, and there are 3 good lines" in sentence(found, "witness")


def test_a_segment_that_was_cut_off_whole_is_found_by_its_witness(tmp_path: Path) -> None:
    """Without one it passes as complete: that is what the record was at the end of segment 0."""
    run = tmp_path / "run"
    event_samples.write_run(run)
    before = tmp_path / "before"
    shutil.copytree(run, before)
    event_samples.write_run(run, segment=1)
    heads = heads_of(run)
    assert verify_record(before).complete
    assert outcomes(verify_record(run, Request(heads=heads)))["witness"] == "pass"
    assert outcomes(verify_record(before, Request(heads=heads)))["witness"] == "fail"


def test_a_witness_without_heads_proves_nothing(folder: Path) -> None:
    """Who asks for one gets no pass from nothing."""
    assert outcomes(verify_record(folder, Request(heads={})))["witness"] == "fail"


def test_a_file_of_heads_is_read(folder: Path, tmp_path: Path) -> None:
    """One `LINES:HEAD` per line, or several on one."""
    heads = heads_of(folder)
    path = tmp_path / "heads"
    path.write_text("".join(f"{lines}:{head}\n" for lines, head in heads.items()))
    assert read_heads(path) == heads
    assert parse_heads([path.read_text().replace("\n", " ")]) == heads


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("5:abc", "holds LINES:HEAD entries; found '5:abc'"),
        ("0:" + "a" * 64, "holds LINES:HEAD entries"),
        ("x" * 500, "holds LINES:HEAD entries"),
        (f"5:{'a' * 64} 5:{'b' * 64}", "two heads for line 5"),
    ],
)
def test_what_is_no_witness_is_refused(text: str, says: str, tmp_path: Path) -> None:
    """Before anything is compared."""
    (tmp_path / "heads").write_text(text)
    with pytest.raises(RecordFormatError, match=says):
        read_heads(tmp_path / "heads")


def test_a_record_that_grows_meanwhile_makes_the_result_void(folder: Path) -> None:
    """Case 87 for records: somebody writes while they are read."""

    class Growing(dict[int, str]):
        def __iter__(self) -> Any:  # asked for while both files are open
            with (folder / METRICS_FILE).open("ab") as file:
                file.write(b"x")
            return iter(())

    with pytest.raises(RecordChangedError, match="the result is void"):
        verify_record(folder, Request(heads=Growing({1: "a" * 64})))


def test_strict_and_complete_are_two_questions(folder: Path) -> None:
    """A whole record without a signature is complete and does not satisfy --strict."""
    found = verify_record(folder)
    assert found.complete
    assert not found.strict


def test_verify_imports_no_torch(folder: Path) -> None:
    """Nor any framework, for a signed record neither."""
    code = (
        "import sys\n"
        "from ormas_core.cli.main import main\n"
        "code = main(['verify', sys.argv[1], '--canonical'])\n"
        "heavy = {'torch', 'numpy', 'lightning', 'transformers', 'mlflow'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_fails_its_check(folder: Path) -> None:
    """Nothing is raised."""
    (folder / METRICS_FILE).chmod(0)
    assert outcomes(verify_record(folder))["metrics"] == "fail"
