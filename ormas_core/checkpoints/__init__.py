"""Checkpoints: what is in their files, and what is wrong with it."""

from ormas_core.checkpoints.after import norm_after
from ormas_core.checkpoints.findings import (
    CATALOGUE,
    RANK,
    Finding,
    FindingKind,
    finding,
    in_order,
    spans,
)
from ormas_core.checkpoints.judge import FINDING_OF, Judged, judge
from ormas_core.checkpoints.open import open_checkpoint
from ormas_core.checkpoints.opened import PROBLEMS, Checkpoint, Entry, Kind, Progress, ReadProblem
from ormas_core.checkpoints.tensors import Against, Comparison, State, TensorFacts
from ormas_core.checkpoints.wire import Wiring, loaded_model, model_batches, wire

__all__ = [
    "CATALOGUE",
    "FINDING_OF",
    "PROBLEMS",
    "RANK",
    "Against",
    "Checkpoint",
    "Comparison",
    "Entry",
    "Finding",
    "FindingKind",
    "Judged",
    "Kind",
    "Progress",
    "ReadProblem",
    "State",
    "TensorFacts",
    "Wiring",
    "finding",
    "in_order",
    "judge",
    "loaded_model",
    "model_batches",
    "norm_after",
    "open_checkpoint",
    "spans",
    "wire",
]
