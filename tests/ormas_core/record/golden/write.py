"""Writes the golden record of the current format version, to be run once per version.

From the repository's root: `PYTHONPATH=.:tests python tests/ormas_core/record/golden/write.py`.
A folder of a released version is never written again.
"""

import dataclasses
import math
from pathlib import Path

import event_samples

from ormas_core.config import MonitorConfig
from ormas_core.events import Alarm, Event, Measurement, NonfiniteLoss, RunStart
from ormas_core.record import RecordWriter, verify_record
from ormas_core.terms import Diagnosis, NonfiniteCount, Stage
from ormas_core.testing import FakeClock
from ormas_core.version import RECORD_SCHEMA

FRAME = ("run_start", "anchor", "run_end")


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
    put(dataclasses.replace(start, name="Prüfung", optimizer=None, config=config))
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
    writer.close()
    (folder / "head").write_text(f"{verify_record(folder).head}\n")


if __name__ == "__main__":
    main()
