"""Locks of other processes, for tests. No test lives here."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ormas_core.record import lock
from ormas_core.record.lock import LOCK_FILE, FolderLock, Holder, read_holder

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


def leave_over(folder: Path) -> Holder:
    """Put the lock of another machine in the place of the one that is there."""
    (folder / LOCK_FILE).unlink()
    return leave(folder, host="other")
