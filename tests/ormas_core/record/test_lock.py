"""One writer per run folder: who is refused, who takes over, and what where no lock can be made."""

import dataclasses
import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import event_samples
import pytest

from ormas_core.errors import RecordExistsError, RecordLockedError
from ormas_core.events import LossReduced
from ormas_core.record import RecordWriter, lock, read_record, verify_record
from ormas_core.record.lock import LOCK_FILE, FolderLock, Holder, read_holder
from ormas_core.testing import run_start

ROOT = Path(lock.__file__).parents[2]
HOLDING = """
import sys, time
from ormas_core.record import RecordWriter
from ormas_core.testing import run_start

writer = RecordWriter(sys.argv[1])
writer.write(run_start())
print("held", flush=True)
sys.stdin.read()
"""


def hold(folder: Path) -> subprocess.Popen[str]:
    """Start another process that writes into `folder`, and wait until it does."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(folder)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def leave(folder: Path, **changes: Any) -> Holder:
    """Leave the lock of some other process in `folder`: a dead one of this boot by default."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    FolderLock(folder, 600.0).acquire()
    mine = read_holder(folder)
    assert mine is not None
    holder = dataclasses.replace(
        mine, **{"pid": child.pid, "token": os.urandom(8).hex(), **changes}
    )
    (folder / LOCK_FILE).write_text(json.dumps(dataclasses.asdict(holder)))
    return holder


def age(path: Path, seconds: float) -> None:
    """Make a file look as if it was touched last `seconds` ago."""
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_the_lock_names_its_holder_and_goes_at_close(tmp_path: Path) -> None:
    """Process number, start time, boot and host, in a file of its own."""
    writer = RecordWriter(tmp_path, lock_stale=90.0)
    holder = read_holder(tmp_path)
    assert holder is not None
    assert (holder.pid, holder.stale_s) == (os.getpid(), 90.0)
    assert holder.host == os.uname().nodename
    assert holder.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert holder.started.isdecimal()
    assert holder.alive() is True
    writer.close()
    assert not (tmp_path / LOCK_FILE).exists()
    assert read_holder(tmp_path) is None


@pytest.mark.parametrize("how", [{}, {"overwrite": True}, {"append": True}, {"resume": True}])
def test_a_second_writer_is_refused_with_the_first_ones_pid_and_host(
    tmp_path: Path, how: dict[str, bool]
) -> None:
    """Whatever it asks for, and nothing is changed; when the first has gone it may."""
    with hold(tmp_path / "run") as child:
        before = (tmp_path / "run" / "record.jsonl").read_bytes()
        with pytest.raises(RecordLockedError) as caught:
            RecordWriter(tmp_path / "run", **how)
        assert caught.value.subject == str(tmp_path / "run")
        assert f"Process {child.pid} on host {os.uname().nodename} is writing" in str(caught.value)
        assert (tmp_path / "run" / "record.jsonl").read_bytes() == before
        child.kill()
    RecordWriter(tmp_path / "run", resume=True).close()


def test_a_second_writer_of_the_same_process_is_told_so(tmp_path: Path) -> None:
    """In a notebook the first one is a monitor that was never closed."""
    first = RecordWriter(tmp_path)
    with pytest.raises(RecordLockedError, match="Another monitor of this very process"):
        RecordWriter(tmp_path, overwrite=True)
    first.close()
    RecordWriter(tmp_path, overwrite=True).close()


def test_a_finished_record_is_refused_as_before(tmp_path: Path) -> None:
    """A lock that is gone is no reason to say that somebody writes."""
    event_samples.write_run(tmp_path)
    with pytest.raises(RecordExistsError):
        RecordWriter(tmp_path)
    leave(tmp_path)
    with pytest.raises(RecordExistsError):
        RecordWriter(tmp_path)


def test_a_dead_process_of_this_boot_is_taken_over_at_once(tmp_path: Path) -> None:
    """Killed a moment ago, its lock is worth nothing, however young."""
    with hold(tmp_path / "run") as child:
        child.send_signal(signal.SIGKILL)
    assert (tmp_path / "run" / LOCK_FILE).exists()
    writer = RecordWriter(tmp_path / "run", resume=True)
    holder = read_holder(tmp_path / "run")
    assert holder is not None
    assert holder.pid == os.getpid()
    writer.close()
    assert list((tmp_path / "run").glob(f"{LOCK_FILE}*")) == []


def test_a_process_that_nobody_has_waited_for_is_dead(tmp_path: Path) -> None:
    """A killed child of a careless parent stays in the process table; it writes no more."""
    child = hold(tmp_path / "run")
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{child.pid}").exists()
    RecordWriter(tmp_path / "run", resume=True).close()
    child.communicate()


def test_a_number_that_was_given_to_another_process_is_not_the_holder(tmp_path: Path) -> None:
    """The process of that number lives; it started at another time."""
    leave(tmp_path, pid=os.getpid(), started="1")
    RecordWriter(tmp_path).close()


@pytest.mark.parametrize(
    "elsewhere", [{"host": "other"}, {"boot": "another"}, {"namespace": "pid:[1]"}]
)
def test_another_machine_is_waited_for(tmp_path: Path, elsewhere: dict[str, str]) -> None:
    """Whether it lives cannot be seen from here: another host, an earlier boot, a container."""
    holder = leave(tmp_path, **elsewhere)
    assert holder.alive() is None
    age(tmp_path / LOCK_FILE, 590.0)
    with pytest.raises(RecordLockedError, match=f"Process {holder.pid} on host {holder.host}"):
        RecordWriter(tmp_path)
    age(tmp_path / LOCK_FILE, 610.0)
    RecordWriter(tmp_path).close()


