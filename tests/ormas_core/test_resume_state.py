"""The state that a checkpoint keeps of the monitor: plain, cheap, and refused where it is none."""

import io
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from resume_support import through_json, train
from support import ToyNet, of, plant_explosion

from ormas_core import (
    Measurement,
    MemorySink,
    Monitor,
    RunResumed,
)

Make = Callable[..., tuple[Monitor, MemorySink]]


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
