"""Blocks on features: tensors (batch, features) and (batch, positions, features)."""

from collections.abc import Callable
from typing import Final

import torch
from fuzz.build import Build, Shape, Step, chain
from torch import Tensor
from torch.nn import functional as fn

Block = Callable[[Build, Shape], tuple[Step, Shape]]


def affine(b: Build, size: int, out: int) -> Step:
    """Return a linear layer in one of its spellings."""
    weight, bias = b.weight(out, size), b.maybe_vector(out)
    kind = b.rng.choice(("linear", "linear", "linear", "matmul", "einsum", "alpha"))
    if kind == "linear":
        return lambda x: fn.linear(x, weight, bias)
    turned = b.weight(size, out)
    if kind == "einsum":
        return lambda x: torch.einsum("...i,io->...o", x, turned)
    if kind == "alpha" and bias is not None:
        alpha, beta = b.rng.choice((-1.0, 0.5, 2.0)), b.rng.choice((-1.0, 1.0, 0.0))
        return lambda x: torch.addmm(
            bias, x.reshape(-1, size), turned, alpha=alpha, beta=beta
        ).view(*x.shape[:-1], out)
    return lambda x: x @ turned if bias is None else x @ turned + bias


def linear_block(b: Build, shape: Shape) -> tuple[Step, Shape]:
    out = b.rng.choice((2, 4, 6))
    b.note("linear")
    return chain(affine(b, shape[-1], out), b.act()), (*shape[:-1], out)


def two_layers(b: Build, shape: Shape) -> tuple[Step, Shape]:
    """A layer behind a nonnegative producer."""
    b.note("mlp")
    hidden = b.rng.choice((3, 4))
    return chain(
        affine(b, shape[-1], hidden), b.act(), affine(b, hidden, shape[-1]), b.act()
    ), shape


def residual(b: Build, shape: Shape) -> tuple[Step, Shape]:
    b.note("residual")
    size, alpha = shape[-1], b.rng.choice((1, 1, -1, 0.5, -2.0))
    inner = chain(affine(b, size, 4), b.act(), affine(b, 4, size))
    scale = b.vector(size) if b.chance(0.4) else None
    combine = torch.add if b.chance(0.7) else torch.sub

    def run(x: Tensor) -> Tensor:
        y = inner(x)
        return combine(x, y if scale is None else y * scale, alpha=alpha)

    return run, shape


def gated(b: Build, shape: Shape) -> tuple[Step, Shape]:
    b.note("gated")
    size = shape[-1]
    act, kind = b.act(), b.rng.choice(("three", "glu", "chunk"))
    down = affine(b, 4, size)
    if kind == "three":
        gate, up = affine(b, size, 4), affine(b, size, 4)
        return lambda x: down(act(gate(x)) * up(x)), shape
    both = affine(b, size, 8)
    if kind == "glu":
        return lambda x: down(fn.glu(both(x), -1)), shape

    def run(x: Tensor) -> Tensor:
        left, right = both(x).chunk(2, -1)
        return down(act(left) * right)

    return run, shape


def adapter(b: Build, shape: Shape) -> tuple[Step, Shape]:
    b.note("adapter")
    size = shape[-1]
    base, first, second = affine(b, size, size), b.weight(2, size), b.weight(size, 2)
    factor, lost = b.rng.choice((2.0, -0.5)), b.chance(0.5)

    def run(x: Tensor) -> Tensor:
        low = fn.linear(fn.dropout(x, 0.2) if lost else x, first)
        return base(x) + fn.linear(low, second) * factor

    return run, shape


def twice(b: Build, shape: Shape) -> tuple[Step, Shape]:
    """One layer used twice, on different tensors."""
    b.note("shared")
    layer, act = affine(b, shape[-1], shape[-1]), b.act()
    return lambda x: layer(act(layer(x))), shape


def tied(b: Build, shape: Shape) -> tuple[Step, Shape]:
    """One weight used as it is and transposed."""
    b.note("tied")
    weight, act = b.weight(4, shape[-1]), b.act()
    return lambda x: fn.linear(act(fn.linear(x, weight)), weight.t()), shape


def feature_pieces(b: Build, shape: Shape) -> tuple[Step, Shape]:
    """Some features pass one way, some another."""
    size = shape[-1]
    if size < 2:
        return linear_block(b, shape)
    kind = b.rng.choice(("slice", "split", "unbind", "stack", "select", "roll", "flip", "pad"))
    b.note(kind)
    cut = b.rng.randrange(1, max(size - 1, 2))
    small, act = affine(b, size - cut, size - cut), b.act()
    steps: dict[str, Step] = {
        "slice": lambda x: torch.cat([x[..., :cut], act(small(x[..., cut:]))], -1),
        "split": lambda x: torch.cat([act(piece) for piece in x.split([cut, size - cut], -1)], -1),
        "unbind": lambda x: torch.stack([act(x.unbind(-1)[0]), *x.unbind(-1)[1:]], -1),
        "stack": lambda x: torch.stack([x[..., cut:], act(small(x[..., cut:]))], -2).sum(-2),
        "select": lambda x: x * act(x[..., cut]).unsqueeze(-1),
        "roll": lambda x: act(torch.roll(x, cut, -1)),
        "flip": lambda x: act(x.flip(-1)),
        "pad": lambda x: act(fn.pad(x[..., cut:], (1, cut - 1), value=0.5)),
    }
    if kind in {"slice", "split", "stack"} and b.chance(0.3):
        whole = steps[kind]
        turned = b.rng.choice((1, -1))
        step: Step = lambda x: whole(x).roll(turned, -1)  # noqa: E731 - one of two spellings
    else:
        step = steps[kind]
    return step, (*shape[:-1], size - cut) if kind == "stack" else shape


