"""Programs for matrix products, convolutions, norms, pooling and attention."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from fuzz.build import Shape
from fuzz.oracle import Case, Program
from torch import Tensor
from torch.nn import functional as fn


def _c(program: Program, *shapes: Shape) -> Case:
    return Case(program, shapes)


_LINEAR: Final[Mapping[str, tuple[Case, ...]]] = {
    "MmBackward0": (
        _c(torch.mm, (3, 4), (4, 2)),
        _c(lambda a: a @ torch.randn(4, 2).to(a.dtype), (3, 4)),
        _c(lambda b: torch.randn(3, 4).to(b.dtype) @ b, (4, 2)),
        _c(fn.linear, (3, 4), (2, 4)),
        _c(lambda a: a @ a, (3, 3)),
    ),
    "BmmBackward0": (
        _c(torch.bmm, (2, 3, 4), (2, 4, 2)),
        _c(lambda a: torch.bmm(a, torch.randn(2, 4, 2).to(a.dtype)), (2, 3, 4)),
        _c(lambda a, b: a @ b, (2, 2, 3, 4), (2, 4, 3)),
    ),
    "AddmmBackward0": (
        _c(fn.linear, (3, 4), (2, 4), (2,)),
        _c(lambda c, a, b: torch.addmm(c, a, b, alpha=-1, beta=0.5), (3, 2), (3, 4), (4, 2)),
        _c(lambda c, a, b: torch.addmm(c, a, b, beta=-1), (2,), (3, 4), (4, 2)),
        _c(lambda a, b: torch.addmm(torch.randn(2).to(a.dtype), a, b), (3, 4), (4, 2)),
        _c(lambda a, b: torch.addmm(torch.randn(2).to(a.dtype), a, b, beta=0), (3, 4), (4, 2)),
        _c(lambda w, b: fn.linear(torch.randn(3, 4).to(w.dtype), w, b), (2, 4), (2,)),
    ),
    "BaddbmmBackward0": (
        _c(torch.baddbmm, (2, 3, 2), (2, 3, 4), (2, 4, 2)),
        _c(lambda c, a, b: torch.baddbmm(c, a, b, alpha=-2), (1, 2), (2, 3, 4), (2, 4, 2)),
    ),
    "MvBackward0": (
        _c(torch.mv, (3, 4), (4,)),
        _c(lambda v: torch.randn(3, 4).to(v.dtype) @ v, (4,)),
    ),
    "DotBackward0": (_c(torch.dot, (4,), (4,)),),
}


def _conv(*, bias: bool, groups: int = 1, **settings: Any) -> Program:
    def run(*leaves: Tensor) -> Tensor:
        x, weight, *rest = leaves
        return fn.conv2d(x, weight, rest[0] if bias else None, groups=groups, **settings)

    return run


def _constant_bias(x: Tensor, weight: Tensor) -> Tensor:
    return fn.conv2d(x, weight, torch.randn(weight.shape[0]).to(x.dtype))


_CONVOLUTION: Final[Mapping[str, tuple[Case, ...]]] = {
    "ConvolutionBackward0": (
        _c(_conv(bias=True, padding=1), (2, 3, 4, 4), (2, 3, 3, 3), (2,)),
        _c(_conv(bias=False), (2, 4, 3, 3), (6, 4, 1, 1)),
        _c(_conv(bias=True, groups=2, stride=2), (2, 4, 4, 4), (6, 2, 2, 2), (6,)),
        _c(_conv(bias=False, groups=4), (2, 4, 4, 4), (4, 1, 3, 3)),
        _c(_conv(bias=False, groups=2), (1, 4, 3, 3), (4, 2, 1, 1)),
        _c(_constant_bias, (2, 3, 4, 4), (2, 3, 3, 3)),
        _c(lambda w: fn.conv2d(torch.randn(2, 4, 3, 3).to(w.dtype), w, groups=2), (2, 2, 2, 2)),
        _c(fn.conv1d, (2, 3, 5), (4, 3, 3), (4,)),
        _c(fn.conv3d, (1, 2, 3, 3, 3), (3, 2, 2, 2, 2), (3,)),
        _c(
            lambda x, w, b: fn.conv_transpose2d(x, w, b, stride=2),
            (1, 3, 3, 3),
            (3, 4, 2, 2),
            (4,),
        ),
        _c(lambda x, w: fn.conv_transpose2d(x, w, groups=2), (1, 4, 3, 3), (4, 3, 2, 2)),
        _c(lambda x, w: fn.conv_transpose1d(x, w, padding=1), (2, 3, 4), (3, 2, 3)),
        _c(fn.conv_transpose1d, (2, 3, 4), (3, 3, 2)),
        _c(lambda x, w: fn.conv2d(x, w, padding=2, dilation=2), (1, 16, 8, 8), (16, 16, 3, 3)),
    ),
}


def _batch_norm(*, training: bool) -> Program:
    def run(x: Tensor, *affine: Tensor) -> Tensor:
        size = x.shape[1]
        mean, var = torch.randn(size, device=x.device), torch.rand(size, device=x.device) + 0.1
        scale, shift = affine or (None, None)
        return fn.batch_norm(x, mean.to(x.dtype), var.to(x.dtype), scale, shift, training=training)

    return run


def _group_norm(groups: int) -> Program:
    return lambda x, scale, shift: fn.group_norm(x, groups, scale, shift)


class _FakeRms(torch.autograd.Function):
    """The fused RMS norm of a GPU, as one node."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return fn.rms_norm(x, scale.shape, scale, 1e-5)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        with torch.enable_grad():
            x, scale = (one.detach().requires_grad_() for one in ctx.saved_tensors)
            made = fn.rms_norm(x, scale.shape, scale, 1e-5)
            return torch.autograd.grad(made, (x, scale), grad)  # type: ignore[return-value]


