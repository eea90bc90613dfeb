"""A lock whose holder died is taken over by one, and whoever lost it writes no more."""

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lock_support import age, hold, leave, leave_over

from ormas_core.errors import RecordLockedError
from ormas_core.events import LossReduced
from ormas_core.record import RecordWriter, lock, read_record
from ormas_core.record.lock import LOCK_FILE, FolderLock, read_holder
from ormas_core.testing import run_start

ROOT = Path(lock.__file__).parents[2]
RACE = """
import json, os, sys
from multiprocessing import get_context
from pathlib import Path
from ormas_core.errors import RecordLockedError
from ormas_core.record.lock import LOCK_FILE, FolderLock, read_holder

context = get_context("fork")
TAKERS, ROUNDS = 6, 40
folder = Path(sys.argv[1])

def take(number, gate, won):
    for round in range(ROUNDS):
        lock = FolderLock(folder / str(round), 600.0)
        gate.wait(60)
        try:
            lock.acquire()
            won[number * ROUNDS + round] = 1
            holder = read_holder(folder / str(round))
            assert holder is not None and holder.pid == os.getpid(), holder
        except RecordLockedError:
            pass
        gate.wait(60)
        lock.touch()
        lock.release()
        gate.wait(60)
        assert list((folder / str(round)).iterdir()) == [], os.listdir(folder / str(round))

dead = sys.argv[2].encode()
for round in range(ROUNDS):
    (folder / str(round)).mkdir(parents=True)
    if round % 4:
        (folder / str(round) / LOCK_FILE).write_bytes(dead)
    if round % 4 == 2:  # and somebody died while taking it over
        import hashlib
        name = LOCK_FILE + "." + hashlib.sha256(dead).hexdigest()[:16]
        (folder / str(round) / name).write_bytes(dead.replace(b'"token"', b' "token"'))
gate, won = context.Barrier(TAKERS), context.Array("i", TAKERS * ROUNDS)
children = [context.Process(target=take, args=(n, gate, won)) for n in range(TAKERS)]
[child.start() for child in children]
[child.join() for child in children]
assert [child.exitcode for child in children] == [0] * TAKERS
print([sum(won[n * ROUNDS + round] for n in range(TAKERS)) for round in range(ROUNDS)])
"""


def test_of_several_takers_exactly_one_wins(tmp_path: Path) -> None:
    """Six processes at once, for a new folder, a dead holder, and a taker that died on the way."""
    dead = dataclasses.asdict(leave(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", RACE, str(tmp_path / "race"), json.dumps(dead)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [1] * 40


def test_a_taker_that_died_on_the_way_is_taken_over_too(tmp_path: Path) -> None:
    """Its claim is worth as little as the lock that it claimed."""
    writer = FolderLock(tmp_path, 600.0)
    dead = leave(tmp_path)
    content = (tmp_path / LOCK_FILE).read_bytes()
    claim = tmp_path / f"{LOCK_FILE}.{lock.hashlib.sha256(content).hexdigest()[:16]}"
    claim.write_text(json.dumps(dataclasses.asdict(dataclasses.replace(dead, token="b"))))  # noqa: S106 - no secret
    writer.acquire()
    assert writer.held
    writer.release()
    assert list(tmp_path.iterdir()) == []


def test_a_taker_that_is_still_on_the_way_is_not(tmp_path: Path) -> None:
    """A living process is about to have the lock."""
    dead = leave(tmp_path)
    content = (tmp_path / LOCK_FILE).read_bytes()
    claim = tmp_path / f"{LOCK_FILE}.{lock.hashlib.sha256(content).hexdigest()[:16]}"
    with hold(tmp_path / "run") as child:
        claim.write_bytes((tmp_path / "run" / LOCK_FILE).read_bytes())
        with pytest.raises(RecordLockedError, match=f"Process {child.pid} on host"):
            FolderLock(tmp_path, 600.0).acquire()
        child.kill()
    assert read_holder(tmp_path) == dead


def test_the_lock_is_touched_at_anchors(tmp_path: Path) -> None:
    """A machine that cannot look into this one sees it live."""
    writer = RecordWriter(tmp_path)
    writer.write(run_start())
    age(tmp_path / LOCK_FILE, 500.0)
    writer.write(LossReduced(step=1, elements=2))
    assert time.time() - (tmp_path / LOCK_FILE).stat().st_mtime > 400.0
    writer.write(writer.anchor(1))
    assert time.time() - (tmp_path / LOCK_FILE).stat().st_mtime < 100.0
    writer.close()


def test_a_writer_that_was_taken_over_writes_no_more(tmp_path: Path) -> None:
    """A machine that was asleep finds another one's lock: it must not fork the chain."""
    writer = RecordWriter(tmp_path)
    writer.write(run_start())
    other = leave_over(tmp_path)
    with pytest.raises(
        RecordLockedError, match=f"Process {other.pid} on host other has taken over"
    ):
        writer.write(writer.anchor(1))
    writer.close()
    assert read_holder(tmp_path) == other
    assert [line.event.kind for line in read_record(tmp_path)] == ["run_start"]
