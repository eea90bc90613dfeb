"""Blocks on images: tensors (batch, channels, height, width)."""

from typing import Final

import torch
from fuzz.blocks import Block
from fuzz.build import Build, Shape, Step, chain
from torch import Tensor
from torch.nn import functional as fn


def conv(b: Build, size: int, out: int, stride: int = 1) -> Step:
    """Return a convolution that keeps the size, or halves it."""
    groups = b.rng.choice([g for g in (1, 1, 2, 4) if size % g == 0 and out % g == 0])
    kernel = b.rng.choice((1, 3))
    weight, bias = b.weight(out, size // groups, kernel, kernel), b.maybe_vector(out)
    return lambda x: fn.conv2d(x, weight, bias, stride, padding=kernel // 2, groups=groups)


def _last(x: Tensor, step: Step) -> Tensor:
    """Apply a step with the channels as last axis.

    Contiguous again: torch 2.13 corrupts memory in the backward pass of a 1x1 convolution with
    stride 2 of a channels-last tensor on a CPU.
    """
    return step(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).contiguous()


def norm(b: Build, size: int) -> Step:
    """Return a norm over channels, or none."""
    kind = b.rng.choice(("batch", "batch", "batch", "eval", "group", "instance", "layer", "none"))
    b.note(f"norm {kind}")
    scale, shift = b.vector(size, 1.0), b.vector(size)
    mean, var = torch.zeros(size, dtype=b.dtype), torch.ones(size, dtype=b.dtype)
    groups = b.rng.choice([g for g in (1, 2, size) if size % g == 0])
    steps: dict[str, Step] = {
        "batch": lambda x: fn.batch_norm(x, mean, var, scale, shift, training=True),
        "eval": lambda x: fn.batch_norm(x, mean, var, scale, shift, training=False),
        "group": lambda x: fn.group_norm(x, groups, scale, shift),
        "instance": lambda x: fn.instance_norm(x, weight=scale, bias=shift),
        "layer": lambda x: _last(x, lambda y: fn.layer_norm(y, (size,), scale, shift)),
        "none": lambda x: x,
    }
    return steps[kind]


def conv_block(b: Build, shape: Shape) -> tuple[Step, Shape]:
    out = b.rng.choice((2, 4, 4, 6))
    stride = 2 if shape[-1] > 4 and b.chance(0.4) else 1
    b.note(f"conv /{stride}")
    side = (shape[-1] + stride - 1) // stride
    step = chain(conv(b, shape[1], out, stride), norm(b, out), b.act())
    return step, (shape[0], out, side, side)


def two_convs(b: Build, shape: Shape) -> tuple[Step, Shape]:
    b.note("two convs")
    size = shape[1]
    return chain(conv(b, size, 4), b.act(), conv(b, 4, size), norm(b, size), b.act()), shape


def residual_image(b: Build, shape: Shape) -> tuple[Step, Shape]:
    b.note("residual image")
    size, alpha = shape[1], b.rng.choice((1, 1, -1, 0.5))
    inner = chain(conv(b, size, 4), norm(b, 4), b.act(), conv(b, 4, size), norm(b, size))
    after = b.act()
    scale = b.weight(size, 1, 1) if b.chance(0.3) else None

    def run(x: Tensor) -> Tensor:
        y = inner(x)
        return after(torch.add(x, y if scale is None else scale * y, alpha=alpha))

    return run, shape


def squeeze_gate(b: Build, shape: Shape) -> tuple[Step, Shape]:
    """Channels weighed by what their means say."""
    b.note("squeeze gate")
    one, two = b.weight(3, shape[1]), b.weight(shape[1], 3)
    act, gate = b.act(), b.rng.choice((torch.sigmoid, fn.hardsigmoid))

    def run(x: Tensor) -> Tensor:
        means = fn.adaptive_avg_pool2d(x, 1).flatten(1)
        return x * gate(fn.linear(act(fn.linear(means, one)), two))[:, :, None, None]

    return run, shape


def branches(b: Build, shape: Shape) -> tuple[Step, Shape]:
    """Channels split, one piece convolved, or two branches side by side."""
    b.note("branches")
    size, half = shape[1], shape[1] // 2
    if b.chance(0.5) and half:
        inner, act = conv(b, size - half, size - half), b.act()

        def pieces(x: Tensor) -> Tensor:
            kept, rest = x[:, :half], x[:, half:]
            return torch.cat([act(inner(rest)), kept], 1)

        return pieces, shape
    left, right = chain(conv(b, size, 2), b.act()), chain(conv(b, size, 3), norm(b, 3), b.act())
    return lambda x: torch.cat([left(x), right(x)], 1), (shape[0], 5, *shape[2:])


def resized(b: Build, shape: Shape) -> tuple[Step, Shape]:
    kind = b.rng.choice(
        ("max", "avg", "adaptive", "adaptive max", "nearest", "bilinear", "reflect")
    )
    b.note(f"resize {kind}")
    side = shape[-1]
    if side < 4:
        kind = b.rng.choice(("nearest", "bilinear"))
    larger = (side + 1, side + 1)
    steps: dict[str, Step] = {
        "max": lambda x: fn.max_pool2d(x, 3, 2, 1),
        "avg": lambda x: fn.avg_pool2d(x, 2),
        "adaptive": lambda x: fn.adaptive_avg_pool2d(x, 3),
        "adaptive max": lambda x: fn.adaptive_max_pool2d(x, 2),
        "nearest": lambda x: fn.interpolate(x, size=larger),
        "bilinear": lambda x: fn.interpolate(x, size=larger, mode="bilinear"),
        "reflect": lambda x: fn.avg_pool2d(fn.pad(x, (1, 1, 1, 1), mode="reflect"), 3),
    }
    return steps[kind], tuple(steps[kind](torch.zeros(shape)).shape)


def scaled_image(b: Build, shape: Shape) -> tuple[Step, Shape]:
    b.note("scaled image")
    scale, shift = b.weight(1, shape[1], 1, 1), b.weight(shape[1], 1, 1)
    if b.chance(0.5):
        return lambda x: x * scale + shift, shape
    act = b.act()
    return lambda x: act(x * scale) - shift, shape


IMAGE_BLOCKS: Final[tuple[Block, ...]] = (
    conv_block,
    conv_block,
    conv_block,
    two_convs,
    residual_image,
    residual_image,
    squeeze_gate,
    branches,
    resized,
    scaled_image,
)
