"""One program or several for each operation of the rule table."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from fuzz.build import Shape
from fuzz.cases_layers import LAYER_CASES
from fuzz.oracle import Case, Program
from torch import Tensor
from torch.nn import functional as fn

_FLAT: Final = (3, 4)


def _c(program: Program, *shapes: Shape, values: str = "any") -> Case:
    return Case(program, shapes or (_FLAT,), values)


def _each(*programs: Program, values: str = "any") -> tuple[Case, ...]:
    return tuple(_c(program, values=values) for program in programs)


def _noise(x: Tensor) -> Tensor:
    return torch.randn_like(x)


_ELEMENTWISE: Final[Mapping[str, tuple[Case, ...]]] = {
    "GeluBackward0": _each(fn.gelu, lambda x: fn.gelu(x, approximate="tanh")),
    "SiluBackward0": _each(fn.silu),
    "TanhBackward0": _each(torch.tanh),
    "MishBackward0": _each(fn.mish),
    "HardswishBackward0": _each(fn.hardswish),
    "ToCopyBackward0": _each(
        lambda x: x.to(torch.float16),
        lambda x: x.to(torch.float32 if x.dtype == torch.float64 else torch.float64),
    ),
    "NativeDropoutBackward0": _each(lambda x: torch.native_dropout(x, 0.5, True)[0]),
    "EluBackward0": _each(fn.elu, fn.selu, lambda x: fn.elu(x, -1.0)),
    "EluBackward1": _each(lambda x: fn.elu_(x.clone()), lambda x: fn.selu(x.clone(), inplace=True)),
    "CeluBackward0": _each(lambda x: fn.celu(x, 0.7)),
    "HardshrinkBackward0": _each(fn.hardshrink),
    "SoftshrinkBackward0": _each(fn.softshrink),
    "LeakyReluBackward0": _each(fn.leaky_relu, lambda x: fn.leaky_relu(x, -0.5)),
    "PreluKernelBackward0": (
        _c(fn.prelu, _FLAT, (4,)),
        _c(fn.prelu, (2, 3, 2, 2), (3,)),
        _c(fn.prelu, _FLAT, (1,)),
    ),
    "SigmoidBackward0": _each(torch.sigmoid),
    "HardsigmoidBackward0": _each(fn.hardsigmoid),
    "ExpBackward0": _each(torch.exp),
    "SoftplusBackward0": _each(fn.softplus, lambda x: fn.softplus(x, 2.0, 3.0)),
    "RsqrtBackward0": _each(torch.rsqrt, values="positive"),
    "LogSigmoidBackward0": _each(fn.logsigmoid),
    "SqrtBackward0": _each(torch.sqrt, values="positive"),
    "SinBackward0": _each(torch.sin),
    "ErfBackward0": _each(torch.erf),
    "AtanBackward0": _each(torch.atan),
    "CosBackward0": _each(torch.cos),
    "LogBackward0": _each(torch.log, values="positive"),
    "ReciprocalBackward0": _each(torch.reciprocal, values="positive"),
    "MulBackward1": _each(
        lambda x: torch.ops.aten.mul.Scalar(x, -3.0), lambda x: torch.trapezoid(x, dx=-3.0)
    ),
    "DivBackward1": _each(lambda x: torch.ops.aten.div.Scalar(x, -3.0)),
    "AddBackward1": _each(
        lambda x: torch.ops.aten.add.Scalar(x, 0.5), lambda x: fn.rms_norm(x, (4,))
    ),
    "SubBackward1": _each(lambda x: torch.ops.aten.sub.Scalar(x, 0.5)),
    "RsubBackward1": _each(lambda x: 1 - x),
    "MaskedFillBackward0": _each(lambda x: x.masked_fill(torch.rand(4) < 0.5, 0.7)),
    "PowBackward2": _each(lambda x: 2.0**x),
    "NegBackward0": _each(torch.neg),
    "AbsBackward0": _each(torch.abs),
    "PowBackward0": _each(
        lambda x: x**2, lambda x: x**3, lambda x: x**1, lambda x: torch.pow(x, 2.0), torch.square
    )
    + _each(lambda x: x**0.5, lambda x: x**-1, lambda x: x**1.5, values="positive"),
    "ReluBackward0": _each(fn.relu, lambda x: fn.relu_(x.clone())),
    "HardtanhBackward0": _each(
        fn.relu6,
        fn.hardtanh,
        lambda x: fn.hardtanh(x, -2.0, 0.0),
        lambda x: fn.hardtanh(x, 1.0, 2.0),
        lambda x: fn.hardtanh(x, -2.0, -1.0),
        lambda x: fn.hardtanh_(x.clone(), 0.0, 2.0),
    ),
    "ThresholdBackward0": _each(
        lambda x: fn.threshold(x, 0.0, 0.3),
        lambda x: fn.threshold(x, 0.5, -1.0),
        lambda x: fn.threshold(x, -0.5, 0.0),
    ),
    "ClampBackward1": _each(
        lambda x: x.clamp(0.0, 1.0),
        lambda x: x.clamp(min=0.5),
        lambda x: x.clamp(-1.0, -0.5),
        lambda x: x.clamp(-1.0, 1.0),
        lambda x: x.clamp(1.0, -1.0),
        lambda x: x.clamp(1e-60, 1.0),
    ),
    "ClampMinBackward0": _each(
        lambda x: x.clamp_min(0.0), lambda x: x.clamp_min(0.2), lambda x: x.clamp_min(-0.2)
    ),
    "ClampMaxBackward0": _each(
        lambda x: x.clamp_max(0.0), lambda x: x.clamp_max(0.2), lambda x: x.clamp_max(-0.2)
    ),
    "TrilBackward0": _each(torch.tril, lambda x: x.tril(-1)),
    "TriuBackward0": _each(torch.triu),
}

_PAIR: Final = (_FLAT, _FLAT)
_BROADCAST: Final = (_FLAT, (4,))
_COLUMN: Final = ((3, 1), (1, 4))


def _pairs(program: Program) -> tuple[Case, ...]:
    return (
        Case(program, _PAIR),
        Case(program, _BROADCAST),
        Case(program, _COLUMN),
        Case(lambda x: program(x, _noise(x)), (_FLAT,)),
        Case(lambda x: program(_noise(x), x), (_FLAT,)),
        Case(lambda x: program(x, x), (_FLAT,)),
    )


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b)


_ARITHMETIC: Final[Mapping[str, tuple[Case, ...]]] = {
    "AddBackward0": _pairs(torch.add)
    + _pairs(lambda a, b: torch.add(a, b, alpha=-2))
    + _pairs(lambda a, b: torch.add(a, b, alpha=0.5)),
    "SubBackward0": _pairs(torch.sub) + _pairs(lambda a, b: torch.sub(a, b, alpha=-3)),
    "MulBackward0": (*_pairs(torch.mul), *_each(lambda x: x * -2.0)),
    "DivBackward0": (
        *_pairs(_ratio),
        *_each(lambda x: x / -2.0),
        Case(lambda a, b: a / (1 + b.abs()), _PAIR),
        Case(lambda a, b: a / (-0.5 - b.abs()), _PAIR),
    ),
    "MaximumBackward0": _pairs(torch.maximum),
    "MinimumBackward0": _pairs(torch.minimum),
    "WhereBackward0": _pairs(lambda a, b: torch.where(torch.rand(3, 4) < 0.5, a, b))
    + _each(lambda x: torch.where(torch.rand(3, 4) < 0.5, x, 0.7)),
    "GluBackward0": (
        _c(lambda x: fn.glu(x, -1), (3, 6)),
        _c(lambda x: fn.glu(x, 0), (4, 3)),
    ),
}


def _images(program: Program) -> tuple[Case, ...]:
    return (_c(program, (2, 3, 4, 4)), _c(program, (2, 4, 2, 3)))


_SHAPES: Final[Mapping[str, tuple[Case, ...]]] = {
    "ViewBackward0": (
        _c(lambda x: x.view(2, 6)),
        _c(lambda x: x.view(2, 3, 4), (6, 4)),
        _c(lambda x: x.view(6, 2, 2), (2, 3, 4)),
    ),
    "UnsafeViewBackward0": (_c(lambda x: x.t().reshape(2, 6)),),
    "ReshapeAliasBackward0": (_c(lambda a, b: torch.einsum("ij,kj->ik", a, b), (3, 4), (2, 4)),),
    "AliasBackward0": _each(torch.ops.aten.alias.default),
    "CloneBackward0": _each(torch.clone, lambda x: x.t().contiguous()),
    "SqueezeBackward0": (_c(torch.squeeze, (3, 1, 4, 1)),),
    "SqueezeBackward1": (_c(lambda x: x.squeeze(1), (3, 1, 4)),),
    "SqueezeBackward2": (_c(lambda x: x.squeeze((0, 2)), (1, 3, 1, 4)),),
    "UnsqueezeBackward0": _each(lambda x: x.unsqueeze(1), lambda x: x.unsqueeze(-1)),
    "TBackward0": _each(torch.t),
    "TransposeBackward0": (
        _c(lambda x: x.transpose(0, 2), (2, 3, 4)),
        _c(lambda x: x.transpose(-1, -2), (3, 3, 3)),
    ),
    "PermuteBackward0": (
        _c(lambda x: x.permute(2, 0, 1), (2, 3, 4)),
        _c(lambda x: x.permute(-1, 0, 1), (3, 3, 3)),
    ),
    "ExpandBackward0": (
        _c(lambda x: x.expand(2, 3, 4), (3, 1)),
        _c(lambda x: x.expand(3, 4), (1, 4)),
    ),
    "RepeatBackward0": (
        _c(lambda x: x.repeat(2, 2)),
        _c(lambda x: x.repeat(2, 1, 3)),
        _c(lambda x: x.repeat(1, 2), (2, 2)),
    ),
    "SliceBackward0": _each(
        lambda x: x[:, 1:3],
        lambda x: x[-2:],
        lambda x: x[:, ::2],
        lambda x: x[:, 1:],
        lambda x: x[:2],
    ),
    "SelectBackward0": _each(lambda x: x[:, -1], lambda x: x[1], lambda x: x.select(-1, 2)),
    "FlipBackward0": _each(lambda x: x.flip(0), lambda x: x.flip(0, -1)),
    "RollBackward0": _each(
        lambda x: x.roll(1, 0), lambda x: x.roll((1, -2), (0, 1)), lambda x: x.roll(5)
    ),
    "ConstantPadNdBackward0": _each(
        lambda x: fn.pad(x, (1, 2)),
        lambda x: fn.pad(x, (-1, 2, 1, 0), value=0.5),
        lambda x: fn.pad(x, (0, -2, -1, -1)),
    ),
    "SplitBackward0": _each(
        lambda x: x.split(2, 1), lambda x: x.chunk(2)[1:], lambda x: x.split(3, -1)[1]
    ),
    "SplitWithSizesBackward0": _each(
        lambda x: x.split([1, 3], 1),
        lambda x: x.split([2, 1])[1],
        lambda x: x.split([1, 2, 1], -1)[1],
    ),
    "UnbindBackward0": _each(
        lambda x: x.unbind(0), lambda x: x.unbind(-1)[2], lambda x: x.unbind(1)[1:3]
    ),
    "CatBackward0": (
        _c(lambda a, b: torch.cat([a, b]), (2, 4), (3, 4)),
        _c(lambda a, b: torch.cat([a, b], -1), (3, 2), (3, 4)),
        _c(lambda a, b: torch.cat([a, torch.randn(3, 3), b], 1), (3, 2), (3, 4)),
        _c(lambda a: torch.cat([torch.randn(3, 1), a, torch.randn(3, 2)], 1), (3, 2)),
    ),
    "StackBackward0": (
        _c(lambda a, b: torch.stack([a, b]), *_PAIR),
        _c(lambda a, b: torch.stack([a, b], -1), *_PAIR),
        _c(lambda a, b: torch.stack([a, torch.randn(3, 4), b], 1), *_PAIR),
    ),
    "PixelShuffleBackward0": (_c(lambda x: fn.pixel_shuffle(x, 2), (1, 8, 2, 3)),),
    "PixelUnshuffleBackward0": (_c(lambda x: fn.pixel_unshuffle(x, 2), (1, 2, 4, 6)),),
}


def _picked(*shape: int, size: int) -> Tensor:
    return torch.randint(0, size, shape)


_LOOKUP: Final[Mapping[str, tuple[Case, ...]]] = {
    "EmbeddingBackward0": (
        _c(lambda w: fn.embedding(_picked(2, 3, size=5), w), (5, 4)),
        _c(lambda w: fn.embedding(_picked(2, size=5), w, padding_idx=1), (5, 4)),
    ),
    "IndexBackward0": _each(lambda x: x[_picked(2, size=3)], lambda x: x[:, _picked(2, size=4)]),
    "GatherBackward0": _each(lambda x: x.gather(1, _picked(3, 2, size=4))),
    "IndexSelectBackward0": _each(lambda x: x.index_select(1, _picked(3, size=4))),
    "TakeBackward0": _each(lambda x: x.take(_picked(5, size=12))),
    "TopkBackward0": _each(lambda x: x.topk(2, 1)[0]),
    "SortBackward0": _each(lambda x: x.sort(1)[0]),
    "IndexAddBackward0": (_c(lambda a, b: a.index_add(0, _picked(2, size=3), b), _FLAT, (2, 4)),),
    "IndexPutBackward0": (
        _c(lambda a, b: a.index_put((torch.randperm(3)[:2],), b), _FLAT, (2, 4)),
        _c(lambda a, b: a.index_put((_picked(2, size=3),), b, accumulate=True), _FLAT, (2, 4)),
    ),
    "ScatterAddBackward0": (
        _c(lambda a, b: a.scatter_add(0, _picked(2, 4, size=3), b), _FLAT, (2, 4)),
    ),
}


def _with_dims(name: str) -> tuple[Case, ...]:
    operation: Callable[..., Any] = getattr(torch, name)
    return (
        _c(lambda x: operation(x, 1)),
        _c(lambda x: operation(x, 0, keepdim=True)),
        _c(lambda x: operation(x, -1, keepdim=True)),
        _c(lambda x: operation(x, (0, 2)), (2, 3, 2)),
    )


_REDUCTIONS: Final[Mapping[str, tuple[Case, ...]]] = {
    "SumBackward0": _each(torch.sum),
    "SumBackward1": _with_dims("sum"),
    "MeanBackward0": _each(torch.mean),
    "MeanBackward1": _with_dims("mean"),
    "AmaxBackward0": _with_dims("amax"),
    "AminBackward0": _with_dims("amin"),
    "MaxBackward0": _each(lambda x: x.max(1).values, lambda x: x.max(0, keepdim=True)[0]),
    "MaxBackward1": _each(torch.max),
    "MinBackward0": _each(lambda x: x.min(1).values),
    "MinBackward1": _each(torch.min),
    "LinalgVectorNormBackward0": _each(
        lambda x: x.norm(dim=1), torch.linalg.vector_norm, lambda x: x.norm(1, dim=0)
    ),
    "VarBackward0": _each(lambda x: x.var(1), lambda x: x.var()),
    "StdBackward0": _each(lambda x: x.std(1), lambda x: x.std(0, keepdim=True)),
    "LogsumexpBackward0": _each(lambda x: x.logsumexp(1)),
    "SoftmaxBackward0": _each(lambda x: x.softmax(1), lambda x: x.softmax(0)),
    "SafeSoftmaxBackward0": _each(lambda x: torch._safe_softmax(x, 1)),
    "LogSoftmaxBackward0": _each(lambda x: x.log_softmax(1), lambda x: x.log_softmax(0)),
    "CumsumBackward0": _each(lambda x: x.cumsum(1), lambda x: x.cumsum(0)),
}

CASES: Final[Mapping[str, tuple[Case, ...]]] = {
    **_ELEMENTWISE,
    **_ARITHMETIC,
    **_SHAPES,
    **_LOOKUP,
    **_REDUCTIONS,
    **LAYER_CASES,
}
