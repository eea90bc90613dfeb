"""Processes that have imported torch already, for tests in which a process has to die."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from ranks_support import child_environment

# The child leaves the loop and runs its code at the top, so that exceptions, exits and signals
# take the way they take in any script.
_ZYGOTE = """
import gc, json, os, signal, sys
# A shell's background jobs ignore Ctrl-C, and so would what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
exec(sys.argv[1])
gc.freeze()  # what has been imported is not searched again at the end of every child
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
for place, number in ((job["out"], 1), (job["err"], 2)):
    os.dup2(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
sys.stdin.close()
sys.argv = ["script", *job["argv"]]
exec(compile(job["code"], "script", "exec"))
"""


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str


class Zygote:
    """Runs scripts, one after the other, each in a fork of one process.

    Args:
        prelude: what every script begins with; run once.
        folder: where outputs are kept.
    """

    def __init__(self, prelude: str, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ZYGOTE, prelude],
            env=child_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate(timeout=30)

    def run(self, code: str, *argv: str) -> Ended:
        """Run `code` with `argv` and wait for its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        out, err = self._folder / "stdout", self._folder / "stderr"
        job = {"code": code, "argv": argv, "out": str(out), "err": str(err)}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        returncode = int(self._process.stdout.readline())
        return Ended(returncode, out.read_text("utf-8"), err.read_text("utf-8"))
