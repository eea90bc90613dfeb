"""Builds small checkpoint files, byte by byte where a library would refuse to write them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ormas_core.checkpoints import Checkpoint, TensorFacts, open_checkpoint

Tensors = Mapping[str, tuple[str, tuple[int, ...], bytes]]


def safetensors_bytes(tensors: Tensors, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return a file with tensors given as (dtype, shape, bytes)."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    at = 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    return with_header(json.dumps(header), b"".join(raw for _, _, raw in tensors.values()))


def with_header(header: str | bytes, data: bytes = b"") -> bytes:
    """Return a file with this header, whatever it is, and these data."""
    raw = header.encode("utf-8", "surrogatepass") if isinstance(header, str) else header
    return len(raw).to_bytes(8, "little") + raw + data


def f32(*shape: int, start: float = 0.5, **at: float) -> tuple[str, tuple[int, ...], bytes]:
    """Return a tensor of distinct numbers; `i3=nan` sets the element of flat index 3."""
    numbers = np.arange(int(np.prod(shape)), dtype=np.float32) * 0.25 + start
    for key, value in at.items():
        numbers[int(key[1:])] = value
    return "F32", shape, numbers.tobytes()


def write_safetensors(path: Path, tensors: Tensors, **extra: Any) -> Path:
    """Write such a file and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(safetensors_bytes(tensors, **extra))
    return path


def write_shards(folder: Path, *shards: Tensors, **index: Any) -> Path:
    """Write shards with their index; `index` overrides what it says."""
    named = {}
    for number, tensors in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(folder / file, tensors)
        named |= dict.fromkeys(tensors, file)
    size = sum(len(raw) for tensors in shards for _, _, raw in tensors.values())
    content = {"metadata": {"total_size": size}, "weight_map": named} | index
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))
    return folder


def read_all(path: Path, **options: Any) -> tuple[Checkpoint, dict[str, TensorFacts]]:
    """Open a checkpoint and read all its tensors, by name."""
    found = open_checkpoint(path, **options)
    return found, {facts.name: facts for facts in found.tensors()}


def codes(found: Checkpoint) -> list[str]:
    """Return the codes of its problems."""
    return [problem.code for problem in found.problems]


def details(found: Checkpoint) -> str:
    """Return what its problems say."""
    return "\n".join(problem.detail for problem in found.problems)
