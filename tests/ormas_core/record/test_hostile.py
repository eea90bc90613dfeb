"""Run folders from an attacker: verify answers, in bounded time and memory, and never raises.

Each is verified by the command line in a process of its own, whose peak memory is measured.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import rfc8785
from event_samples import sample_events
from process_support import child_environment
from seal_support import make_sealed

from ormas_core.record import METRICS_FILE, RECORD_FILE, SEAL_FILE, chain, encode
from ormas_core.record.strict import MAX_LINE, MAX_VALUES

MOST_BYTES = 200 * 2**20
MOST_SECONDS = 60
MEASURED = """
import re, sys
from ormas_core.cli.main import main
code = main(sys.argv[1:])
status = open("/proc/self/status").read()
print(int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) * 1024, file=sys.stderr)
sys.exit(code)
"""
"""Runs the command line and prints the peak of its memory: that of this program alone."""


def sealed_line(body: bytes) -> bytes:
    """Return a line with a right hash over any bytes."""
    return body[:-1] + b',"hash":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def sparse(path: Path, size: int) -> None:
    """Make a file of zero bytes that takes no room on the disk."""
    with path.open("wb") as file:
        file.truncate(size)


def one_long_line(run: Path) -> None:
    sparse(run / RECORD_FILE, 2**30)


def a_long_line_after_good_ones(run: Path) -> None:
    with (run / RECORD_FILE).open("ab") as file:
        file.truncate(2**30)


def a_long_metrics_line(run: Path) -> None:
    sparse(run / METRICS_FILE, 2**30)


def a_long_seal(run: Path) -> None:
    sparse(run / SEAL_FILE, 2**30)


def deep_json(run: Path) -> None:
    body = b'{"a":' + b"[" * 10_000_000 + b"]" * 10_000_000 + b"}"
    (run / RECORD_FILE).write_bytes(sealed_line(body))


def deep_json_below_the_limit(run: Path) -> None:
    depth = MAX_VALUES - 10
    body = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
    (run / RECORD_FILE).write_bytes(sealed_line(body))


def many_values(run: Path) -> None:
    pairs = ",".join(f'"{i:06d}":{{}}' for i in range(MAX_VALUES // 2 - 10))
    body = ('{"prev":"' + "0" * 64 + '","seq":0,"x":{' + pairs + "}}").encode()
    (run / RECORD_FILE).write_bytes(sealed_line(body))


def large_events_in_a_row(run: Path) -> None:
    """One is read while the one before it has just been looked at."""
    found = encode(sample_events()["run_end"])
    counts = {f"{i:07d}k": 1 for i in range(MAX_VALUES - 100)}
    head, out = chain.GENESIS, []
    for seq in range(4):
        line, head = chain.seal({**found, "counts": counts, "prev": head, "seq": seq})
        out.append(line)
    (run / RECORD_FILE).write_bytes(b"".join(out))


def a_wide_text(run: Path) -> None:
    text = "\U0001f525" + "x" * (MAX_LINE - 1000)
    body = ('{"event":"' + text + '","prev":"' + "0" * 64 + '","seq":0}').encode()
    (run / RECORD_FILE).write_bytes(sealed_line(body))


def a_huge_integer(run: Path) -> None:
    body = b'{"prev":"' + b"0" * 64 + b'","seq":' + b"9" * 1_000_000 + b"}"
    (run / RECORD_FILE).write_bytes(sealed_line(body))


def many_anchors(run: Path) -> None:
    head, out = chain.GENESIS, [(run / RECORD_FILE).read_bytes().split(b"\n")[0] + b"\n"]
    head = json.loads(out[0])["hash"]
    for seq in range(1, 20_000):
        members = {
            "event": "anchor",
            "head": head,
            "lines": seq,
            "metrics_bytes": None,
            "metrics_head": chain.GENESIS,
            "metrics_rows": 0,
            "prev": head,
            "seq": seq,
            "severity": "info",
            "step": 0,
            "time_ns": "0",
        }
        line, head = chain.seal(members)
        out.append(line)
    (run / RECORD_FILE).write_bytes(b"".join(out))


def empty_lines(run: Path) -> None:
    (run / RECORD_FILE).write_bytes(b"\n" * 10_000_000)


def pipes(run: Path) -> None:
    for name in (RECORD_FILE, METRICS_FILE, SEAL_FILE):
        (run / name).unlink()
        os.mkfifo(run / name)


def links_to_devices(run: Path) -> None:
    for name in (RECORD_FILE, METRICS_FILE, SEAL_FILE):
        (run / name).unlink()
        (run / name).symlink_to("/dev/zero")


def folders(run: Path) -> None:
    for name in (RECORD_FILE, METRICS_FILE, SEAL_FILE):
        (run / name).unlink()
        (run / name).mkdir()


def a_seal_of_many_subjects(run: Path) -> None:
    subjects = [{"name": f"m/{i}", "digest": {"sha256": "0" * 64}} for i in range(9_000)]
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "urn:ormas:run-record:v1",
        "predicate": {"sizes": {}, "models": [{"name": "m", "folder": True, "inside": True}] * 100},
    }
    import base64

    envelope = {
        "payload": base64.b64encode(rfc8785.dumps(statement)).decode(),
        "payloadType": "application/vnd.in-toto+json",
        "signatures": [{"keyid": "x", "sig": "AAAA"}],
    }
    (run / SEAL_FILE).write_bytes(rfc8785.dumps(envelope) + b"\n")


def a_terminal_in_a_sentence(run: Path) -> None:
    body = b'{"event":"\\u001b[2J\\u001b]0;x\\u0007","prev":"' + b"0" * 64 + b'","seq":0}'
    (run / RECORD_FILE).write_bytes(sealed_line(body))


ATTACKS: list[Callable[[Path], None]] = [
    one_long_line,
    a_long_line_after_good_ones,
    a_long_metrics_line,
    a_long_seal,
    deep_json,
    deep_json_below_the_limit,
    many_values,
    large_events_in_a_row,
    a_wide_text,
    a_huge_integer,
    many_anchors,
    empty_lines,
    pipes,
    links_to_devices,
    folders,
    a_seal_of_many_subjects,
    a_terminal_in_a_sentence,
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_fails_a_check_and_nothing_else(
    attack: Callable[[Path], None], tmp_path: Path
) -> None:
    """Exit 1 with every question answered, below 200 MiB, without waiting; `--json` parses."""
    sealed = make_sealed(tmp_path / "base")
    attack(sealed.folder)
    arguments = ["verify", str(sealed.folder), "--key", str(sealed.public), "--json", "--canonical"]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *arguments],
        env=child_environment(),
        capture_output=True,
        check=False,
        timeout=MOST_SECONDS,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert len(found["checks"]) == 10
    assert any(check["outcome"] == "fail" for check in found["checks"])
    assert all(len(check["sentence"]) < 700 for check in found["checks"])
    peak = int(done.stderr)  # and nothing else is there
    assert peak < MOST_BYTES, f"{peak // 2**20} MiB"


def test_what_a_record_says_does_not_reach_the_terminal_raw(tmp_path: Path) -> None:
    """Control characters of a stranger are shown escaped."""
    sealed = make_sealed(tmp_path / "base")
    a_terminal_in_a_sentence(sealed.folder)
    done = subprocess.run(
        [sys.executable, "-m", "ormas_core.cli.main", "verify", str(sealed.folder)],
        env=child_environment(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert b"\x1b" not in done.stdout + done.stderr
    assert rb"\x1b[2J" in done.stdout
