"""Processes of Python for tests: their environment, and one that need not import torch again.

Most of what a test takes that starts processes is imports, the same ones each time. `warm_python`
runs command lines as Python does, in forks of one process that has torch, or all frameworks. Tests
of what a fresh interpreter does, such as what it imports, start `sys.executable`.
"""

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path

_TESTS = Path(__file__).resolve().parent
# The root comes first: folders of `tests` bear the names of the packages they test.
_IMPORTABLE = (_TESTS.parent, _TESTS, _TESTS / "distributed")
_LAUNCHERS = frozenset(
    {"RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
)

_CLIENT = """#!{python} -IS
import sys
sys.path.insert(0, {folder!r})
import client
client.main({address!r})
"""
_WARM = _TESTS / "warm"
_STARTING = threading.Lock()
TORCH = ("torch", "torch._dynamo")
FRAMEWORKS = (
    *(*TORCH, "torch.distributed.run", "lightning.pytorch", "transformers.trainer"),
    *("mlflow", "mlflow.store.tracking.sqlalchemy_store", "sklearn.datasets"),
)


def child_environment() -> dict[str, str]:
    """Return the environment of a child: offline, one thread, no GPU, no proxy, no launcher."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _LAUNCHERS
        and not name.lower().endswith("_proxy")
        and not name.startswith(("MLFLOW_", "PYTEST_", "TORCHELASTIC_"))
    }
    return {
        **kept,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, _IMPORTABLE)),
        "TOKENIZERS_PARALLELISM": "false",
    }


def warm_python(modules: tuple[str, ...] = TORCH) -> str:
    """Return the path of a Python that has imported the modules; it ends with this process.

    Args:
        modules: `TORCH`, or `FRAMEWORKS`, of which a process takes longer to end.
    """
    with _STARTING:
        return _start(modules)


def run_warm(
    code: str, *arguments: str, modules: tuple[str, ...] = TORCH
) -> "subprocess.CompletedProcess[str]":
    """Run code in such a Python of its own, and wait for its end."""
    return subprocess.run(
        [warm_python(modules), "-c", code, *arguments],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


@cache
def _start(modules: tuple[str, ...]) -> str:
    # Not in a folder of pytest's: the address of a socket must be short.
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    address, client = str(folder / "socket"), folder / "python"
    code = _CLIENT.format(python=sys.executable, folder=str(_WARM), address=address)
    client.write_text(code, encoding="utf-8")
    client.chmod(0o755)
    # Who connects before the server has imported everything waits for it.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        server = subprocess.Popen(
            [sys.executable, _WARM / "server.py", str(listener.fileno()), client, *modules],
            env=child_environment(),
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
    atexit.register(_end, server, folder)
    return str(client)


def _end(server: "subprocess.Popen[bytes]", folder: Path) -> None:
    server.communicate()
    shutil.rmtree(folder)
