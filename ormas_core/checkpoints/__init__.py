"""Checkpoints: what is in their files, and what is wrong with it."""

from ormas_core.checkpoints.open import open_checkpoint
from ormas_core.checkpoints.opened import PROBLEMS, Checkpoint, Entry, Kind, Progress, ReadProblem
from ormas_core.checkpoints.tensors import Against, Comparison, State, TensorFacts

__all__ = [
    "PROBLEMS",
    "Against",
    "Checkpoint",
    "Comparison",
    "Entry",
    "Kind",
    "Progress",
    "ReadProblem",
    "State",
    "TensorFacts",
    "open_checkpoint",
]
