"""One writer per run folder: who holds it, who is refused, and who is gone."""

import os
import signal
from pathlib import Path
from typing import Any

import event_samples
import pytest
from lock_support import age, hold, leave

from ormas_core.errors import RecordExistsError, RecordLockedError
from ormas_core.record import RecordWriter, lock
from ormas_core.record.lock import LOCK_FILE, read_holder


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
