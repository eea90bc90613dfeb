"""Single lines from an attacker, in a chain that holds: each fails a check and costs no answer."""

import hashlib
import os
from pathlib import Path

import event_samples
import pytest
from seal_support import outcomes, sentence

from ormas_core.errors import RecordFormatError
from ormas_core.record import (
    RECORD_FILE,
    Request,
    Verification,
    read_heads,
    read_record,
    verify_record,
)
from ormas_core.record.reader import last_line
from ormas_core.record.strict import MAX_LINE

GAP = '{"error":"x","event":"record_gap","events":%s,"measurements":%s,'
PLACE = '"prev":"%s","seq":%d,"severity":"warning",%s"step":0,"time_ns":"1"}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished run of two checks."""
    run = tmp_path / "run"
    event_samples.write_run(run)
    return run


def with_line(folder: Path, begin: str, more: str = "") -> Verification:
    """Append a line with a right hash, link and number; `--canonical` must bear it as well."""
    path = folder / RECORD_FILE
    lines = list(read_record(folder))
    body = (begin + PLACE % (lines[-1].hash, len(lines), more)).encode()
    digest = hashlib.sha256(body).hexdigest().encode()
    path.write_bytes(path.read_bytes() + body[:-1] + b',"hash":"' + digest + b'"}\n')
    found = verify_record(folder, Request(canonical=True))
    assert outcomes(found)["chain"] == outcomes(verify_record(folder))["chain"]
    return found


@pytest.mark.parametrize(
    ("events", "measurements", "says"),
    [
        ("9" * 4300, "9" * 4300, "beyond 2^53 - 1"),
        ("9007199254740992", "0", "beyond 2^53 - 1"),
        ("5", "-5", "less than nothing"),
    ],
)
def test_a_gap_of_impossible_size_fails_the_schema(
    folder: Path, events: str, measurements: str, says: str
) -> None:
    """A sum that Python refuses to print, and one that cancels out a true gap."""
    found = with_line(folder, GAP % (events, measurements))
    assert outcomes(found)["schema"] == "fail"
    assert says in sentence(found, "schema")


def test_a_gap_does_not_make_up_for_another_one(folder: Path) -> None:
    """What was lost stays lost."""
    with_line(folder, GAP % ("5", "0"))
    found = with_line(folder, GAP % ("-5", "0"))
    assert outcomes(found)["completeness"] == "absent"


def test_a_line_has_one_hash(folder: Path) -> None:
    """Of two members of one name every reader would believe another one."""
    begin = '{"error":"e","event":"sink_error","hash":"%s",' % ("0" * 64)
    found = with_line(folder, begin, '"sink":"x",')
    assert outcomes(found)["chain"] == "fail"
    assert "two hash members" in sentence(found, "chain")
    with pytest.raises(RecordFormatError, match="two hash members"):
        list(read_record(folder))


def test_a_file_is_no_run_folder(folder: Path) -> None:
    """Nothing was inspected, which is no failed check: the command exits with 2."""
    with pytest.raises(NotADirectoryError):
        verify_record(folder / RECORD_FILE)


def test_a_last_line_that_is_too_long_is_not_read_as_a_whole(tmp_path: Path) -> None:
    """A writer that continues a record takes no more memory than a reader."""
    path = tmp_path / RECORD_FILE
    with path.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(RecordFormatError, match=f"a line of over {MAX_LINE} bytes"):
        last_line(path)


def test_a_witness_that_is_too_long_is_refused(tmp_path: Path) -> None:
    """Its heads would not fit into the memory that verify may take."""
    path = tmp_path / "heads"
    with path.open("wb") as file:
        file.truncate(17 * 2**20)
    with pytest.raises(RecordFormatError, match="longer than 16777216 bytes"):
        read_heads(path)


def test_verify_writes_nothing(folder: Path) -> None:
    """The folder of somebody else is left as it is: names, bytes and times."""

    def state() -> dict[str, tuple[int, int]]:
        with os.scandir(folder) as entries:
            found = {e.name: (e.stat().st_mtime_ns, e.stat().st_size) for e in entries}
        return {**found, "": (folder.stat().st_mtime_ns, 0)}

    before = state()
    assert verify_record(folder, Request(canonical=True)).complete
    assert state() == before
