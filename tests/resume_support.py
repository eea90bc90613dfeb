"""Trainings that are interrupted and resumed, for tests. No test lives here."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from support import ToyNet, loader, of, plain_loop, sgd

from ormas_core import (
    Alarm,
    AlarmCleared,
    MemorySink,
    Monitor,
    RunResumed,
    read_record,
)

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
