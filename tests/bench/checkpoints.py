"""`make bench`, the part on `check`: time and peak memory for a model of 1.41 GiB.

The known system is measured beside it. The files are made in a temporary folder and read before,
so they are in memory, but for the lines that say cold: for these they are dropped from the page
cache before each run. Each figure is of a whole process, the best of five. The known system,
`ormas-monitor` 0.2.3, gets a virtual environment of its own and is only called. Nothing is
asserted; where it cannot be installed ours is measured alone. Its command may be given instead.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

GIB: Final = 2**30
SIZE: Final = int(1.41 * GIB)
HIDDEN, INNER, VOCABULARY, NARROW = 2048, 5632, 32_000, 256
KNOWN: Final = "ormas-monitor==0.2.3"
PINS: Final = Path(__file__).parent.parent.parent / "constraints.txt"
NO_BYTECODE: Final = "PYTHONDONTWRITEBYTECODE"
"""With it every run would compile what an installation has compiled."""
RUNS: Final = 5
TYPES: Final = {"F16": "<f2", "BF16": "<u2", "F32": "<f4"}
BLOCK: Final = (
    ("self_attn.q_proj.weight", (HIDDEN, HIDDEN)),
    ("self_attn.k_proj.weight", (NARROW, HIDDEN)),
    ("self_attn.v_proj.weight", (NARROW, HIDDEN)),
    ("self_attn.o_proj.weight", (HIDDEN, HIDDEN)),
    ("mlp.gate_proj.weight", (INNER, HIDDEN)),
    ("mlp.up_proj.weight", (INNER, HIDDEN)),
    ("mlp.down_proj.weight", (HIDDEN, INNER)),
    ("input_layernorm.weight", (HIDDEN,)),
    ("post_attention_layernorm.weight", (HIDDEN,)),
)


def shapes(item: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return the tensors of a decoder of about `SIZE` bytes, elements of `item` bytes."""
    found: list[tuple[str, tuple[int, ...]]] = [
        ("model.embed_tokens.weight", (VOCABULARY, HIDDEN)),
        ("model.norm.weight", (HIDDEN,)),
    ]
    layer = 0
    while sum(int(np.prod(shape)) for _, shape in found) * item < SIZE:
        found += [(f"model.layers.{layer}.{name}", shape) for name, shape in BLOCK]
        layer += 1
    return found


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return weights as a sound model has them."""
    drawn = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
    drawn += np.float32(len(shape) == 1)
    if dtype == "BF16":
        return (drawn.view(np.uint32) >> 16).astype("<u2")
    return drawn.astype(TYPES[dtype])


def write_shards(folder: Path, dtype: str, seed: int, shards: int = 2) -> Path:
    """Write a sharded safetensors model with its index; return the folder."""
    folder.mkdir()
    rng, all_shapes = np.random.default_rng(seed), shapes(np.dtype(TYPES[dtype]).itemsize)
    named: dict[str, str] = {}
    each = -(-len(all_shapes) // shards)
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        header, at = {}, 0
        mine = all_shapes[number * each : (number + 1) * each]
        for name, shape in mine:
            size = int(np.prod(shape)) * np.dtype(TYPES[dtype]).itemsize
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            at, named[name] = at + size, file
        raw = json.dumps(header).encode()
        raw += b" " * (-len(raw) % 8)
        with (folder / file).open("wb") as out:
            out.write(len(raw).to_bytes(8, "little") + raw)
            for _, shape in mine:
                out.write(numbers(rng, shape, dtype).tobytes())
    index = {"metadata": {}, "weight_map": named}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_zip(path: Path) -> Path:
    """Write such a model with `torch.save`, in half precision."""
    import torch

    rng = np.random.default_rng(0)
    state = {name: torch.from_numpy(numbers(rng, shape, "F16")) for name, shape in shapes(2)}
    torch.save(state, path)
    return path


def write_sparse(path: Path) -> Path:
    """Write 64 GiB of zeros that take no room: 64 tensors of a gibibyte."""
    rows = GIB // 2 // 8192
    header = {
        f"layers.{n}.weight": {
            "dtype": "F16", "shape": [rows, 8192], "data_offsets": [n * GIB, (n + 1) * GIB],
        }
        for n in range(64)
    }  # fmt: skip
    raw = json.dumps(header).encode()
    with path.open("wb") as out:
        out.write(len(raw).to_bytes(8, "little") + raw)
        out.truncate(8 + len(raw) + 64 * GIB)
    return path


MEASURE: Final = """
import os, subprocess, sys, time
began = time.perf_counter()
null = subprocess.DEVNULL
process = subprocess.Popen(sys.argv[1:], stdout=null, stderr=null, cwd="/")
_, status, usage = os.wait4(process.pid, 0)
seconds = time.perf_counter() - began
used, code = usage.ru_utime + usage.ru_stime, os.waitstatus_to_exitcode(status)
print(seconds, used, usage.ru_maxrss // 1024, code)
"""
"""Measures one process, from a small one: a child has at least the peak memory of its parent."""


def forget(files: Sequence[str]) -> None:
    """Drop files from the page cache, after what is in it has been written."""
    for file in files:
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def measure(
    command: list[str], runs: int = RUNS, cold: Sequence[str] = ()
) -> tuple[float, float, int, int]:
    """Return seconds, processor seconds, peak MiB and exit code of a process, the best of some.

    Args:
        command: what to run.
        runs: how often.
        cold: files that are dropped from the page cache before each run.
    """
    lines = []
    for _ in range(runs):
        forget(cold)
        done = subprocess.run(
            [sys.executable, "-S", "-c", MEASURE, *command],
            check=True,
            capture_output=True,
            text=True,
            env={name: value for name, value in os.environ.items() if name != NO_BYTECODE},
        )
        lines.append(done.stdout.split())
    return (
        min(float(line[0]) for line in lines),
        min(float(line[1]) for line in lines),
        max(int(line[2]) for line in lines),
        int(lines[-1][3]),
    )


def shown(what: str, found: tuple[float, float, int, int]) -> None:
    """Print one line."""
    seconds, used, peak, code = found
    print(f"{what:<46} {seconds:7.2f} s ({used:6.2f} s of processor) {peak:6} MiB, exit {code}")


def known_system(base: Path) -> Path | None:
    """Install the known system by itself; return its command, or None if that is not possible."""
    venv = base / "known"
    python = venv / "bin" / "python"
    steps = (
        [sys.executable, "-m", "venv", str(venv)],
        [str(python), "-m", "pip", "install", "--quiet", "-c", str(PINS), KNOWN, "safetensors"],
    )
    for step in steps:
        done = subprocess.run(step, check=False, capture_output=True, text=True)
        if done.returncode:
            print(f"{KNOWN} cannot be installed: {done.stderr.strip()[-300:]}")
            return None
    return venv / "bin" / "ormas-monitor"


def models(base: Path) -> Iterator[tuple[str, Path]]:
    """Write one model after the other; each is removed when the next one is asked for."""
    for dtype in TYPES:
        folder = write_shards(base / dtype, dtype, 0)
        yield f"{dtype}, sharded safetensors", folder
        shutil.rmtree(folder)
    path = write_zip(base / "model.bin")
    yield "F16, torch.save", path
    path.unlink()


def main() -> None:
    """Measure ours and the known system on the same files, in turn."""
    ours = [sys.executable, "-m", "ormas_core.cli.main", "check"]
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        known = Path(sys.argv[1]) if len(sys.argv) > 1 else known_system(base)
        shown("an empty Python process", measure([sys.executable, "-c", "pass"]))
        shown("one that imports numpy", measure([sys.executable, "-c", "import numpy"]))
        for what, path in models(base):
            files = [str(file) for file in ([path] if path.is_file() else path.glob("*.safe*s"))]
            shown(f"{what}: cat", measure(["cat", *files]))
            shown(f"{what}: cat, cold", measure(["cat", *files], cold=files))
            shown(f"{what}: check, cold", measure([*ours, str(path)], cold=files))
            mine = measure([*ours, str(path)])
            shown(f"{what}: check", mine)
            if known is not None and known.exists():
                other = measure([str(known), "check", str(path)], runs=3)
                shown(f"{what}: {KNOWN}", other)
                print(f"{what}: {other[0] / mine[0]:.1f} times as fast")
        one, two = (write_shards(base / f"m{seed}", "F16", seed) for seed in (1, 2))
        shown("F16 --against another", measure([*ours, str(one), "--against", str(two)]))
        shown("F16 --against itself", measure([*ours, str(one), "--against", str(one)]))
        shutil.rmtree(one)
        shutil.rmtree(two)
        sparse = write_sparse(base / "model.safetensors")
        shown("64 GiB of zeros", measure([*ours, str(sparse)], runs=1))


if __name__ == "__main__":
    main()
