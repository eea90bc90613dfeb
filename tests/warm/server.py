"""A process that has imported what is slow to import, and forks for every command line of Python.

It has one thread and has computed nothing. A fork has the working folder, environment, files and
arguments of the client that asked; it leaves the loop and runs its code at the top, so that
exceptions, exits and signals take the way they take in any script.

Arguments: number of the socket that clients connect to, what `sys.executable` is in a fork, modules
to import. It ends when its standard input does.
"""

import fcntl
import gc
import importlib.util
import json
import multiprocessing
import os
import selectors
import signal
import socket
import struct
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any

Job = Mapping[str, Any]
PATH = [each for each in sys.path[1:] if each not in os.environ.get("PYTHONPATH", "").split(":")]
"""Where modules are that are installed."""


class Server:
    """Forks for every client, tells it how the fork ended, and kills a fork whose client is gone.

    Args:
        listener: the socket that clients connect to.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, socket.socket] = {}
        self._listener = listener
        self._ended, self._ends = socket.socketpair()
        self._ends.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._ends.fileno())
        for each in (self._listener, self._ended, sys.stdin):
            self._selector.register(each, selectors.EVENT_READ)

    def run(self) -> Job:
        """Serve; return in the forks only, each with its job."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    self._end()
                elif key.fileobj is self._ended:
                    self._ended.recv(4096)
                    self._reap()
                elif key.fileobj is self._listener:
                    job = self._fork(self._listener.accept()[0])
                    if job is not None:
                        return job
                elif key.data in self._clients:
                    self._listen(key.data)

    def _fork(self, client: socket.socket) -> Job | None:
        head, files, _, _ = socket.recv_fds(client, 4, 250)
        (length,) = struct.unpack("!I", head)
        job: Job = json.loads(client.recv(length, socket.MSG_WAITALL))
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            self._close()
            client.close()
            _take_files(files, job["files"])
            return job
        os.setpgid(child, child)
        for file in files:
            os.close(file)
        self._clients[child] = client
        self._selector.register(client, selectors.EVENT_READ, child)
        return None

    def _listen(self, child: int) -> None:
        """Pass a signal on; a client that has gone takes its fork and what that started along."""
        numbers = b""
        with suppress(ConnectionError):
            numbers = self._clients[child].recv(64)
        if not numbers:
            self._selector.unregister(self._clients[child])
            _send(os.killpg, child, signal.SIGKILL)
        for number in numbers:
            _send(os.kill, child, number)

    def _reap(self) -> None:
        while self._clients:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                return
            client = self._clients.pop(child)
            with suppress(KeyError):
                self._selector.unregister(client)
            with suppress(OSError):
                client.send(struct.pack("!i", os.waitstatus_to_exitcode(status)))
            client.close()

    def _end(self) -> None:
        for child in self._clients:
            _send(os.killpg, child, signal.SIGKILL)
        os._exit(0)

    def _close(self) -> None:
        """Leave nothing of the server in a fork."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (self._listener, self._ended, self._ends, *self._clients.values()):
            each.close()
        self._selector.close()


def _send(how: Callable[[int, int], None], child: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it has ended
        how(child, number)


def _take_files(files: Sequence[int], numbers: Sequence[int]) -> None:
    """Give files that were received the numbers they have in the client, and keep no other."""
    above = max([*files, *numbers]) + 1
    files = [fcntl.fcntl(file, fcntl.F_DUPFD, above) for file in files]
    os.closerange(0, above)
    for file, number in zip(files, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def become(job: Job, executable: str) -> CodeType:
    """Be what the job's command line starts, up to the code to run, which is returned."""
    os.chdir(job["cwd"])
    for name in os.environ.keys() - job["env"].keys():
        del os.environ[name]
    os.environ.update(job["env"])
    _open_standard_files()
    sys.executable = executable
    multiprocessing.set_executable(executable)
    _import_again()
    how, arguments = _follow_options(list(job["argv"]))
    folder = Path(arguments[0]).resolve().parent if not how else job["cwd"] if how == "-m" else ""
    asked = [each for each in os.environ.get("PYTHONPATH", "").split(":") if each]
    sys.path[:] = [str(folder), *asked, *PATH]
    importlib.invalidate_caches()
    file, spec, code = _find(how, arguments[0])
    sys.argv = [arguments[0] if not how else file or how, *arguments[1:]]
    names = sys.modules["__main__"].__dict__
    kept = {name: names[name] for name in ("__name__", "__builtins__", "__loader__")}
    names.clear()
    names.update(kept, __doc__=None, __spec__=spec, __package__=spec and spec.parent)
    if file:
        names["__file__"] = file
    return code


def _open_standard_files() -> None:
    """Open anew what was opened for other files, which these three may differ from in kind."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        old = getattr(sys, name)
        new = os.fdopen(
            *(old.fileno(), mode, 1 if name == "stderr" else -1),
            encoding=old.encoding,
            errors=old.errors,
            closefd=False,
        )
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _import_again() -> None:
    """Do what modules do when they are imported, where that differs from process to process."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # Python's own generator is seeded after every fork
    if "lightning.fabric" in sys.modules:
        from lightning.fabric.utilities import rank_zero

        rank_zero.rank_zero_only.rank = rank_zero._get_rank() or 0  # from the environment


def _follow_options(arguments: list[str]) -> tuple[str, list[str]]:
    """Follow the options; return `-c`, `-m` or nothing, and what comes after it."""
    warned = [each for each in os.environ.get("PYTHONWARNINGS", "").split(",") if each]
    how = ""
    while not how and arguments[0].startswith("-"):
        option = arguments.pop(0)
        if option in {"-c", "-m"}:
            how = option
        elif option == "-u":
            sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr] # opened above
        elif option.startswith("-W"):
            warned.append(option[2:] or arguments.pop(0))
        elif option != "-B":
            sys.exit(f"the warm Python does not know {option}")
    if warned:
        sys.warnoptions[:] = warned
        warnings._processoptions(warned)  # type: ignore[attr-defined] # what Python itself calls
    return how, arguments


def _find(how: str, what: str) -> tuple[str, Any, CodeType]:
    """Return the file, the module's spec and the code of what is to run."""
    if how == "-c":
        return "", None, compile(what, "<string>", "exec")
    if how != "-m":
        file = str(Path(what).absolute())
        return file, None, compile(Path(file).read_bytes(), file, "exec")
    spec: Any = importlib.util.find_spec(what)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{what}.__main__")
    if spec is None:
        sys.exit(f"no module named {what}")
    return spec.origin, spec, spec.loader.get_code(spec.name)


def prepare(modules: Sequence[str]) -> None:
    """Import the modules, which must leave no thread: a fork has only the one that forks."""
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    if threading.active_count() > 1:
        sys.exit(f"importing has left threads: {threading.enumerate()}")
    gc.enable()
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    prepare(sys.argv[3:])
    exec(become(Server(socket.socket(fileno=int(sys.argv[1]))).run(), sys.argv[2]))  # noqa: S102 - it is a Python
