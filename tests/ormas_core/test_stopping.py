"""stop_on: what ends a training, and what the record says of it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ToyNet, loader, of, plant_explosion, sgd

from ormas_core import MemorySink, Monitor, MonitorConfig, RunEnd, Status, read_record, summary
from ormas_core.events import Manifest, Measurement, NonfiniteLoss
from ormas_core.run_events import StopRequested
from ormas_core.stopping import Stopping


def train(folder: Path, *, nan_at: int = -1, steps: int = 40, **options: Any) -> tuple[Any, Any]:
    """Train the toy as a user would, until the monitor asks to stop; return events and facts."""
    net, sink = ToyNet(), MemorySink()
    optimizer = sgd(net)
    options = {"check_every": 1, "verbose": False, **options}
    plant_explosion(net, 20)
    with Monitor(net, optimizer, out=folder, sinks=[sink], **options) as monitor:
        for step, batch in enumerate(list(loader())[:steps]):
            optimizer.zero_grad()
            loss = net(**batch)["loss"] * (math.nan if step == nan_at else 1.0)
            loss.backward()
            monitor.step(loss)
            if monitor.should_stop:
                break
            optimizer.step()
    return sink, monitor.facts


def test_a_loop_reads_that_it_should_stop(tmp_path: Path) -> None:
    """At the check that sees the NaN, and the record says so right after the cause."""
    sink, facts = train(tmp_path, nan_at=5, stop_on="nonfinite_loss")
    (found,) = of(sink, StopRequested)
    assert (found.step, found.reasons, found.ranks) == (5, ("nonfinite_loss",), (0,))
    assert [m.step for m in of(sink, Measurement)] == [*range(6)]
    recorded = [line.event for line in read_record(tmp_path)]
    place = recorded.index(found)
    assert any(isinstance(event, NonfiniteLoss) for event in recorded[:place])
    assert facts.stopped == replace(found, time_ns=0)
    assert of(sink, RunEnd)[0].status is Status.PROBLEM
    assert "Step 5: The training is to stop (stop_on): nonfinite_loss." in summary(facts)


@pytest.mark.parametrize(
    ("stop_on", "stops"),
    [
        ((), None),
        (("alarm:vanishing", "nonfinite_loss"), None),
        (("alarm:exploding",), 20),
        (["loss_spike", "alarm"], 20),
    ],
)
def test_only_what_is_named_stops(tmp_path: Path, stop_on: Any, stops: int | None) -> None:
    """An explosion at step 20 stops by its diagnosis or by its kind, and by nothing else."""
    sink, facts = train(tmp_path, config=MonitorConfig(stop_on=stop_on))
    found = [event.step for event in of(sink, StopRequested)]
    assert found == ([stops] if stops is not None else [])
    assert (facts.stopped is not None) is (stops is not None)
    mechanisms = {m.name: m for m in of(sink, Manifest)[-1].mechanisms}
    assert ("stop_on" in mechanisms) is bool(stop_on)


def test_a_request_is_made_once(tmp_path: Path) -> None:
    """A loop that does not stop is not asked again."""
    stopping = Stopping(("nonfinite_loss",))
    bad = NonfiniteLoss(step=1, value=math.inf)
    assert list(stopping.check(0, [])) == []
    assert len(list(stopping.check(1, [bad]))) == 1
    assert list(stopping.check(2, [bad])) == []


def test_ranks_that_cannot_ask_each_other_do_not_stop_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a launcher promises two processes and there is no group, the manifest says so."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    stopping = Stopping(("nonfinite_loss",))
    bad = NonfiniteLoss(step=1, value=math.nan)
    assert list(stopping.check(1, [bad])) == []
    (line,) = stopping.mechanisms()
    assert line.state.value == "off"
    assert "there is no process group" in line.reason
    assert not torch.distributed.is_initialized()


def test_a_model_that_is_nan_from_the_start_stops_at_the_first_check(tmp_path: Path) -> None:
    """What was said before the first step is a reason like any other, before any update."""
    net, sink = ToyNet(), MemorySink()
    with torch.no_grad():
        net.fc3.weight[0, 0] = math.nan
    optimizer = sgd(net)
    with Monitor(
        net, optimizer, out=tmp_path, sinks=[sink], stop_on="nonfinite_state", verbose=False
    ) as monitor:
        assert not monitor.should_stop
        net(**next(iter(loader())))["loss"].backward()
        monitor.step()
        assert monitor.should_stop
    (found,) = of(sink, StopRequested)
    assert (found.step, found.reasons) == (0, ("nonfinite_state",))
