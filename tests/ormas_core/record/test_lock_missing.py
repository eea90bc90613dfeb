"""Where a lock is deleted, or the file system lets none be made."""

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import event_samples
import pytest
from lock_support import hold, leave

from ormas_core.errors import RecordLockedError
from ormas_core.record import RecordWriter, lock, read_record, verify_record
from ormas_core.record.lock import LOCK_FILE, read_holder
from ormas_core.testing import run_start


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


def test_a_folder_in_place_of_the_lock_is_named(tmp_path: Path) -> None:
    """Nothing can be put in its place; the message says what to do."""
    (tmp_path / LOCK_FILE).mkdir()
    with pytest.raises(
        RecordLockedError, match=r"record\.lock is a folder, and no lock\. Delete it"
    ):
        RecordWriter(tmp_path)


def test_what_a_lock_says_does_not_reach_the_terminal_raw(tmp_path: Path) -> None:
    """The name of a host is the text of a stranger, and may be long."""
    leave(tmp_path, host="\x1b[2J" + "x" * 3000)
    with pytest.raises(RecordLockedError, match=r"on host \\x1b\[2Jx+ is writing") as caught:
        RecordWriter(tmp_path)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 1000