def test_the_holder_may_ask_for_more_time(tmp_path: Path) -> None:
    """A training with long steps says so in its lock; the longer of both times counts."""
    leave(tmp_path, host="other", stale_s=3600.0)
    age(tmp_path / LOCK_FILE, 1000.0)
    with pytest.raises(RecordLockedError):
        RecordWriter(tmp_path, lock_stale=60.0)
    age(tmp_path / LOCK_FILE, 3700.0)
    RecordWriter(tmp_path, lock_stale=60.0).close()


def test_a_lock_without_a_name_is_waited_for(tmp_path: Path, monkeypatch: Any) -> None:
    """It may be in the making, or its maker died between two system calls."""
    monkeypatch.setattr(lock, "_PAUSE_S", 0.0)
    (tmp_path / LOCK_FILE).write_bytes(b"")
    with pytest.raises(RecordLockedError, match="An unnamed process is writing"):
        RecordWriter(tmp_path)
    age(tmp_path / LOCK_FILE, 610.0)
    RecordWriter(tmp_path).close()


@pytest.mark.parametrize(
    "content", [b"[]", b"{", b"null", b'{"pid":1}', b"\xff", b"[" * 4000, b'{"pid":"x"}']
)
def test_a_lock_that_makes_no_sense_is_one_without_a_name(
    tmp_path: Path, monkeypatch: Any, content: bytes
) -> None:
    """Whatever is in the file, nothing but a refusal comes of it."""
    monkeypatch.setattr(lock, "_PAUSE_S", 0.0)
    (tmp_path / LOCK_FILE).write_bytes(content)
    with pytest.raises(RecordLockedError, match="An unnamed process"):
        RecordWriter(tmp_path)


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


def leave_over(folder: Path) -> Holder:
    """Put the lock of another machine in the place of the one that is there."""
    (folder / LOCK_FILE).unlink()
    return leave(folder, host="other")


def test_a_lock_that_somebody_deleted_is_made_again(tmp_path: Path) -> None:
    """By a person who took it for a leftover; the writer lives."""
    writer = RecordWriter(tmp_path)
    writer.write(run_start())
    (tmp_path / LOCK_FILE).unlink()
    writer.write(writer.anchor(1))
    holder = read_holder(tmp_path)
    assert holder is not None
    assert holder.pid == os.getpid()
    writer.close()
    assert not (tmp_path / LOCK_FILE).exists()


@pytest.mark.parametrize("name", ["record.jsonl", "metrics.jsonl"])
def test_two_writers_without_a_lock_do_not_fork_the_chain(tmp_path: Path, name: str) -> None:
    """The file is not as this writer left it: it stops, and what the other one wrote stays."""
    writer = RecordWriter(tmp_path)
    writer.write(run_start())
    with (tmp_path / name).open("ab") as file:
        file.write(b"theirs\n")
    event = run_start() if name == "record.jsonl" else event_samples.sample_events()["measurement"]
    with pytest.raises(RecordLockedError, match="another writer has changed"):
        writer.write(event)
    writer.close()
    assert (tmp_path / name).read_bytes().endswith(b"theirs\n")


ERRORS = [errno.ENOLCK, errno.ESTALE, errno.EBADF, errno.EIO, errno.ENOTSUP, errno.ENOSPC]


def failing(call: Callable[..., Any], code: int) -> Callable[..., Any]:
    """Return `call`, failing where it is about a lock."""

    def fail(path: Any, *args: Any, **more: Any) -> Any:
        if isinstance(path, int) or LOCK_FILE in os.fspath(path):
            raise OSError(code, os.strerror(code), path)
        return call(path, *args, **more)

    return fail


@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("name", ["open", "write", "read", "utime", "close"])
def test_a_file_system_without_locks_costs_the_lock_only(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    code: int,
) -> None:
    """Network file systems: at most one warning, no crash, no hang, and a record that verifies."""
    fake = type("os", (), dict(vars(os)))
    setattr(fake, name, staticmethod(failing(getattr(os, name), code)))
    monkeypatch.setattr(lock, "os", fake)
    caplog.set_level(logging.WARNING, "ormas")
    writer = RecordWriter(tmp_path)
    writer.write(run_start())
    for step in range(3):
        writer.write(writer.anchor(step))
    writer.close()
    assert len(caplog.records) <= 1
    assert all("written without it" in record.message for record in caplog.records)
    assert not verify_record(tmp_path).failed
    assert len(list(read_record(tmp_path))) == 4


def test_locks_that_do_nothing_are_not_relied_upon(tmp_path: Path) -> None:
    """`flock` may be granted to everybody on a network file system; it is not even asked for."""
    source = Path(lock.__file__).read_text(encoding="utf-8")
    assert "O_EXCL" in source
    assert "flock" not in source
    assert "fcntl" not in source
    with hold(tmp_path / "run") as child:
        with pytest.raises(RecordLockedError):
            RecordWriter(tmp_path / "run", resume=True)
        child.kill()


def test_a_folder_that_cannot_be_written_is_an_error_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There would be no record either."""
    fake = type("os", (), dict(vars(os)))
    fake.open = staticmethod(failing(os.open, errno.EACCES))  # type: ignore[attr-defined]
    monkeypatch.setattr(lock, "os", fake)
    with pytest.raises(PermissionError):
        RecordWriter(tmp_path)
