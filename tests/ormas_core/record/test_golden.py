"""Records of every format version that was ever released: they verify and decode forever."""

from pathlib import Path

import event_samples
import pytest

from ormas_core.record import METRICS_FILE, RECORD_FILE, Request, chain, encode, verify_record
from ormas_core.record.reader import parse_line
from ormas_core.version import RECORD_SCHEMA

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = sorted(GOLDEN.glob("v*"), key=lambda folder: int(folder.name[1:]))


def test_every_version_has_its_golden_record() -> None:
    """From the first one to the one that is written now."""
    assert [folder.name for folder in VERSIONS] == [f"v{n}" for n in range(1, RECORD_SCHEMA + 1)]


@pytest.mark.parametrize("folder", VERSIONS, ids=lambda folder: folder.name)
def test_a_golden_record_verifies(folder: Path) -> None:
    """Every check of the record itself passes, in the canonical spelling too; the head is known.

    One that says of itself that events are missing is not complete.
    """
    verification = verify_record(folder, Request(canonical=True))
    found = {check.name: check.outcome.value for check in verification.checks}
    whole = ("chain", "completeness", "metrics", "schema", "canonical")
    expected = dict.fromkeys(whole, "pass")
    if b'"event":"record_gap"' in (folder / RECORD_FILE).read_bytes():
        expected["completeness"] = "absent"
    assert {name: found[name] for name in whole} == expected
    assert verification.head == (folder / "head").read_text().strip()


def test_the_record_of_this_version_is_written_alike() -> None:
    """Decoded and encoded again it gives the same bytes, and every kind of event is in it."""
    kinds = set()
    for name in (RECORD_FILE, METRICS_FILE):
        for raw in (VERSIONS[-1] / name).read_bytes().splitlines():
            line = parse_line(raw)
            kinds.add(line.event.kind)
            sealed = chain.seal({**encode(line.event), "seq": line.seq, "prev": line.prev})
            assert sealed == (raw + b"\n", line.hash)
    assert kinds == set(event_samples.sample_events())
