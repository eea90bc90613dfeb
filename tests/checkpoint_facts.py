"""Facts of tensors made from arrays, for tests of the checks. No test lives here."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ormas_core.checkpoints import State, TensorFacts
from ormas_core.checkpoints.checks import CHECKS
from ormas_core.checkpoints.findings import Finding
from ormas_core.checkpoints.seen import Seen, look


def facts_of(name: str, array: Any, **changes: Any) -> TensorFacts:
    """Return what reading this array as a float32 tensor gives."""
    values = np.asarray(array, dtype=np.float32)
    rows = values.shape[0] if values.ndim else 1
    flat = values.reshape(rows, -1).astype(np.float64)
    finite = np.where(np.isfinite(flat), np.abs(flat), 0.0)
    bad = ~np.isfinite(flat)
    places = np.argwhere(~np.isfinite(values))
    equal = flat.size > 1 and bool((flat == flat.flat[0]).all())
    known: dict[str, Any] = {
        "name": name,
        "clean": name,
        "dtype": "F32",
        "shape": values.shape,
        "file": "model.safetensors",
        "state": State.READ,
        "rows": rows,
        "magnitude": finite.max(axis=1, initial=0.0),
        "nan": int(np.isnan(flat).sum()),
        "inf": int(np.isinf(flat).sum()),
        "first": tuple(map(int, places[0])) if len(places) else None,
        "bad_rows": int(bad.any(axis=1).sum()),
        "constant": float(flat.flat[0]) if equal else None,
        "values": values.astype(np.float64) if values.ndim < 2 else None,
        "fingerprint": hashlib.sha256(repr(values.shape).encode() + values.tobytes()).digest(),
    }
    return TensorFacts(**{**known, **changes})


def seen_of(arrays: Mapping[str, Any], **settings: Any) -> Seen:
    """Return what is seen of a checkpoint with these tensors."""
    every = [a if isinstance(a, TensorFacts) else facts_of(n, a) for n, a in arrays.items()]
    return Seen(tensors=tuple(map(look, every)), same=lambda *_: True, **settings)


def found(arrays: Mapping[str, Any], **settings: Any) -> list[Finding]:
    """Return what all the checks find in a checkpoint with these tensors."""
    seen = seen_of(arrays, **settings)
    return [one for check in CHECKS for one in check(seen)]


def codes(arrays: Mapping[str, Any], **settings: Any) -> list[str]:
    """Return the codes of what all the checks find, in order."""
    return [one.code for one in found(arrays, **settings)]


def random(*shape: int, seed: int = 0) -> Any:
    """Return ordinary weights."""
    return np.random.default_rng(seed).normal(0.0, 0.02, shape).astype(np.float32)
