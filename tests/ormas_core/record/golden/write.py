"""Writes the golden record of the current format version, to be run once per version.

From the repository's root: `PYTHONPATH=.:tests python tests/ormas_core/record/golden/write.py`.
A folder of a released version is never written again.
"""

import dataclasses
import math
from pathlib import Path

import event_samples

from ormas_core.config import MonitorConfig
from ormas_core.events import (
    Alarm,
    Anchor,
    Event,
    Measurement,
    NonfiniteLoss,
    RunStart,
)
from ormas_core.record import RecordWriter, verify_record
from ormas_core.record_events import RunResumed
from ormas_core.terms import Diagnosis, NonfiniteCount, Stage
from ormas_core.testing import FakeClock
from ormas_core.version import RECORD_SCHEMA

FRAME = ("run_start", "run_resumed", "anchor", "run_end")


def main() -> None:
    """Write one event of every kind, and values that JSON cannot spell."""
    folder = Path(__file__).parent / f"v{RECORD_SCHEMA}"
    writer, clock = RecordWriter(folder, overwrite=True), FakeClock()
    samples = event_samples.sample_events()

    def put(event: Event) -> None:
        writer.write(dataclasses.replace(event, time_ns=clock()))

    start = samples["run_start"]
    assert isinstance(start, RunStart)
    config = MonitorConfig(layers=("encoder.*", "head"))
    start = dataclasses.replace(start, segment=0, schema=RECORD_SCHEMA, config=config)
    put(dataclasses.replace(start, name="Prüfung", optimizer=None))
    for kind, event in samples.items():
        if kind not in FRAME:
            put(event)
    put(
        Measurement(
            step=2**60,
            attempt=2**53,
            stage=Stage.SCALED,
            scale=65536.0,
            loss=math.nan,
            layers=("a", "b"),
            norms=(None, -0.0),
            nonfinite=(NonfiniteCount(layer="a", nan=1, inf=2),),
        )
    )
    put(
        Alarm(
            step=5,
            layer="head",
            diagnosis=Diagnosis.NO_GRADIENT,
            value=0.0,
            normal=1e-320,
            sigma=math.inf,
            stage=Stage.UNSCALED,
        )
    )
    put(NonfiniteLoss(step=6, value=-math.inf))
    put(writer.anchor(6))
    put(samples["run_end"])
    put(writer.anchor(7))
    before = writer.anchor(7)
    put(dataclasses.replace(start, segment=1))
    put(resumed(before))
    put(samples["run_end"])
    put(writer.anchor(7))
    writer.close()
    (folder / "head").write_text(f"{verify_record(folder).head}\n")


def resumed(before: Anchor) -> RunResumed:
    """Return what is said where the record goes on after `before`, restored at its first row."""
    return RunResumed(
        step=5,
        attempt=5,
        restored=True,
        head=before.head,
        lines=before.lines,
        metrics_rows=before.metrics_rows,
        reached=7,
        repeated=2,
        ended=True,
        checkpoint_head=before.head,
        checkpoint_lines=before.lines,
        checkpoint_rows=1,
        torn_record_bytes=17,
    )


if __name__ == "__main__":
    main()
