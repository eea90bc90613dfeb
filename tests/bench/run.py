"""`make bench`: what the monitor costs, as ratios measured in one run on this machine.

Machines differ and are noisy, so nothing here is asserted; figures go to `docs/results.md`.
"""

import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import certificates
import torch
from torch import Tensor, nn

from ormas_core import Alarm, Diagnosis, Monitor, RecordWriter, Stage, verify_record
from ormas_core.testing import measurement

ROUNDS = 7


def median_of(run: Callable[[], float], rounds: int = ROUNDS) -> float:
    """Return the median of several runs; each returns its own figure."""
    return statistics.median(run() for _ in range(rounds))


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that one call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def process(*arguments: str) -> float:
    """Return the seconds that a fresh Python process takes."""
    return timed(
        lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    )


def cnn() -> nn.Module:
    """Return a CNN of a dozen layers for 32 x 32 images."""
    layers: list[nn.Module] = []
    width = 3
    for out in (32, 32, 64, 64, 128):
        layers += [nn.Conv2d(width, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
        width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def transformer() -> nn.Module:
    """Return a small encoder over 64 positions."""
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 4), nn.Linear(128, 10))


def epoch(net: nn.Module, x: Tensor, steps: int, check_every: int | None) -> float:
    """Return the seconds per step of a training, with or without the monitor."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    with tempfile.TemporaryDirectory() as folder:
        monitor = None
        if check_every is not None:
            monitor = Monitor(net, optimizer, out=folder, check_every=check_every, verbose=False)

        def train() -> None:
            for _ in range(steps):
                optimizer.zero_grad()
                loss = net(x).square().mean()
                loss.backward()
                if monitor is not None:
                    monitor.step(loss)
                optimizer.step()

        seconds = timed(train) / steps
        if monitor is not None:
            monitor.close()
    return seconds


def training() -> None:
    """Print the overhead of a sampled step and of the default sampling."""
    for name, net, x, steps in [
        ("CNN, 11 layers, batch 64", cnn(), torch.randn(64, 3, 32, 32), 10),
        ("encoder, 4 blocks, batch 16", transformer(), torch.randn(16, 64, 128), 20),
    ]:
        epoch(net, x, 3, None)
        rows = [(epoch(net, x, steps, None), epoch(net, x, steps, 1)) for _ in range(ROUNDS)]
        bare = statistics.median(row[0] for row in rows)
        sampled = statistics.median(watched / plain for plain, watched in rows)
        print(
            f"{name}: {bare * 1e3:.1f} ms a step; a sampled step costs {100 * (sampled - 1):.1f} % "
            f"more, which is {100 * (sampled - 1) / 50:.2f} % at the default check_every=50"
        )


def unsampled() -> None:
    """Print the time of `step()` on an unsampled step."""
    with tempfile.TemporaryDirectory() as folder:
        monitor = Monitor(cnn(), out=folder, check_every=10**9, verbose=False)
        monitor.step()
        calls = 100_000
        seconds = median_of(lambda: timed(lambda: [monitor.step() for _ in range(calls)]) / calls)
        monitor.close()
    print(f"step() on an unsampled step: {seconds * 1e9:.0f} ns")


def record() -> None:
    """Print the cost of an event and of a metrics row, and the speed of `verify`."""
    rows = 20_000
    norms: dict[str, float | None] = {f"layer{i}": 0.1234567890123456 for i in range(20)}
    peaks = tuple(norms.values())
    event = replace(measurement(1, norms, loss=1.0), output_peaks=peaks, gradient_type="float32")
    alarm = Alarm(
        step=5,
        time_ns=time.time_ns(),
        layer="encoder.3",
        diagnosis=Diagnosis.EXPLODING,
        value=3.25e5,
        normal=1.25,
        sigma=7.125,
        stage=Stage.UNSCALED,
        detail="5.4 decades off",
    )
    with tempfile.TemporaryDirectory() as folder:
        writer = RecordWriter(folder)
        each = median_of(lambda: timed(lambda: [writer.write(alarm) for _ in range(2000)]) / 2000)
        writer.write(writer.anchor(0))
        sync = median_of(lambda: timed(lambda: writer.write(writer.anchor(0))))
        writer.close()
    print(
        f"an event (an alarm): {each * 1e6:.0f} us to append; an anchor, which is forced to the "
        f"disk: {sync * 1e3:.1f} ms"
    )
    event = measurement(1, {f"layer{i}": 0.5 for i in range(20)}, loss=1.0)
    with tempfile.TemporaryDirectory() as folder:
        writer = RecordWriter(folder)
        append = timed(lambda: [writer.write(event) for _ in range(rows)]) / rows
        writer.write(writer.anchor(0))
        writer.close()
        verify = timed(lambda: verify_record(folder))
        size = (Path(folder) / "metrics.jsonl").stat().st_size / rows
    print(
        f"a metrics row of 20 layers ({size:.0f} bytes): {append * 1e6:.0f} us to write, "
        f"{rows / verify:,.0f} rows/s to verify"
    )


def start_up() -> None:
    """Print how long the command line takes to answer."""
    empty = median_of(lambda: process("-c", "pass"))
    answer = median_of(lambda: process("-m", "ormas_core.cli.main", "--help"))
    imported = median_of(lambda: process("-c", "import torch"), 3)
    print(
        f"ormas-monitor --help: {answer:.2f} s (an empty process {empty:.2f} s, one that imports "
        f"torch {imported:.2f} s)"
    )


def main() -> None:
    """Run every benchmark."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(
        f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, "
        "one thread"
    )
    start_up()
    unsampled()
    training()
    record()
    certificates.main()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process: {peak:.0f} MiB")


if __name__ == "__main__":
    main()
