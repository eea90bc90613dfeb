"""The Python that tests start their processes with does as a fresh one does."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from process_support import FRAMEWORKS, child_environment, warm_python

SCRIPT = """
import multiprocessing.spawn, os, sys, threading
class Late:
    def __del__(self): print("late", file=self.where)
late = Late()
late.where = sys.stderr
thread = threading.Thread(target=lambda: print(os.getcwd(), sys.stdin.read()))
thread.start()
thread.join()
print(__name__, __file__, __package__, __spec__, sys.argv, sys.path, sorted(os.environ.items()))
print(multiprocessing.spawn.get_executable() == os.fsencode(sys.executable))
print(sorted(set(globals()) - {"__annotations__", "__cached__"}))
import beside
"""
FILES = """
import os
def is_open(file):
    try:
        return bool(os.fstat(file))
    except OSError:
        return False
print(*filter(is_open, map(int, os.listdir("/dev/fd"))))
"""
CASES = {
    "script": ["script.py", "one", "two words"],
    "script of no Python": ["-W", "ignore", "wrong.py"],
    "words": ["-c", "import sys; print(sys.argv, sys.path, __name__)", "-c", "--flag"],
    "module": ["-m", "beside", "one"],
    "package": ["-m", "folder", "one"],
    "exit code": ["-c", "import sys; print('said'); sys.exit(7)"],
    "exit with words": ["-c", "import sys; sys.exit('over')"],
    "exit at once": ["-c", "import os; os._exit(3)"],
    "exception": ["-c", "def f(): 1 / 0\nf()"],
    "killed": ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"],
    "aborted": ["-c", "import os; os.abort()"],
    "interrupted": ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGINT)"],
    "warning": ["-c", "import warnings; warnings.warn('old', DeprecationWarning)"],
    "warning as an error": ["-W", "error", "-c", "import warnings; warnings.warn('old')"],
    "seekable": ["-c", "import sys; print(sys.stdout.seekable()); sys.stdout.reconfigure()"],
}


def last_line(text: str) -> str:
    """Return the last line, without the path of the Python that said it."""
    return [*text.splitlines(), ""][-2 if text else 0].rpartition("/")[2]


@pytest.mark.parametrize("case", CASES)
def test_what_a_caller_sees_is_what_a_fresh_python_shows(tmp_path: Path, case: str) -> None:
    """Output, last words and exit code or signal, for the same line in the same surroundings."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("import sys; print(__name__, sys.argv, sys.path[0])")
    (tmp_path / "wrong.py").write_text("this is")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text("import sys; print(__spec__.name, sys.argv)")
    seen = []
    for python in (sys.executable, warm_python()):
        done = subprocess.run(
            [python, *CASES[case]],
            cwd=tmp_path,
            env={**child_environment(), "PYTHONWARNINGS": "always", "OWN": "value"},
            input="input",
            capture_output=True,
            text=True,
            check=False,
        )
        seen.append((done.returncode, done.stdout, last_line(done.stderr)))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
@pytest.mark.parametrize("handled", [False, True])
def test_a_signal_arrives(sent: signal.Signals, handled: bool) -> None:
    """It does what it does by default, or calls the handler."""
    code = "import os, signal, sys, time\n"
    if handled:
        code += f"signal.signal({int(sent)}, lambda *_: sys.exit(9))\n"
    code += "print('ready', flush=True)\ntime.sleep(60)"
    with subprocess.Popen(
        [warm_python(), "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(sent)
        assert child.wait(60) == (9 if handled else -sent)


def test_a_kill_ends_what_it_started_too() -> None:
    """No process is left that would hold the output open."""
    code = "import os, time\nos.fork()\nprint('ready', flush=True)\ntime.sleep(600)"
    with subprocess.Popen([warm_python(), "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        child.kill()
        assert child.stdout.read() == ""
        assert child.wait() == -signal.SIGKILL


def test_files_that_are_passed_on_have_their_numbers() -> None:
    """As multiprocessing passes its pipes on; no other file of anybody is open."""
    with tempfile.TemporaryFile() as file:
        done = subprocess.run(
            [warm_python(), "-c", FILES],
            pass_fds=[file.fileno()],
            stdout=subprocess.PIPE,
            check=True,
        )
        assert sorted(map(int, done.stdout.split())) == [0, 1, 2, file.fileno()]


def test_no_two_processes_draw_alike_and_each_knows_its_rank() -> None:
    """What modules settle when they are imported is settled in every process."""
    code = (
        "import random, numpy\n"
        "from lightning.pytorch.utilities import rank_zero_only\n"
        "print(rank_zero_only.rank, random.random(), numpy.random.random())"
    )
    seen = [
        subprocess.run(
            [warm_python(FRAMEWORKS), "-c", code],
            env={**child_environment(), "LOCAL_RANK": str(rank)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for rank in (0, 1)
    ]
    assert [rank for rank, *_ in seen] == ["0", "1"]
    assert all(one != other for one, other in zip(*seen, strict=True))
