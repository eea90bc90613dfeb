"""`make bench`, the part on `verify`: events a second and peak memory for 200,000 events.

The record is written by the writer, with an anchor after every 20 checks, and verified in a process
of its own. Nothing is asserted: machines differ and are shared, so it is processor time, and that
of `json.loads` on the same lines is printed beside it.
"""

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import event_samples

from ormas_core import RecordWriter
from ormas_core.testing import FakeClock, measurement, run_start

EVENTS: Final = 200_000
KINDS: Final = ("alarm", "alarm_cleared", "loss_spike", "loss_recovered", "skipped_step")
VERIFY: Final = """
import re, sys, time
from ormas_core import verify_run
began = time.process_time()
found = verify_run(sys.argv[1])
seconds = time.process_time() - began
assert found.complete, found
status = open("/proc/self/status").read()
print(seconds, int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) // 1024)
"""


def write(folder: Path, *, rows: bool) -> None:
    """Write a finished run: events of the record only, or one metrics row beside each."""
    samples, clock = event_samples.sample_events(), FakeClock()
    row = measurement(0, {f"encoder.layer.{i}": 0.25 + i for i in range(8)}, loss=0.75)
    writer = RecordWriter(folder)
    writer.write(run_start())
    for number in range(EVENTS // 2 if rows else EVENTS):
        event = samples[KINDS[number % len(KINDS)]]
        writer.write(dataclasses.replace(event, step=number, time_ns=clock()))
        if rows:
            writer.write(dataclasses.replace(row, step=number, time_ns=clock()))
        if number % 20 == 0:
            writer.write(writer.anchor(number))
    writer.write(event_samples.run_end())
    writer.write(writer.anchor(EVENTS))
    writer.close()


def parsing(path: Path) -> float:
    """Return the seconds that `json.loads` takes for a line of a file."""
    lines = path.read_bytes().splitlines()[:20_000]
    began = time.process_time()
    for line in lines:
        json.loads(line)
    return (time.process_time() - began) / len(lines)


def main() -> None:
    """Print speed and memory for a record alone, and for a record with metrics."""
    for what, rows in (("record lines", False), ("events, half of them metrics rows", True)):
        with tempfile.TemporaryDirectory() as base:
            folder = Path(base) / "run"
            write(folder, rows=rows)
            command = [sys.executable, "-c", VERIFY, str(folder)]
            runs = [
                subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
                for _ in range(5)
            ]
            parse = parsing(folder / "record.jsonl")
        seconds = sorted(float(run[0]) for run in runs)
        peak = max(int(run[1]) for run in runs)
        print(
            f"verify, {EVENTS:,} {what}: {EVENTS / seconds[0]:,.0f} events/s at best of five, "
            f"{EVENTS / seconds[2]:,.0f} in the median; peak {peak} MiB "
            f"(json.loads alone: {1 / parse:,.0f} lines/s)"
        )


if __name__ == "__main__":
    main()
