"""A training that goes on: the same chain, the same baselines, and what was lost on the way."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from process_support import child_environment, warm_python
from resume_support import resumed, said, through_json, train
from support import ToyNet, of, plant_explosion, sgd

from ormas_core import (
    MemorySink,
    Monitor,
    RunEnd,
    RunResumed,
    RunStart,
    read_metrics,
    read_record,
    verify_record,
)

Make = Callable[..., tuple[Monitor, MemorySink]]


FILES = ("record.jsonl", "metrics.jsonl")


def test_a_resumed_training_alarms_as_one_that_was_not_interrupted(
    make: Make, tmp_path: Path
) -> None:
    """The same alarms at the same steps against the same baselines; steps are counted on."""
    whole = ToyNet()
    plant_explosion(whole, 30)
    monitor, expected = make(whole, sgd(whole), out=tmp_path / "whole")
    train(monitor, whole, 0, 40)
    monitor.close()
    assert said(expected)

    net = ToyNet()
    plant_explosion(net, 30)
    first, _ = make(net, sgd(net))
    train(first, net, 0, 20)
    state = through_json(first.state_dict())
    first.close(KeyboardInterrupt())
    second, sink = make(net, sgd(net), resume=True)
    second.load_state_dict(state)
    train(second, net, 20, 40)
    second.close()
    assert said(sink) == said(expected)
    assert [m.step for m in read_metrics(tmp_path / "run")] == list(range(40))
    assert of(sink, RunEnd)[0].steps == 40
    assert verify_record(tmp_path / "run").complete


def test_the_chain_goes_on_at_its_end(make: Make, tmp_path: Path) -> None:
    """Nothing of the first segment changes; the second follows its last line and says so."""
    net = ToyNet()
    first, _ = make(net)
    train(first, net, 0, 10)
    state = first.state_dict()
    train(first, net, 10, 15)
    first.close(KeyboardInterrupt())
    before = {name: (tmp_path / "run" / name).read_bytes() for name in FILES}
    *_, last = read_record(tmp_path / "run")
    second, sink = make(net, resume=True)
    second.load_state_dict(through_json(state))
    train(second, net, 10, 12)
    second.close()
    for name, data in before.items():
        assert (tmp_path / "run" / name).read_bytes().startswith(data)
    assert verify_record(tmp_path / "run").complete
    found = resumed(tmp_path / "run")
    assert (found.head, found.lines, found.metrics_rows) == (last.hash, last.seq + 1, 15)
    assert (found.step, found.attempt, found.reached, found.repeated) == (10, 10, 15, 5)
    assert (found.restored, found.ended, found.detail) == (True, True, "")
    assert (found.checkpoint_head, found.checkpoint_lines) == (state["head"], state["lines"])
    assert found.checkpoint_rows == 10
    starts = [e.event for e in read_record(tmp_path / "run") if isinstance(e.event, RunStart)]
    assert [start.segment for start in starts] == [0, 1]
    assert starts[0].run_id == starts[1].run_id == first.run_id == second.run_id
    assert [e.kind for e in sink.events[:4]] == [
        *("run_start", "manifest", "run_resumed", "measurement"),
    ]


KILLED = """
import json, os, signal, sys
sys.path.insert(0, sys.argv[2])
from support import ToyNet, loader, plain_loop, sgd
from ormas_core import Monitor
from pathlib import Path

net, saved = ToyNet(), Path(sys.argv[1] + ".json")
monitor = Monitor(net, sgd(net), out=sys.argv[1], check_every=1, verbose=False, resume=True)
if saved.exists():
    monitor.load_state_dict(json.loads(saved.read_text()))
for number, batch in enumerate(loader()):
    plain_loop(net, monitor.step, [batch], sgd(net))
    if number == 5:
        saved.write_text(json.dumps(monitor.state_dict()))
    if number == 8:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_is_resumed_by_another(tmp_path: Path) -> None:
    """Twice, each time from the last checkpoint: one chain, three segments, nothing lost."""
    out = tmp_path / "run"
    for _ in range(3):
        done = subprocess.run(
            [warm_python(), "-c", KILLED, str(out), str(Path(__file__).parents[1])],
            env=child_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
    events = [line.event for line in read_record(out)]
    assert [e.segment for e in events if isinstance(e, RunStart)] == [0, 1, 2]
    found = [e for e in events if isinstance(e, RunResumed)]
    assert [(e.step, e.reached, e.repeated, e.ended) for e in found] == [
        (6, 9, 3, False),
        (12, 15, 3, False),
    ]
    assert [m.step for m in read_metrics(out)] == [*range(9), *range(6, 15), *range(12, 21)]
    assert not verify_record(out).failed


@pytest.mark.parametrize("torn", [b"{", b'{"a":1,"hash":"' + b"0" * 64 + b'"}', b"\0" * 70_000])
@pytest.mark.parametrize("name", FILES)
def test_a_torn_last_line_is_cut_off_and_said(
    make: Make, tmp_path: Path, name: str, torn: bytes
) -> None:
    """A killed process, or a machine without power, leaves one; the whole lines go on."""
    net = ToyNet()
    monitor, _ = make(net)
    train(monitor, net, 0, 3)
    monitor.close()
    path = tmp_path / "run" / name
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    second, _ = make(net, resume=True)
    train(second, net, 0, 1)
    second.close()
    assert path.read_bytes().startswith(whole)
    assert verify_record(tmp_path / "run").complete
    found = resumed(tmp_path / "run")
    lengths = (found.torn_record_bytes, found.torn_metrics_bytes)
    assert lengths == ((len(torn), 0) if name == FILES[0] else (0, len(torn)))


def test_without_a_state_the_record_goes_on_with_new_baselines(make: Make, tmp_path: Path) -> None:
    """It is said at the first check, or at the end if there is none."""
    net = ToyNet()
    make(net)[0].close()
    for steps in (2, 0):
        monitor, sink = make(net, resume=True)
        train(monitor, net, 0, steps)
        monitor.close()
        (found,) = of(sink, RunResumed)
        assert (found.step, found.restored) == (0, False)
        assert found.detail == "no state of a checkpoint was given"
        assert found.checkpoint_head is None
    assert verify_record(tmp_path / "run").complete


def test_where_there_is_no_record_a_new_one_begins(make: Make, tmp_path: Path) -> None:
    """So one script serves the first start and every later one."""
    monitor, sink = make(ToyNet(), resume=True)
    monitor.close()
    assert not of(sink, RunResumed)
    assert of(sink, RunStart)[0].segment == 0
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "record.jsonl").write_bytes(b'{"never')
    monitor, sink = make(ToyNet(), resume=True, out=tmp_path / "torn")
    monitor.close()
    assert not of(sink, RunResumed)
    assert verify_record(tmp_path / "torn").complete


def test_a_state_of_another_record_restores_baselines_only(make: Make, tmp_path: Path) -> None:
    """A new folder begins a new chain, and no line of it is claimed to be the checkpoint's."""
    net = ToyNet()
    monitor, _ = make(net)
    train(monitor, net, 0, 10)
    state = monitor.state_dict()
    monitor.close()
    other, _ = make(net, out=tmp_path / "other")
    other.load_state_dict(state)
    train(other, net, 10, 12)
    other.close()
    found = resumed(tmp_path / "other")
    assert (found.step, found.restored, found.lines, found.reached) == (10, True, 0, None)
    assert (found.checkpoint_head, found.checkpoint_lines, found.checkpoint_rows) == (None,) * 3
    assert other.run_id != monitor.run_id
    assert verify_record(tmp_path / "other").complete