_BATCH: Final = (
    (_batch_norm(training=True), (3, 4), (4,), (4,)),
    (_batch_norm(training=True), (2, 3, 2, 2), (3,), (3,)),
    (_batch_norm(training=False), (2, 3, 2), (3,), (3,)),
    (_batch_norm(training=True), (4, 3)),
)
_EVALUATED: Final = 2


def _epsilon(attrs: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"training": attrs["training"], "epsilon": attrs["eps"]}


def _like_cpu(
    change: Callable[[Mapping[str, Any]], Mapping[str, Any]], *, training: bool = False
) -> tuple[Case, ...]:
    """Return the cases with the node of a CPU under another name; if asked, in training only."""
    return tuple(
        Case(program, tuple(shapes), stands_for=("NativeBatchNormBackward0", change))
        for number, (program, *shapes) in enumerate(_BATCH)
        if not training or number != _EVALUATED
    )


_NORMS: Final[Mapping[str, tuple[Case, ...]]] = {
    "NativeBatchNormBackward0": tuple(_c(program, *shapes) for program, *shapes in _BATCH),
    "CudnnBatchNormBackward0": _like_cpu(_epsilon),
    "SyncBatchNormBackward": _like_cpu(lambda _: {}, training=True),
    "MiopenBatchNormBackward0": _like_cpu(_epsilon),
    "NativeLayerNormBackward0": (
        _c(lambda x, w, b: fn.layer_norm(x, (4,), w, b), (3, 4), (4,), (4,)),
        _c(lambda x, w, b: fn.layer_norm(x, (2, 3), w, b), (2, 2, 3), (2, 3), (2, 3)),
        _c(lambda x: fn.layer_norm(x, (4,)), (3, 4)),
        _c(lambda x, w: fn.layer_norm(x, (4,), w, torch.randn(4).to(x.dtype)), (3, 4), (4,)),
        _c(lambda x, b: fn.layer_norm(x, (4,), torch.randn(4).to(x.dtype), b), (3, 4), (4,)),
    ),
    "FusedRmsNormBackward0": (
        Case(
            _FakeRms.apply,
            ((3, 4), (4,)),
            stands_for=("custom _FakeRmsBackward", lambda _: {"normalized_shape": (4,)}),
        ),
    ),
    "NativeGroupNormBackward0": (
        _c(_group_norm(2), (2, 4, 3), (4,), (4,)),
        _c(_group_norm(1), (2, 3, 2, 2), (3,), (3,)),
        _c(_group_norm(3), (2, 6), (6,), (6,)),
        _c(lambda x: fn.group_norm(x, 2), (2, 4, 3)),
    ),
}


def _resize(mode: str, **settings: Any) -> Program:
    return lambda x: fn.interpolate(x, scale_factor=1.7, mode=mode, **settings)


_LINE, _IMAGE, _VOLUME = (2, 3, 5), (2, 3, 5, 4), (1, 2, 4, 4, 3)

