"""Real processes for tests: one function on several ranks, or a script as a user starts it.

A finished gloo collective that is dropped while Python finalises aborts the process, so children
leave the process group first and end by `os._exit`. While they run, the folder `handover` in the
test's folder holds what they need to find each other and what they report; it is gone afterwards.
"""

import contextlib
import faulthandler
import gc
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import torch.distributed as dist
from process_support import FRAMEWORKS, child_environment, warm_python

COLLECTIVE_TIMEOUT_S = 30.0
TIMEOUT_S = 120.0

_HANDOVER = "handover"
_GRACE_S = 15.0
_START_S = 60.0
_LAST_WORDS_S = 2.0
_SHOWN_OUTPUT = 8000


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of one process in a group.

    Attributes:
        store: file over which the processes find each other, so that nobody chooses a port.
        collective_timeout: seconds after which a collective without the others fails.
    """

    rank: int
    world_size: int
    store: str
    collective_timeout: float

    def join(self) -> None:
        """Make the default process group. Every rank must call it."""
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(self.store, self.world_size),
            rank=self.rank,
            world_size=self.world_size,
            timeout=timedelta(seconds=self.collective_timeout),
        )


@dataclass(slots=True)
class Outcome:
    """How one rank ended.

    Attributes:
        value: what the function returned, if it did.
        failure: the child's traceback, or how it died; empty if it ended well or was stopped over
            another rank.
        stopped: whether the parent had to end it.
    """

    value: Any = None
    failure: str = ""
    stopped: bool = False


def run_ranks(
    fn: Callable[..., Any],
    folder: Path,
    *args: Any,
    world_size: int = 2,
    collective_timeout: float = COLLECTIVE_TIMEOUT_S,
    timeout: float = TIMEOUT_S,
) -> list[Any]:
    """Run `fn(seat, folder, *args)` on every rank of a gloo group and return the results by rank.

    The first rank that fails ends the others.

    Args:
        fn: a function of an importable module; it returns plain values.
        folder: a temporary folder; rank N works in `folder/cwd-N`.
        args: pickled and passed on.
        world_size: number of processes.
        collective_timeout: seconds after which a collective without the others fails.
        timeout: seconds that `fn` may take.

    Raises:
        AssertionError: a rank failed, died or did not end: which one, and its traceback.
    """
    seats = _Seats(world_size, collective_timeout)
    outcomes = _run(fn, folder, args, seats, timeout=timeout, impatient=True)
    if any(outcome.failure for outcome in outcomes):
        raise AssertionError(
            "\n".join(f"rank {rank} {_tell(outcome)}" for rank, outcome in enumerate(outcomes))
        )
    return [outcome.value for outcome in outcomes]


def rank_outcomes(
    fn: Callable[..., Any],
    folder: Path,
    *args: Any,
    world_size: int = 2,
    join: bool = True,
    collective_timeout: float = COLLECTIVE_TIMEOUT_S,
    timeout: float = TIMEOUT_S,
) -> list[Outcome]:
    """Do as `run_ranks`, but let every rank end by itself and say how it did.

    Args:
        fn: see `run_ranks`; likewise for what is not listed here.
        folder: see there.
        args: see there.
        world_size: see there.
        join: make the process group first; otherwise `fn` calls `seat.join()`.
        collective_timeout: see there.
        timeout: see there; a rank that is not done by then has failed.
    """
    seats = _Seats(world_size, collective_timeout, join=join)
    return _run(fn, folder, args, seats, timeout=timeout)


def run_script(
    script: Path,
    folder: Path,
    *arguments: str,
    torchrun: bool = False,
    world_size: int = 2,
    timeout: float = TIMEOUT_S,
) -> list[Any]:
    """Run a script that ends by `script_main`; return what its ranks handed over, by rank.

    Args:
        script: gets `folder` and `arguments` on its command line.
        folder: a temporary folder; the script works in `folder/cwd`.
        arguments: further words of the command line.
        torchrun: start it by torchrun; otherwise the script starts its other ranks itself.
        world_size: how many ranks must report.
        timeout: seconds for everything.

    Raises:
        AssertionError: it failed, did not end, or a rank did not report; with its last output.
    """
    handover, cwd = _folders(folder, "cwd")
    command = [warm_python(FRAMEWORKS)]
    if torchrun:
        launcher = "torch.distributed.run"
        command += ["-m", launcher, "--standalone", "--nproc-per-node", str(world_size)]
    output = handover / "output.txt"
    try:
        with output.open("wb") as file:
            process = subprocess.Popen(
                [*command, str(script), str(folder), *arguments],
                cwd=cwd,
                env=child_environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            ended = _wait(process, timeout)
        reports = [handover / f"{rank}.json" for rank in range(world_size)]
        missing = [rank for rank, report in enumerate(reports) if not report.exists()]
        if process.returncode or missing or not ended:
            raise AssertionError(
                f"{script.name}: "
                + (f"exit code {process.returncode}" if ended else f"not done in {timeout:g} s")
                + f", no report of ranks {missing}. The end of its output:\n"
                + output.read_text(errors="replace")[-_SHOWN_OUTPUT:]
            )
        return [json.loads(report.read_text()) for report in reports]
    finally:
        shutil.rmtree(handover, ignore_errors=True)


def script_main(main: Callable[..., Any]) -> NoReturn:
    """Run `main(folder, *arguments)` as one rank of a script, hand over its result and end.

    `main` returns plain values, and must leave the process group as it is.
    """
    folder = Path(sys.argv[1])
    code = 1
    try:
        text = json.dumps(main(folder, *sys.argv[2:]))
        (folder / _HANDOVER / f"{dist.get_rank()}.json").write_text(text)
        _leave()
        code = 0
    except BaseException:  # noqa: BLE001 - the process ends here, whatever it was
        traceback.print_exc()
    _end(code)


def _leave() -> None:
    """Leave the process group, if there is one, once every rank has come here."""
    gc.collect()
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def _end(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@dataclass(frozen=True, slots=True)
class _Seats:
    """What the seats of a group have in common."""

    world_size: int
    collective_timeout: float
    join: bool = True

    def seat(self, rank: int, handover: Path) -> Seat:
        return Seat(rank, self.world_size, str(handover / "store"), self.collective_timeout)


def _run(
    fn: Callable[..., Any],
    folder: Path,
    args: Sequence[Any],
    seats: _Seats,
    *,
    timeout: float,
    impatient: bool = False,
) -> list[Outcome]:
    context = multiprocessing.get_context("spawn")
    handover, _ = _folders(folder, "")
    children: list[BaseProcess] = []
    pipes: list[connection.Connection] = []
    resource_tracker.ensure_running()  # it outlives the test, and is no warm process
    try:
        with (
            mock.patch.dict(os.environ, child_environment(), clear=True),
            mock.patch("multiprocessing.spawn._python_exe", os.fsencode(warm_python(FRAMEWORKS))),
        ):
            for rank in range(seats.world_size):
                receiver, sender = context.Pipe(duplex=False)
                pipes.append(receiver)
                seat = seats.seat(rank, handover)
                call = (fn, args, folder, seat, seats.join, sender, timeout)
                child = context.Process(target=_child, args=call, daemon=True)
                child.start()
                children.append(child)
                sender.close()
        outcomes = _listen(pipes, children, timeout + _START_S, impatient=impatient)
        for rank, outcome in enumerate(outcomes):
            stack = handover / f"{rank}.txt"
            if outcome.failure and stack.exists() and stack.stat().st_size:
                outcome.failure = (
                    f"was not done in {timeout:g} s. It was here:\n{stack.read_text()}"
                )
        return outcomes
    finally:
        for child in children:
            child.kill()
            child.join()
            child.close()
        for receiver in pipes:
            receiver.close()
        shutil.rmtree(handover, ignore_errors=True)


def _child(
    fn: Callable[..., Any],
    args: Sequence[Any],
    folder: Path,
    seat: Seat,
    join: bool,
    pipe: connection.Connection,
    timeout: float,
) -> NoReturn:
    handover, cwd = _folders(folder, f"cwd-{seat.rank}")
    os.chdir(cwd)
    code = 1
    try:
        if join:
            seat.join()
        stack = (handover / f"{seat.rank}.txt").open("w")
        faulthandler.dump_traceback_later(timeout, exit=True, file=stack)
        pipe.send((fn(seat, folder, *args), ""))
        _leave()
        code = 0
    except BaseException:  # noqa: BLE001 - the process ends here, whatever it was
        pipe.send((None, f"failed:\n{traceback.format_exc()}"))
    _end(code)


def _listen(
    pipes: Sequence[connection.Connection],
    children: Sequence[BaseProcess],
    timeout: float,
    *,
    impatient: bool,
) -> list[Outcome]:
    """Collect what the children say until each has ended, or one has failed, or time is up."""
    outcomes = [Outcome() for _ in pipes]
    silent = dict(zip(pipes, range(len(pipes)), strict=True))
    reported: set[int] = set()
    deadline = time.monotonic() + timeout
    while silent:
        ready = connection.wait(list(silent), max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            rank = silent[pipe]
            try:
                value, failure = pipe.recv()
            except EOFError:
                del silent[pipe]
                children[rank].join(_GRACE_S)
                code = children[rank].exitcode
                if not outcomes[rank].failure and (code or rank not in reported):
                    outcomes[rank].failure = f"died with exit code {code}"
            else:
                reported.add(rank)
                outcomes[rank] = Outcome(value, failure)
        if impatient and any(outcome.failure for outcome in outcomes):
            # The others get to say what they know: one of them may be the cause.
            deadline = min(deadline, time.monotonic() + _LAST_WORDS_S)
    over = any(outcome.failure for outcome in outcomes) and impatient
    for rank in silent.values():
        outcomes[rank].stopped = True
        if not over:
            outcomes[rank].failure = f"still ran after {timeout:g} s"
    return outcomes


def _tell(outcome: Outcome) -> str:
    if outcome.failure:
        return outcome.failure
    return "was stopped over that" if outcome.stopped else "ended well"


def _folders(folder: Path, cwd: str) -> tuple[Path, Path]:
    """Make the folder for handing over and the one to work in."""
    found = folder / _HANDOVER, folder / cwd
    for each in found:
        each.mkdir(parents=True, exist_ok=True)
    return found


def _wait(process: "subprocess.Popen[bytes]", timeout: float) -> bool:
    """Wait for a process; end it and those it started when time is up. Return whether it ended."""
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        return False
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGTERM)  # torchrun then ends its own children
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return True
