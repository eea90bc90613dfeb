"""Models, callbacks and trainings that tests of the HF callback share. No test lives here."""

from pathlib import Path
from typing import Any

import torch
from support import of
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback

from ormas_core import MemorySink
from ormas_hf import HFMonitorCallback

__all__ = ["Logged", "make", "of", "tiny_llama", "token_rows"]


def make(folder: Path, **options: Any) -> tuple[HFMonitorCallback, MemorySink]:
    """Return a callback that checks every step, and the sink that its events go to."""
    sink = MemorySink()
    options = {"check_every": 1, "verbose": False, "sinks": [sink], **options}
    return HFMonitorCallback(out=folder / "run", **options), sink


class Logged(TrainerCallback):
    """Keeps what the Trainer logs under a name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kw: Any) -> None:
        if self.name in logs:
            self.values.append(float(logs[self.name]))


def tiny_llama(**changes: Any) -> LlamaForCausalLM:
    """Return a causal model of random weights, the same every time."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 16,
    }
    return LlamaForCausalLM(LlamaConfig(**{**settings, **changes}))


def token_rows(rows: int = 16, length: int = 8) -> list[dict[str, Tensor]]:
    """Return random tokens with themselves as labels."""
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randint(0, 32, (length,), generator=generator) for _ in range(rows)]
    return [{"input_ids": row, "labels": row} for row in tokens]
