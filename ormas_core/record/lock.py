"""One writer per run folder, also where the locks of the file system do not work.

The lock is a file that is created exclusively and names its holder. A holder that is dead is
superseded: the file that claims its place is named after the dead one's content, is itself created
exclusively, and is then renamed over it. Contents never repeat, so of any number of takers exactly
one wins, and a claimer that dies on the way is superseded in the same manner.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import platform
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ormas_core.errors import RecordLockedError

LOCK_FILE: Final = "record.lock"

_LOG: Final = logging.getLogger("ormas")
_TRIES: Final = 50
_PAUSE_S: Final = 0.02
_LIMIT: Final = 4096
_LONGEST_HOST: Final = 255
_WITHOUT_LOCKS: Final = (
    *(errno.ENOLCK, errno.ESTALE, errno.EBADF, errno.EIO, errno.EINVAL, errno.ENOSYS),
    *(errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSPC, errno.EDQUOT),
)
"""What says that a lock cannot be had here, while the record perhaps can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a lock.

    Attributes:
        started: when the process started, in the clock ticks of its boot; empty where unknown.
        boot: identifier of the boot of its machine; empty where unknown.
        namespace: identifier of its space of process numbers (containers have their own).
        stale_s: seconds without a touch after which another machine may take over.
        token: random, so that no two locks are equal.
    """

    pid: int
    started: str
    boot: str
    host: str
    namespace: str
    stale_s: float
    token: str

    def alive(self) -> bool | None:
        """Whether the process lives; None where that cannot be seen from here."""
        place = (self.boot, self.host, self.namespace)
        if place != (_boot(), platform.node(), _namespace()):
            return None
        if not Path("/proc/self/stat").exists():
            return _answers(self.pid)
        state, started = _process(self.pid)
        return state not in {"", "Z", "X"} and started == self.started


class FolderLock:
    """The lock of one run folder.

    Args:
        folder: the run folder, which exists.
        stale_s: seconds after which the lock of another machine counts as left behind.
    """

    def __init__(self, folder: Path, stale_s: float) -> None:
        self._folder = folder
        self._path = folder / LOCK_FILE
        self._stale_s = stale_s
        self._content = b""
        self._warned = False

    @property
    def held(self) -> bool:
        """Whether this process holds the lock."""
        return bool(self._content)

    def acquire(self) -> None:
        """Take the lock; where the file system does not let any be made, say so and go on.

        Raises:
            RecordLockedError: another writer has it.
            OSError: the folder cannot be written.
        """
        content = _own_content(self._stale_s)
        try:
            self._acquire(content)
        except OSError as error:
            self._unavailable(error)
        else:
            self._content = content

    def require_free(self) -> None:
        """Refuse a folder that another writer has, without taking it.

        Raises:
            RecordLockedError: another writer has it.
        """
        try:
            found = _read(self._path)
            if found is not None:
                self._require_dead(self._path, found)
        except OSError as error:
            self._unavailable(error)

    def touch(self) -> None:
        """Give a sign of life.

        Raises:
            RecordLockedError: another writer has taken the folder meanwhile.
        """
        if not self.held:
            return
        try:
            found = _read(self._path)
            if found is None and not _create(self._path, self._content):
                found = _read(self._path)  # deleted, and another writer was faster
            if found is not None and found != self._content:
                self._content = b""
                raise self._refusal(_parse(found), "has taken over")
            os.utime(self._path)
        except OSError as error:
            self._warn("touched", error)

    def release(self) -> None:
        """Give the lock back, if this process still has it. Never raises."""
        content, self._content = self._content, b""
        if content:
            with contextlib.suppress(OSError):
                if _read(self._path) == content:
                    self._path.unlink()

    def _acquire(self, content: bytes) -> None:
        for attempt in range(_TRIES):
            if _create(self._path, content):
                return
            found = _read(self._path)
            # One that names nobody may be in the making.
            if found is not None and (_parse(found) or attempt > _TRIES // 2):
                self._require_dead(self._path, found)
                if self._supersede(self._path, found, content):
                    return
            time.sleep(_PAUSE_S)
        raise self._refusal(None, "is taking over")

    def _supersede(self, target: Path, found: bytes, content: bytes) -> bool:
        """Put `content` in the place of a dead `found`; False if something else is there now.

        Whoever has the claim that is named after `found` is the only one to replace it.
        """
        digest = hashlib.sha256(found).hexdigest()[:16]
        claim = self._folder / f"{LOCK_FILE}.{digest}"
        if not _create(claim, content):
            other = _read(claim)
            if other is None:
                return False
            self._require_dead(claim, other)
            if not self._supersede(claim, other, content):
                return False
        if _read(target) != found:
            claim.unlink(missing_ok=True)
            return False
        claim.replace(target)
        return True

    def _require_dead(self, path: Path, found: bytes) -> None:
        holder = _parse(found)
        alive = None if holder is None else holder.alive()
        if alive is None:
            stale_s = max(self._stale_s, holder.stale_s if holder else 0.0)
            alive = self._age_s(path) < stale_s
        if alive:
            raise self._refusal(holder, "is writing")

    def _age_s(self, path: Path) -> float:
        """Return the seconds since a touch, by the clock of the file server alone."""
        probe = self._folder / f"{LOCK_FILE}.{uuid.uuid4().hex[:16]}"
        try:
            touched = path.stat().st_mtime
            if not _create(probe, b"{}"):
                return 0.0
            return probe.stat().st_mtime - touched
        except FileNotFoundError:
            return 0.0  # it is gone already: look again
        finally:
            probe.unlink(missing_ok=True)

    def _refusal(self, holder: Holder | None, what: str) -> RecordLockedError:
        folder = str(self._folder)
        if holder is None:
            who = "An unnamed process"
        elif holder.pid == os.getpid() and holder.alive():
            who = f"Another monitor of this very process ({holder.pid} on {holder.host})"
        else:
            host = holder.host[:_LONGEST_HOST].encode("unicode_escape").decode()
            who = f"Process {holder.pid} on host {host}"
        return RecordLockedError(
            folder,
            f"{who} {what} the record in {folder!r}, so this writer may not. Close that one first, "
            f"or choose another folder with out=... If it does not exist any more, delete "
            f"{LOCK_FILE} in the folder.",
        )

    def _unavailable(self, error: OSError) -> None:
        if error.errno == errno.EISDIR:
            raise RecordLockedError(
                str(self._folder), f"{self._path} is a folder, and no lock. Delete it."
            ) from None
        if error.errno not in _WITHOUT_LOCKS:
            raise error
        self._warn("made", error)

    def _warn(self, what: str, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            _LOG.warning(
                "%s could not be %s (%s). The record is written without it: let no second process "
                "write into this folder.",
                self._path,
                what,
                error.strerror or error,
            )


def read_holder(folder: str | os.PathLike[str]) -> Holder | None:
    """Return who holds the lock of a run folder, or None where there is none that can be read."""
    try:
        found = _read(Path(folder) / LOCK_FILE)
    except OSError:
        return None
    return _parse(found) if found is not None else None


def _own_content(stale_s: float) -> bytes:
    holder = Holder(
        pid=os.getpid(),
        started=_process(os.getpid())[1],
        boot=_boot(),
        host=platform.node(),
        namespace=_namespace(),
        stale_s=stale_s,
        token=uuid.uuid4().hex,
    )
    return json.dumps(asdict(holder)).encode() + b"\n"


def _parse(content: bytes) -> Holder | None:
    try:
        holder = Holder(**json.loads(content))
    except (ValueError, TypeError, RecursionError):
        return None
    sound = type(holder.pid) is int and 0 < holder.pid < 2**31 and isinstance(holder.host, str)
    return holder if sound and isinstance(holder.stale_s, int | float) else None


def _create(path: Path, content: bytes) -> bool:
    """Make a file that must not be there yet; False if it is."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    try:
        if os.write(descriptor, content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301 - as write does
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(descriptor)
    return True


def _read(path: Path) -> bytes | None:
    """Return the beginning of a file; None if it is not there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        return None
    try:
        return os.read(descriptor, _LIMIT)
    finally:
        os.close(descriptor)


def _process(pid: int) -> tuple[str, str]:
    """Return state and start time of a process; empty where it does not exist or is not told."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ""
    after_name = fields.rpartition(")")[2].split()
    return after_name[0], after_name[19]


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - a text, no path
    except OSError:
        return ""
