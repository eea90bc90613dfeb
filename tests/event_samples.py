"""Sample events, built from the type hints of the vocabulary, and sample run folders."""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from ormas_core.config import MonitorConfig
from ormas_core.events import (
    EVENT_TYPES,
    Event,
    Manifest,
    RunEnd,
)
from ormas_core.record import RecordWriter, model_files
from ormas_core.record_events import CheckpointSaved
from ormas_core.terms import Mechanism, MechanismState, SavedFile, Status
from ormas_core.testing import FakeClock, measurement, run_start


def sample(tp: Any) -> Any:
    """Return a fixed value of type `tp`: nothing empty, nothing None, nothing at its default."""
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if tp is MonitorConfig:
        return MonitorConfig(layers=("encoder.*", "head"), check_every=7, sigma=3.25)
    if tp is CheckpointSaved:  # its files are those of one model
        files = [SavedFile(name=f"text/{n}", bytes=3, sha256="0" * 64) for n in range(2)]
        return CheckpointSaved(step=3, time_ns=3, lane="text", path="text", files=tuple(files))
    if dataclasses.is_dataclass(tp):
        hints = typing.get_type_hints(tp)
        return tp(**{field.name: sample(hints[field.name]) for field in dataclasses.fields(tp)})
    if origin in (typing.Union, types.UnionType):
        return sample(next(arg for arg in args if arg is not types.NoneType))
    if origin is tuple:
        return (sample(args[0]), sample(args[0]))
    if origin is Mapping:
        return {"key": sample(args[1]), "name": sample(args[1])}
    if issubclass(tp, Enum):
        return list(tp)[-1]
    return {bool: True, int: 3, float: 1.5, str: "text"}[tp]


def sample_events() -> dict[str, Event]:
    """Return one sample of every kind of event, by kind."""
    return {kind: sample(cls) for kind, cls in EVENT_TYPES.items()}


def run_end(steps: int = 1, status: Status = Status.HEALTHY, error: str | None = None) -> RunEnd:
    """Return the end of a run in which every step was a check."""
    return RunEnd(
        step=steps,
        steps=steps,
        checks=steps,
        counts={"measurement": steps, "checks_without_gradients": 0},
        status=status,
        error=error,
    )


def write_run(
    folder: Path,
    *,
    checks: int = 2,
    segment: int = 0,
    finished: bool = True,
    anchored: bool = True,
    models: Sequence[Path] = (),
) -> None:
    """Write a small run, or a further segment of one, as the monitor would."""
    clock = FakeClock(tick=1_000 + segment)
    writer = RecordWriter(folder, append=segment > 0)

    def put(event: Event) -> None:
        writer.write(dataclasses.replace(event, time_ns=clock()))

    try:
        put(run_start(("body", "head"), segment=segment))
        put(
            Manifest(
                step=0,
                mechanisms=(Mechanism(name="gradient_norms", state=MechanismState.ACTIVE),),
            )
        )
        for step in range(checks):
            put(measurement(step, {"head": 1.5 + step, "body": None}, loss=0.25))
            if anchored:
                put(writer.anchor(step))
        for model in models:
            put(CheckpointSaved(step=checks, path=str(model), files=model_files(model, folder)))
        if finished:
            put(run_end(checks))
            if anchored:
                put(writer.anchor(checks))
    finally:
        writer.close()
