"""A training that goes on: the same chain, the same baselines, and what was lost on the way."""

import hashlib
import io
import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks_support import child_environment
from support import ToyNet, loader, of, plain_loop, plant_explosion, sgd

from ormas_core import (
    Alarm,
    AlarmCleared,
    Measurement,
    MemorySink,
    Monitor,
    RecordExistsError,
    RecordFormatError,
    RunEnd,
    RunResumed,
    RunStart,
    SavedFile,
    Status,
    read_metrics,
    read_record,
    read_run,
    run_facts,
    verify_record,
)

Make = Callable[..., tuple[Monitor, MemorySink]]
FILES = ("record.jsonl", "metrics.jsonl")
BATCHES = list(loader())


def train(monitor: Monitor, net: ToyNet, first: int, last: int) -> None:
    """Make the steps from `first` up to `last`."""
    plain_loop(net, monitor.step, BATCHES[first:last], sgd(net))


def watch(monitor: Monitor, net: ToyNet, first: int, last: int) -> None:
    """As `train`, with weights that stay as they are: a planted fault has no consequences."""
    plain_loop(net, monitor.step, BATCHES[first:last], torch.optim.SGD(net.parameters(), lr=0.0))


def through_json(state: Mapping[str, Any]) -> Any:
    """Return a state as a checkpoint in JSON gives it back."""
    return json.loads(json.dumps(state, allow_nan=False))


def said(sink: MemorySink) -> list[Any]:
    """Return what the rules said, without the time."""
    return [(e.kind, e.step, e.layer, e.value, e.normal) for e in of(sink, Alarm | AlarmCleared)]


def resumed(out: Path) -> RunResumed:
    """Return the one `run_resumed` of a record."""
    (found,) = (e.event for e in read_record(out) if isinstance(e.event, RunResumed))
    return found


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
            [sys.executable, "-c", KILLED, str(out), str(Path(__file__).parents[1])],
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


