"""Records and command lines that a review of the first version broke, with the right value now."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import ToyNet

from ormas_core import (
    ConfigError,
    MemorySink,
    Monitor,
    NoGradients,
    RecordWriter,
    RunEnd,
    Status,
    describe,
    run_facts,
    summary,
    verify_record,
)
from ormas_core.testing import measurement, run_start


def watch(net: Any, folder: Path, **options: Any) -> tuple[Monitor, MemorySink]:
    sink = MemorySink()
    settings = {"out": folder / "run", "check_every": 1, "verbose": False, "sinks": [sink]}
    return Monitor(net, **{**settings, **options}), sink


def test_a_forked_child_does_not_write_into_the_record(tmp_path: Path) -> None:
    """A child that steps and closes its copy leaves the parent's record whole."""
    code = (
        "import os, sys, torch\n"
        "from ormas_core import Monitor\n"
        "net = torch.nn.Linear(2, 1)\n"
        "monitor = Monitor(net, out=sys.argv[1], check_every=1, verbose=False)\n"
        "child = os.fork()\n"
        "net(torch.ones(1, 2)).sum().backward()\n"
        "monitor.step(1.0)\n"
        "if child: os.waitpid(child, 0)\n"
        "monitor.close()\n"
        "os._exit(0)\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "run")],
        check=True,
        env=environment,
    )
    assert verify_record(tmp_path / "run").complete


def test_a_leftover_rank_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """RANK=1 without a process group: no record, and a warning that says why."""
    monkeypatch.setenv("RANK", "1")
    monitor, _ = watch(ToyNet(), tmp_path)
    monitor.close()
    assert not (tmp_path / "run").exists()
    assert "rank 1 by its environment" in caplog.text


@pytest.mark.parametrize("name", ["record.jsonl", "metrics.jsonl"])
@pytest.mark.parametrize(("command", "code"), [("verify", 1), ("summary", 2)])
def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(
    name: str, command: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A FIFO is refused as no regular file: a failed check for verify, nothing to show."""
    from ormas_core.cli.main import main

    writer = RecordWriter(tmp_path)
    writer.write(run_start())
    writer.close()
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    assert main([command, str(tmp_path)]) == code
    shown = capsys.readouterr()
    assert "not a regular file" in shown.out + shown.err


def test_swapped_files_and_lines_after_the_end_fail(tmp_path: Path) -> None:
    """Every event has its file and its place."""
    writer = RecordWriter(tmp_path)
    writer.write(run_start())
    writer.write(measurement(0, {"a": 1.0}))
    end = RunEnd(step=1, steps=1, checks=1, counts={}, status=Status.HEALTHY)
    writer.write(end)
    writer.write(writer.anchor(1))
    assert verify_record(tmp_path).complete
    writer.write(end)
    assert verify_record(tmp_path).failed
    writer.close()
    record, metrics = tmp_path / "record.jsonl", tmp_path / "metrics.jsonl"
    record.rename(tmp_path / "x")
    metrics.rename(record)
    (tmp_path / "x").rename(metrics)
    found = {check.name: check.outcome for check in verify_record(tmp_path).checks}
    assert found["schema"] == "fail"


def test_an_interrupt_in_the_middle_of_a_write_leaves_the_chain_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line that was interrupted is gone, and the next one follows the one before."""
    writer = RecordWriter(tmp_path)
    writer.write(run_start())
    file = writer._record._file

    class Interrupted:
        def __getattr__(self, name: str) -> Any:
            return getattr(file, name)

        def write(self, line: bytes) -> int:
            file.write(line)
            raise KeyboardInterrupt

    writer._record._file = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        writer.write(run_start())
    writer._record._file = file
    writer.write(run_start(segment=1))
    writer.write(writer.anchor(0))
    writer.close()
    assert not verify_record(tmp_path).failed


def test_a_name_cannot_fake_lines_of_a_report(tmp_path: Path) -> None:
    """Control characters are shown escaped."""
    monitor, sink = watch(ToyNet(), tmp_path, name="run\n# all: HEALTHY\x1b[2J")
    monitor.close()
    text = summary(run_facts(sink.events))
    assert "\x1b" not in text
    assert text.splitlines()[0] == "# run\\n# all: HEALTHY\\x1b[2J: NOT MONITORED"


@pytest.mark.parametrize(
    "option",
    [{"scaler": object()}, {"overwrite": "no"}, {"verbose": "x"}],
    ids=lambda o: next(iter(o)),
)
def test_switches_and_scalers_are_checked_before_training(
    option: dict[str, Any], tmp_path: Path
) -> None:
    """By `Monitor` and by the callbacks, with the option's name."""
    from ormas_hf import HFMonitorCallback
    from ormas_lightning import LightningMonitorCallback

    (name,) = option
    with pytest.raises(ConfigError, match=name):
        Monitor(ToyNet(), out=tmp_path / "run", **option)
    for callback in (HFMonitorCallback, LightningMonitorCallback):
        with pytest.raises(ConfigError, match=name):
            callback(**option)
    assert not (tmp_path / "run").exists()


def test_gradients_of_zero_get_other_advice_than_missing_ones() -> None:
    """A saturated loss is not told to call backward()."""
    missing = describe(NoGradients(step=0, absent=True, layers=2))
    zero = describe(NoGradients(step=0, absent=False, layers=2))
    assert "after backward()" in missing
    assert "after backward()" not in zero
    assert "saturated" in zero


def test_a_segment_given_up_before_its_first_step_has_no_say() -> None:
    """As when a batch size does not fit: the completed segment is the verdict."""

    def ended(status: Status, attempts: int) -> RunEnd:
        return RunEnd(step=0, steps=0, checks=0, counts={"attempts": attempts}, status=status)

    good = [run_start(segment=1), measurement(0, {"a": 1.0}), ended(Status.HEALTHY, 1)]
    given_up = [run_start(), ended(Status.NOT_MONITORED, 0)]
    assert run_facts([*given_up, *good]).status is Status.HEALTHY
    failed = [run_start(), ended(Status.NOT_MONITORED, 3)]
    assert run_facts([*failed, *good]).status is Status.NOT_MONITORED


def test_a_name_beyond_the_terminal_is_shown_escaped(tmp_path: Path) -> None:
    """`summary` of a run with non-ASCII and lone surrogate names works on an ASCII terminal."""
    monitor, _ = watch(ToyNet(), tmp_path, name="Pr\u00fcfung \ud800")
    monitor.close()
    result = subprocess.run(
        [sys.executable, "-m", "ormas_core.cli.main", "summary", str(tmp_path / "run")],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("# Pr\\xfcfung")
