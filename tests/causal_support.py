"""A small causal model and its data, for the tests of both adapters. No test lives here."""

from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM


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