def scaled(b: Build, shape: Shape) -> tuple[Step, Shape]:
    b.note("scale")
    size, kind = shape[-1], b.rng.choice(("vector", "scalar", "both", "divided"))
    vector, scalar = b.vector(size, 0.5), b.weight(1)
    steps: dict[str, Step] = {
        "vector": lambda x: x * vector,
        "scalar": lambda x: x + scalar * torch.tanh(x),
        "both": lambda x: x * vector - scalar,
        "divided": lambda x: vector * x / (1 + x.abs()),
    }
    return steps[kind], shape


def mixed(b: Build, shape: Shape) -> tuple[Step, Shape]:
    """Softmax over features, extremes and means, put back beside the features."""
    kind = b.rng.choice(("softmax", "log_softmax", "amax", "mean", "cumsum", "norm", "max"))
    b.note(kind)
    one, two = affine(b, shape[-1], 3), affine(b, 3, shape[-1])
    steps: dict[str, Step] = {
        "softmax": lambda x: two(torch.softmax(one(x), -1)),
        "log_softmax": lambda x: two(torch.log_softmax(one(x), -1)),
        "amax": lambda x: x + one(x).amax(-1, keepdim=True),
        "max": lambda x: x - one(x).max(-1).values.unsqueeze(-1),
        "mean": lambda x: x - x.mean(-1, keepdim=True),
        "cumsum": lambda x: two(one(x).cumsum(-1)),
        "norm": lambda x: x / (1 + one(x).norm(dim=-1, keepdim=True)),
    }
    return steps[kind], shape


def feature_norm(b: Build, shape: Shape) -> tuple[Step, Shape]:
    size = shape[-1]
    kinds = ["layer", "rms", "rms by hand", "layer before relu"]
    kind = b.rng.choice([*kinds, "batch", "batch eval"] if len(shape) == 2 else kinds)
    b.note(f"norm {kind}")
    scale, shift = b.vector(size, 1.0), b.vector(size)
    mean, var = torch.zeros(size, dtype=b.dtype), torch.ones(size, dtype=b.dtype)
    act = b.act() if b.chance(0.6) else lambda x: x
    training = kind == "batch"
    steps: dict[str, Step] = {
        "layer": lambda x: fn.layer_norm(x, (size,), scale, shift),
        "layer before relu": lambda x: fn.relu(fn.layer_norm(x, (size,), scale, shift)),
        "rms": lambda x: fn.rms_norm(x.to(scale.dtype), (size,), scale, 1e-5),
        "rms by hand": lambda x: scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)),
        "batch": lambda x: fn.batch_norm(x, mean, var, scale, shift, training=training),
        "batch eval": lambda x: fn.batch_norm(x, mean, var, scale, shift, training=training),
    }
    return chain(steps[kind], act), shape


def positional(b: Build, shape: Shape) -> tuple[Step, Shape]:
    b.note("positional")
    table = b.weight(shape[1] + 1, shape[2])
    return lambda x: x + table[: x.shape[1]], shape


def prefix(b: Build, shape: Shape) -> tuple[Step, Shape]:
    """Learnt positions before the others."""
    b.note("prefix")
    learnt = b.weight(1, 1, shape[2])
    grown = (shape[0], shape[1] + 1, shape[2])
    return lambda x: torch.cat([learnt.expand(x.shape[0], -1, -1), x], 1), grown


def over_positions(b: Build, shape: Shape) -> tuple[Step, Shape]:
    kind = b.rng.choice(("mean", "first", "half", "mix", "repeat"))
    b.note(f"positions {kind}")
    mixing = b.weight(shape[1], shape[1])
    steps: dict[str, Step] = {
        "mean": lambda x: x - x.mean(1, keepdim=True),
        "first": lambda x: x + x[:, :1],
        "half": lambda x: torch.cat([fn.relu(x[:, :1]), x[:, 1:]], 1),
        "mix": lambda x: (x.transpose(1, 2) @ mixing).transpose(1, 2),
        "repeat": lambda x: x + x[:, -1:].repeat(1, x.shape[1], 1),
    }
    return steps[kind], shape


FEATURE_BLOCKS: Final[tuple[Block, ...]] = (
    linear_block,
    linear_block,
    two_layers,
    two_layers,
    residual,
    gated,
    adapter,
    twice,
    tied,
    feature_pieces,
    feature_pieces,
    scaled,
    mixed,
    feature_norm,
)
POSITION_BLOCKS: Final[tuple[Block, ...]] = (positional, prefix, over_positions)