def broken_states(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return states that cannot be used."""
    nan = json.loads(json.dumps(state))
    nan["alarms"]["loss"]["baseline"][1] = math.nan
    return {
        "none": None,
        "empty": {},
        "text": "state",
        "another version": {**state, "version": 2},
        "no attempt": {name: value for name, value in state.items() if name != "attempt"},
        "no rules": {**state, "alarms": {}},
        "a NaN": nan,
        "no alarm": {**state, "facts": {**state["facts"], "open_layers": [{}]}},
    }


BROKEN = ("none", "empty", "text", "another version", "no attempt", "no rules", "a NaN", "no alarm")


@pytest.mark.parametrize("name", BROKEN)
def test_a_state_that_cannot_be_used_stops_nothing(make: Make, name: str) -> None:
    """Of another version or mangled: baselines are new, whole, and the record says why."""
    net = ToyNet()
    monitor, _ = make(net)
    train(monitor, net, 0, 10)
    state = broken_states(monitor.state_dict())[name]
    monitor.close()
    second, sink = make(net, resume=True)
    before = second.state_dict()
    second.load_state_dict(state)
    (found,) = of(sink, RunResumed)
    assert (found.step, found.restored) == (0, False)
    assert found.detail
    after = second.state_dict()
    assert {**after, "head": "", "lines": 0, "facts": {}} == {
        **before,
        "head": "",
        "lines": 0,
        "facts": {},
    }
    train(second, net, 0, 2)
    second.close()
    assert [m.step for m in of(sink, Measurement)] == [0, 1]


def test_a_state_that_comes_late_is_not_restored(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """After the first step it would count steps twice; training goes on."""
    net = ToyNet()
    monitor, sink = make(net)
    train(monitor, net, 0, 3)
    monitor.load_state_dict(monitor.state_dict())
    train(monitor, net, 3, 4)
    monitor.close()
    assert "after the first step()" in caplog.text
    assert [m.step for m in of(sink, Measurement)] == [0, 1, 2, 3]
    assert not of(sink, RunResumed)


def test_a_state_is_plain_values(make: Make) -> None:
    """`torch.load(weights_only=True)` takes it, and so does JSON, with an alarm open."""
    net = ToyNet()
    plant_explosion(net, 15)
    monitor, _ = make(net)
    train(monitor, net, 0, 16)
    state = monitor.state_dict()
    monitor.close()
    assert state["facts"]["open_layers"]
    file = io.BytesIO()
    torch.save({"monitor": state}, file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["monitor"] == state
    assert through_json(state) == state


def test_asking_for_the_state_between_checks_costs_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the rules remember changes at checks only; the Trainer may ask at every step."""
    net = ToyNet()
    monitor, _ = make(net, check_every=5)
    train(monitor, net, 0, 6)
    first = monitor.state_dict()
    monkeypatch.setattr(monitor._alarms, "state_dict", None)
    train(monitor, net, 6, 8)
    second = monitor.state_dict()
    assert second["alarms"] is first["alarms"]
    assert (first["attempt"], second["attempt"]) == (6, 8)
    monitor.close()


def test_sampling_goes_on_in_step(make: Make) -> None:
    """A checkpoint between two checks: the next one is due when it would have been."""
    net = ToyNet()
    monitor, _ = make(net, check_every=5)
    train(monitor, net, 0, 7)
    state = monitor.state_dict()
    monitor.close()
    second, sink = make(net, check_every=5, resume=True)
    second.load_state_dict(state)
    assert not second.sampling
    train(second, net, 7, 16)
    second.close()
    assert [(m.step, m.attempt) for m in of(sink, Measurement)] == [(10, 10), (15, 15)]
    assert all(m.channels for m in of(sink, Measurement))


def test_a_sealed_record_is_not_continued(make: Make, tmp_path: Path) -> None:
    """Its signature would not hold any more; nothing is changed."""
    make(ToyNet())[0].close()
    (tmp_path / "run" / "record.dsse.json").write_text("{}")
    before = (tmp_path / "run" / "record.jsonl").read_bytes()
    with pytest.raises(RecordExistsError, match="is sealed"):
        make(ToyNet(), resume=True)
    assert (tmp_path / "run" / "record.jsonl").read_bytes() == before
    assert not (tmp_path / "run" / "record.lock").exists()
    make(ToyNet(), overwrite=True)[0].close()
    assert not (tmp_path / "run" / "record.dsse.json").exists()


def test_a_record_that_cannot_be_read_is_not_continued(make: Make, tmp_path: Path) -> None:
    """Refused before training, with the line; the lock is given back."""
    make(ToyNet())[0].close()
    path = tmp_path / "run" / "record.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"world_size":1', b'"world_size":"x"'))
    with pytest.raises(RecordFormatError, match=r"line 1: .* cannot be continued"):
        make(ToyNet(), resume=True)
    assert not (tmp_path / "run" / "record.lock").exists()


def verdicts(make: Make, out: Path, *, explode: int, saved: int, first: int, last: int) -> Any:
    """Return the statuses, live and as read, of a training that was interrupted and resumed."""
    net = ToyNet()
    plant_explosion(net, explode)
    monitor, _ = make(net, sgd(net), out=out)
    watch(monitor, net, 0, saved)
    state = monitor.state_dict()
    watch(monitor, net, saved, first)
    monitor.close(KeyboardInterrupt())
    clean = ToyNet()
    clean.load_state_dict(net.state_dict())
    second, _ = make(clean, sgd(clean), out=out, resume=True)
    second.load_state_dict(state)
    watch(second, clean, saved, last)
    second.close()
    return second.facts.status, run_facts(read_run(out)).status


@pytest.mark.parametrize(
    ("explode", "saved", "first", "last", "expected"),
    [
        (99, 20, 22, 40, (Status.HEALTHY, Status.HEALTHY)),
        # Open when the checkpoint was saved, and over with the first check after it.
        (20, 21, 21, 40, (Status.WARNINGS, Status.WARNINGS)),
        # After the checkpoint: of weights that are gone. The record is not as good as new.
        (21, 20, 23, 40, (Status.HEALTHY, Status.WARNINGS)),
    ],
)
def test_the_verdict_is_on_the_run_and_not_on_a_segment(
    make: Make, tmp_path: Path, explode: int, saved: int, first: int, last: int, expected: Any
) -> None:
    """An interruption that was resumed is over; what was wrong before the checkpoint counts."""
    numbers = {"explode": explode, "saved": saved, "first": first, "last": last}
    assert verdicts(make, tmp_path / "run", **numbers) == expected


def test_an_alarm_that_stays_open_is_a_problem_after_resuming(make: Make, tmp_path: Path) -> None:
    """It is not said again, and a run in which it is open cannot be healthy."""
    net = ToyNet()
    monitor, _ = make(net)
    watch(monitor, net, 0, 12)
    net.fc2.weight.register_hook(lambda gradient: gradient * 1e6)
    watch(monitor, net, 12, 14)
    state = monitor.state_dict()
    monitor.close(KeyboardInterrupt())
    second, sink = make(net, resume=True)
    second.load_state_dict(state)
    watch(second, net, 14, 16)
    assert set(second.facts.open_layers) == {"fc2"}
    second.close()
    assert not of(sink, Alarm)
    assert second.facts.status is Status.PROBLEM
    facts = run_facts(read_run(tmp_path / "run"))
    assert (facts.status, set(facts.open_layers)) == (Status.PROBLEM, {"fc2"})


def test_models_named_at_close_are_bound_to_the_record(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Their hashes stand before the end; one that is not there is an error in the log."""
    model = tmp_path / "model.bin"
    model.write_bytes(b"weights")
    monitor, sink = make(ToyNet())
    monitor.close(models=[model, tmp_path / "absent", 3])  # type: ignore[list-item]
    saved, end, _ = sink.events[-3:]
    assert (saved.kind, end.kind) == ("checkpoint_saved", "run_end")
    assert saved.path == str(model)
    digest = hashlib.sha256(b"weights").hexdigest()
    assert saved.files == (SavedFile(name="model.bin", bytes=7, sha256=digest),)
    assert caplog.text.count("is not bound to the record") == 2
