"""The verdict on a run that was resumed, and the models that came of it."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from resume_support import watch
from support import ToyNet, of, plant_explosion, sgd

from ormas_core import (
    Alarm,
    MemorySink,
    Monitor,
    SavedFile,
    Status,
    read_run,
    run_facts,
)

Make = Callable[..., tuple[Monitor, MemorySink]]


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
