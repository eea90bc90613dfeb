"""Blocks of attention: fused and explicit, grouped, masked, with everything that can be learnt."""

from typing import Final

import torch
from fuzz.blocks import Block
from fuzz.build import Build, Shape, Step
from torch import Tensor, nn
from torch.nn import functional as fn

Heads = tuple[int, int, int]
"""Query heads, key heads, features of a head."""


def _heads(x: Tensor, count: int) -> Tensor:
    return x.view(x.shape[0], x.shape[1], count, -1).transpose(1, 2)


def _explicit(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if bias is None:
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~causal, -1e4)
    else:
        scores = scores + bias
    return torch.softmax(scores, -1) @ v


def attention(b: Build, shape: Shape) -> tuple[Step, Shape]:
    """Self-attention with an output projection, maybe around a residual."""
    heads: Heads = b.rng.choice(((1, 1, 4), (2, 2, 2), (4, 2, 2), (4, 1, 4)))
    count, inner, size = heads
    fused, residual = b.chance(0.6), b.chance(0.5)
    b.note(f"attention {heads} {'fused' if fused else 'explicit'}")
    width = shape[-1]
    queries, keys, values = (b.weight(n * size, width) for n in (count, inner, inner))
    biases = [b.maybe_vector(n * size) for n in (count, inner, inner)]
    out = b.weight(width, count * size)
    bias = b.weight(1, count, shape[1], shape[1]) if b.chance(0.25) else None
    normed = b.vector(size, 1.0) if b.chance(0.2) else None
    causal = bias is None and b.chance(0.5)

    def run(x: Tensor) -> Tensor:
        q, k, v = (
            _heads(fn.linear(x, weight, own), n)
            for weight, own, n in zip(
                (queries, keys, values), biases, (count, inner, inner), strict=True
            )
        )
        if normed is not None:
            q, k = (fn.rms_norm(one.to(normed.dtype), (size,), normed, 1e-5) for one in (q, k))
        if fused:
            y = fn.scaled_dot_product_attention(
                q, k, v, bias, is_causal=causal, enable_gqa=count != inner
            )
        else:
            y = _explicit(q, k, v, bias)
        y = fn.linear(y.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1), out)
        return x + y if residual else y

    return run, shape


def key_prefix(b: Build, shape: Shape) -> tuple[Step, Shape]:
    """Learnt keys and values before those of the input (prefix tuning)."""
    b.note("key prefix")
    width = shape[-1]
    key, value = b.weight(1, 1, 2, width), b.weight(1, 1, 2, width)
    queries, values = b.weight(width, width), b.weight(width, width)

    def run(x: Tensor) -> Tensor:
        rows = x.shape[0]
        q, v = fn.linear(x, queries).unsqueeze(1), fn.linear(x, values).unsqueeze(1)
        keys = torch.cat([key.expand(rows, -1, -1, -1), q], 2)
        return x + fn.scaled_dot_product_attention(
            q, keys, torch.cat([value.expand(rows, -1, -1, -1), v], 2)
        ).squeeze(1)

    return run, shape


def library_attention(b: Build, shape: Shape) -> tuple[Step, Shape]:
    """Torch's own multi-head attention."""
    b.note("nn.MultiheadAttention")
    width = shape[-1]
    module = nn.MultiheadAttention(width, 2 - width % 2, batch_first=True, dtype=b.dtype)
    for name, parameter in module.named_parameters():
        b.parameters.append((f"p{len(b.parameters)}_{name.replace('.', '_')}", parameter))
    weighed = b.chance(0.5)

    def run(x: Tensor) -> Tensor:
        found: Tensor = module(x, x, x, need_weights=weighed)[0]
        return x + found

    return run, shape


ATTENTION_BLOCKS: Final[tuple[Block, ...]] = (
    attention,
    attention,
    attention,
    key_prefix,
    library_attention,
)