_POOLS: Final[Mapping[str, tuple[Case, ...]]] = {
    "AvgPool2DBackward0": (
        _c(lambda x: fn.avg_pool2d(x, 2, padding=1), _IMAGE),
        _c(lambda x: fn.avg_pool2d(x, 2, divisor_override=-3), _IMAGE),
        _c(lambda x: fn.avg_pool1d(x, 2), _LINE),
    ),
    "AvgPool3DBackward0": (_c(lambda x: fn.avg_pool3d(x, 2), _VOLUME),),
    "MaxPool2DWithIndicesBackward0": (
        _c(lambda x: fn.max_pool2d(x, 3, 2, 1), _IMAGE),
        _c(lambda x: fn.max_pool2d(x, 2, ceil_mode=True), (3, 5, 4)),
    ),
    "MaxPool3DWithIndicesBackward0": (_c(lambda x: fn.max_pool3d(x, 2), _VOLUME),),
    "AdaptiveAvgPool2DBackward0": (_c(lambda x: fn.adaptive_avg_pool2d(x, 2), _IMAGE),),
    "AdaptiveAvgPool3DBackward0": (_c(lambda x: fn.adaptive_avg_pool3d(x, 2), _VOLUME),),
    "AdaptiveMaxPool2DBackward0": (_c(lambda x: fn.adaptive_max_pool2d(x, 2), _IMAGE),),
    "AdaptiveMaxPool3DBackward0": (_c(lambda x: fn.adaptive_max_pool3d(x, 2), _VOLUME),),
    "UpsampleNearest1DBackward0": (_c(_resize("nearest"), _LINE),),
    "UpsampleNearest2DBackward0": (_c(_resize("nearest"), _IMAGE),),
    "UpsampleNearest3DBackward0": (_c(_resize("nearest"), _VOLUME),),
    "UpsampleNearestExact1DBackward0": (_c(_resize("nearest-exact"), _LINE),),
    "UpsampleNearestExact2DBackward0": (_c(_resize("nearest-exact"), _IMAGE),),
    "UpsampleNearestExact3DBackward0": (_c(_resize("nearest-exact"), _VOLUME),),
    "UpsampleLinear1DBackward0": (_c(_resize("linear"), _LINE),),
    "UpsampleBilinear2DBackward0": (
        _c(_resize("bilinear"), _IMAGE),
        _c(_resize("bilinear", align_corners=True), _IMAGE),
    ),
    "UpsampleTrilinear3DBackward0": (_c(_resize("trilinear"), _VOLUME),),
    "UpsampleBicubic2DBackward0": (_c(_resize("bicubic"), _IMAGE),),
    "UpsampleBilinear2DAaBackward0": (_c(_resize("bilinear", antialias=True), _IMAGE),),
    **{
        f"{kind}Pad{rank}DBackward0": (
            _c(lambda x, m=mode, r=rank: fn.pad(x, (1, 1) * r, mode=m), shape),
        )
        for kind, mode in (("Reflection", "reflect"), ("Replication", "replicate"))
        for rank, shape in ((1, _LINE), (2, _IMAGE), (3, _VOLUME))
    },
}


def _attend(*, causal: bool = False) -> Program:
    return lambda q, k, v: fn.scaled_dot_product_attention(
        q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
    )


_ATTENTION_CASES: Final = (
    (_attend(), (2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4)),
    (_attend(causal=True), (1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)),
    (_attend(), (1, 4, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)),
    (_attend(), (2, 4, 2, 4), (2, 1, 3, 4), (2, 1, 3, 4)),
    (
        lambda q, k: fn.scaled_dot_product_attention(q, k, torch.randn(1, 2, 3, 4).to(q.dtype)),
        (1, 2, 3, 4),
        (1, 2, 3, 4),
    ),
    (
        lambda v: fn.scaled_dot_product_attention(
            *torch.randn(2, 1, 2, 3, 4).to(v.device, v.dtype), v
        ),
        (1, 2, 3, 4),
    ),
    (
        lambda q: fn.scaled_dot_product_attention(q, *torch.randn(2, 1, 2, 3, 4).to(q.dtype)),
        (1, 2, 3, 4),
    ),
)
_FLASH: Final = "ScaledDotProductFlashAttentionForCpuBackward0"


class _FakeAttention(torch.autograd.Function):
    """The attention kernels of a GPU with a mask that is learnt, as one node."""

    @staticmethod
    def forward(ctx: Any, *operands: Tensor) -> Tensor:
        ctx.save_for_backward(*operands)
        return fn.scaled_dot_product_attention(*operands)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        with torch.enable_grad():
            operands = [one.detach().requires_grad_() for one in ctx.saved_tensors]
            made = fn.scaled_dot_product_attention(*operands)
            return torch.autograd.grad(made, operands, grad)


_WITH_MASK: Final = Case(
    _FakeAttention.apply,
    ((2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4), (2, 2, 3, 5)),
    stands_for=("custom _FakeAttentionBackward", dict),
)


def _attention(change: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None) -> tuple[Case, ...]:
    return tuple(
        Case(program, tuple(shapes), stands_for=None if change is None else (_FLASH, change))
        for program, *shapes in _ATTENTION_CASES
    )


_FUSED: Final[Mapping[str, tuple[Case, ...]]] = {
    _FLASH: _attention(None),
    **dict.fromkeys(
        (
            "ScaledDotProductEfficientAttentionBackward0",
            "ScaledDotProductCudnnAttentionBackward0",
        ),
        (*_attention(dict), _WITH_MASK),
    ),
    "ScaledDotProductFlashAttentionBackward0": _attention(dict),
}

LAYER_CASES: Final[Mapping[str, tuple[Case, ...]]] = {
    **_LINEAR,
    **_CONVOLUTION,
    **_NORMS,
    **_POOLS,
    **_FUSED,
}
