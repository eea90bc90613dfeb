"""Keys and sealed runs for tests. No test lives here."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import event_samples

from ormas_core.record import Verification, make_keys, sign_record


@dataclass(frozen=True)
class SealedRun:
    """A finished run, sealed with a model file beside it and a sharded one inside."""

    folder: Path
    key: Path
    public: Path
    model: Path
    shards: Path


def make_sealed(base: Path, *, checks: int = 2) -> SealedRun:
    """Write a run with two models and seal it with a new key."""
    base.mkdir(exist_ok=True)
    run, model, shards = base / "run", base / "model.safetensors", base / "run" / "ckpt"
    event_samples.write_run(run, checks=checks)
    model.write_bytes(b"weights" * 1000)
    (shards / "nested").mkdir(parents=True)
    for name in ("model-1.safetensors", "model-2.safetensors", "nested/config.json"):
        (shards / name).write_bytes(name.encode())
    make_keys(base / "key")
    sign_record(run, base / "key", models=[model, shards])
    return SealedRun(run, base / "key", base / "key.pub", model, shards)


def copied(sealed: SealedRun, base: Path) -> SealedRun:
    """Return a copy of a sealed run that a test may break."""
    shutil.copytree(sealed.folder.parent, base / "copy", symlinks=True)
    moved = {
        name: base / "copy" / getattr(sealed, name).relative_to(sealed.folder.parent)
        for name in ("folder", "key", "public", "model", "shards")
    }
    return SealedRun(**moved)


def outcomes(verification: Verification) -> dict[str, str]:
    """Return the outcome of every check by name."""
    return {check.name: check.outcome.value for check in verification.checks}


def sentence(verification: Verification, name: str) -> str:
    """Return what one check says."""
    (found,) = (check.sentence for check in verification.checks if check.name == name)
    return found
