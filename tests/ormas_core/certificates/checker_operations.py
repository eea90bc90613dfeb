"""Every operation of the rule table as torch runs it, for tests of the checker. No test here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf

from ormas_core.certificates import SETTINGS, read
from ormas_core.claims import Box, Fact, Span

Shape = tuple[int, ...]
Call = tuple[str, Callable[..., Any], tuple[Shape, ...]]


def _bn(training: bool) -> Callable[..., Any]:
    def call(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        mean, var = torch.full((x.shape[1],), 0.3), torch.full((x.shape[1],), 2.0)
        return nnf.batch_norm(
            x, None if training else mean, None if training else var, a, b, training
        )

    return call


def _aa(x: Tensor) -> Tensor:
    return nnf.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True)


def _pad(rank: int, mode: str) -> Callable[..., Any]:
    return lambda x: nnf.pad(x, (1,) * 2 * rank, mode)


def _dropout(x: Tensor) -> Tensor:
    return torch.native_dropout(x, 0.5, True)[0]


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return nnf.scaled_dot_product_attention(q, k, v, enable_gqa=True)


_INDEX = torch.tensor([2, 0, 1])

CALLS: Sequence[Call] = (
    *(
        (name, function, ((2, 6),))
        for name, function in (
            ("Gelu", nnf.gelu), ("Silu", nnf.silu), ("Tanh", torch.tanh), ("Mish", nnf.mish),
            ("Hardswish", nnf.hardswish), ("Hardshrink", nnf.hardshrink),
            ("Softshrink", nnf.softshrink),
            ("Tril", torch.tril), ("Triu", torch.triu), ("ToCopy", lambda x: x.to(torch.float16)),
            ("Elu", nnf.elu), ("Elu", lambda x: nnf.elu(x, -0.5)), ("Celu", nnf.celu),
            ("LeakyRelu", lambda x: nnf.leaky_relu(x, 0.2)),
            ("LeakyRelu", lambda x: nnf.leaky_relu(x, -0.2)),
            ("Sigmoid", torch.sigmoid), ("Hardsigmoid", nnf.hardsigmoid), ("Exp", torch.exp),
            ("Rsqrt", torch.rsqrt), ("Sqrt", torch.sqrt), ("Log", torch.log),
            ("Reciprocal", torch.reciprocal), ("NativeDropout", _dropout),
            ("Softplus", nnf.softplus), ("Softplus", lambda x: nnf.softplus(x, 1.0, -3.0)),
            ("Sin", torch.sin), ("Erf", torch.erf), ("Atan", torch.atan), ("Cos", torch.cos),
            ("Mul", lambda x: x * -2.0), ("Div", lambda x: x / -2.0), ("Add", lambda x: x + 1.0),
            ("Sub", lambda x: x - 1.0), ("Mul", lambda x: torch.ops.aten.mul.Scalar(x, -2.0)),
            ("Div", lambda x: torch.ops.aten.div.Scalar(x, -2.0)),
            ("Add", lambda x: torch.ops.aten.add.Scalar(x, 1.0)),
            ("Sub", lambda x: torch.ops.aten.sub.Scalar(x, 1.0)), ("Rsub", lambda x: 1.0 - x),
            ("MaskedFill", lambda x: x.masked_fill(torch.eye(2, 6) > 0, -1.0)),
            ("Pow", lambda x: 2.0**x), ("Neg", torch.neg), ("Abs", torch.abs),
            ("Pow", lambda x: x**2), ("Pow", lambda x: x**3), ("Pow", lambda x: x**1.0),
            ("LogSigmoid", nnf.logsigmoid), ("Relu", torch.relu),
            ("Hardtanh", lambda x: nnf.hardtanh(x, 0.0, 1.0)), ("Hardtanh", nnf.hardtanh),
            ("Hardtanh", lambda x: nnf.hardtanh(x, -1.0, 0.0)),
            ("Threshold", lambda x: nnf.threshold(x, 0.0, 5.0)),
            ("Threshold", lambda x: nnf.threshold(x, -0.5, 5.0)),
            ("Clamp", lambda x: x.clamp(0.0, 1.0)), ("Clamp", lambda x: x.clamp(1.0, -1.0)),
            ("Clamp", lambda x: x.clamp(0.1, 1.0)), ("Clamp", lambda x: x.clamp(-2.0, -0.1)),
            ("ClampMin", lambda x: torch.clamp_min(x, 0.0)),
            ("ClampMin", lambda x: torch.clamp_min(x, 0.2)),
            ("ClampMax", lambda x: torch.clamp_max(x, -0.2)),
            ("Glu", lambda x: nnf.glu(x, 1)), ("Softmax", lambda x: x.softmax(1)),
            ("LogSoftmax", lambda x: x.log_softmax(-1)), ("Cumsum", lambda x: x.cumsum(1)),
            ("Sum", torch.sum), ("Mean", torch.mean), ("Sum", lambda x: x.sum(0)),
            ("Mean", lambda x: x.mean((0, 1), True)), ("Mean", lambda x: x.mean(-1)),
            ("Amax", lambda x: x.amax(1)), ("Amin", lambda x: x.amin(0, True)),
            ("Max", lambda x: x.max(1)[0]), ("Max", torch.max), ("Min", lambda x: x.min(1)[0]),
            ("Min", torch.min), ("LinalgVectorNorm", lambda x: torch.linalg.vector_norm(x, dim=1)),
            ("Var", lambda x: x.var(1)), ("Std", lambda x: x.std(1)),
            ("Logsumexp", lambda x: x.logsumexp(1)),
            ("Gather", lambda x: x.gather(1, _INDEX[None])),
            ("Index", lambda x: x[:, _INDEX]), ("IndexSelect", lambda x: x.index_select(1, _INDEX)),
            ("Take", lambda x: x.take(_INDEX)), ("Topk", lambda x: x.topk(2)[0]),
            ("Sort", lambda x: x.sort()[0]), ("T", torch.t),
            ("View", lambda x: x.view(3, 4)), ("View", lambda x: x.view(2, 3, 2)),
            ("View", lambda x: x.view(4, 3)), ("View", lambda x: x.view(-1)),
            ("Clone", torch.clone), ("Alias", torch.ops.aten.alias),
            ("Unsqueeze", lambda x: x[:, None]),
            ("Expand", lambda x: x.expand(3, 2, 6)), ("Repeat", lambda x: x.repeat(2, 2, 3)),
            ("Slice", lambda x: x[:, 1:4]), ("Slice", lambda x: x[:, 1::2]),
            ("Slice", lambda x: x[:, -3:]), ("Select", lambda x: x[:, 2]),
            ("Select", lambda x: x[-1]),
            ("Flip", lambda x: x.flip(0, 1)), ("Roll", lambda x: x.roll((1, 2), (0, 1))),
            ("Roll", lambda x: x.roll(5)), ("ConstantPadNd", lambda x: nnf.pad(x, (1, -2, -1, 3))),
            ("Split", lambda x: x.split(4, 1)), ("SplitWithSizes", lambda x: x.split([1, 3, 2], 1)),
            ("Unbind", lambda x: x.unbind(1)),
        )
    ),
    *(
        (name, function, ((2, 6), shape))
        for shape in ((2, 6), (6,), (2, 1))
        for name, function in (
            ("Add", lambda a, b: torch.add(a, b, alpha=-2)), ("Add", torch.add),
            ("Sub", torch.sub), ("Sub", lambda a, b: torch.sub(a, b, alpha=-2)),
            ("Mul", torch.mul), ("Maximum", torch.maximum), ("Minimum", torch.minimum),
            ("Where", lambda a, b: torch.where(torch.eye(2, 6) > 0, a, b)),
        )
    ),
    ("Div", lambda a, b: a / b, ((2, 6), (2, 6))),
    ("PreluKernel", torch._prelu_kernel, ((2, 6, 3), (1, 6, 1))),
    ("Transpose", lambda x: x.transpose(0, 2), ((2, 3, 4),)),
    ("Permute", lambda x: x.permute(2, 0, 1), ((2, 3, 4),)),
    ("Squeeze", torch.squeeze, ((1, 2, 1, 4),)),
    ("Squeeze", lambda x: x.squeeze(0), ((1, 2, 1, 4),)),
    ("Squeeze", lambda x: x.squeeze((0, 2)), ((1, 2, 1, 4),)),
    ("UnsafeView", lambda x: torch.ops.aten._unsafe_view(x, [6, 4]), ((2, 3, 4),)),
    ("View", lambda x: x.view(2, 2, 6), ((4, 6),)),
    ("View", lambda x: x.view(8, 3), ((2, 4, 3),)),
    ("ReshapeAlias", lambda x: torch.ops.aten._reshape_alias(x, [6, 4], [4, 1]), ((2, 3, 4),)),
    ("PixelShuffle", lambda x: nnf.pixel_shuffle(x, 2), ((2, 8, 2, 3),)),
    ("PixelUnshuffle", lambda x: nnf.pixel_unshuffle(x, 2), ((1, 2, 4, 6),)),
    ("Cat", lambda a, b: torch.cat((a, b), 1), ((2, 3), (2, 4))),
    ("Cat", lambda a: torch.cat((torch.ones(2, 2), a), 1), ((2, 3),)),
    ("Cat", lambda a: torch.cat((torch.ones(0), a), 1), ((2, 3),)),
    ("Cat", lambda a: torch.cat((torch.ones(2, 2), a, torch.ones(2, 1)), 1), ((2, 3),)),
    ("Stack", lambda a, b: torch.stack((a, b), 1), ((2, 3), (2, 3))),
    ("Mm", torch.mm, ((2, 4), (4, 3))),
    ("Mm", lambda a: a @ torch.ones(4, 3), ((2, 4),)),
    ("Bmm", torch.bmm, ((2, 2, 4), (2, 4, 3))),
    ("Mv", torch.mv, ((3, 4), (4,))),
    ("Dot", torch.dot, ((4,), (4,))),
    ("Addmm", torch.addmm, ((3,), (2, 4), (4, 3))),
    ("Addmm", lambda c, a, b: torch.addmm(c, a, b, alpha=-1, beta=-2), ((2, 1), (2, 4), (4, 3))),
    ("Addmm", lambda c, a, b: torch.addmm(c, a, b, beta=0), ((3,), (2, 4), (4, 3))),
    ("Baddbmm", torch.baddbmm, ((2, 1, 3), (2, 2, 4), (2, 4, 3))),
    ("Convolution", nnf.conv1d, ((2, 4, 5), (6, 4, 2))),
    ("Convolution", lambda x, w, b: nnf.conv2d(x, w, b, 1, 1, 1, 2),
     ((2, 4, 4, 4), (6, 2, 3, 3), (6,))),
    ("Convolution", lambda x, w, b: nnf.conv2d(x, w, b, 2, groups=4),
     ((2, 4, 4, 4), (4, 1, 2, 2), (4,))),
    ("Convolution", lambda w: nnf.conv2d(torch.ones(1, 2, 3, 3), w), ((4, 2, 2, 2),)),
    ("Convolution", nnf.conv3d, ((1, 2, 3, 3, 3), (3, 2, 2, 2, 2))),
    ("Convolution", lambda x, w, b: nnf.conv_transpose2d(x, w, b, groups=2),
     ((1, 4, 3, 3), (4, 3, 2, 2), (6,))),
    *(
        ("NativeBatchNorm", _bn(training), (shape, (4,), (4,)))
        for training in (True, False)
        for shape in ((5, 4), (3, 4, 2, 2))
    ),
    ("NativeLayerNorm", lambda x, a, b: nnf.layer_norm(x, (4,), a, b), ((2, 3, 4), (4,), (4,))),
    ("NativeLayerNorm", lambda x, a, b: nnf.layer_norm(x, (3, 4), a, b),
     ((2, 3, 4), (3, 4), (3, 4))),
    ("NativeGroupNorm", lambda x, a, b: nnf.group_norm(x, 3, a, b), ((2, 6, 2), (6,), (6,))),
    ("Softmax", lambda x: x.softmax(1), ((2, 3, 4),)),
    ("SafeSoftmax", lambda x: torch.ops.aten._safe_softmax(x, -1), ((2, 3, 4),)),
    ("Embedding", lambda w: nnf.embedding(torch.tensor([[1, 0], [3, 1]]), w), ((5, 4),)),
    ("IndexAdd", lambda x, y: x.index_add(0, _INDEX, y), ((4, 3), (3, 3))),
    ("IndexPut", lambda x, y: x.index_put((_INDEX,), y), ((4, 3), (3, 3))),
    ("ScatterAdd", lambda x, y: x.scatter_add(0, _INDEX[None].expand(2, 3), y), ((4, 3), (2, 3))),
    ("AvgPool2D", lambda x: nnf.avg_pool2d(x, 2, padding=1), ((2, 3, 4, 4),)),
    ("AvgPool3D", lambda x: nnf.avg_pool3d(x, 2), ((2, 3, 2, 2, 2),)),
    ("MaxPool2DWithIndices", lambda x: nnf.max_pool2d(x, 2), ((3, 4, 4),)),
    ("MaxPool3DWithIndices", lambda x: nnf.max_pool3d(x, 2), ((1, 3, 2, 2, 2),)),
    ("AdaptiveAvgPool2D", lambda x: nnf.adaptive_avg_pool2d(x, (3, 2)), ((2, 3, 4, 4),)),
    ("AdaptiveAvgPool3D", lambda x: nnf.adaptive_avg_pool3d(x, (2, 1, 2)), ((2, 3, 3, 3, 3),)),
    ("AdaptiveMaxPool2D", lambda x: nnf.adaptive_max_pool2d(x, 2), ((2, 3, 4, 4),)),
    ("AdaptiveMaxPool3D", lambda x: nnf.adaptive_max_pool3d(x, 2), ((2, 3, 3, 3, 3),)),
    *(
        (f"Upsample{name}", lambda x, m=mode: nnf.interpolate(x, scale_factor=2, mode=m), (shape,))
        for name, mode, shape in (
            ("Nearest1D", "nearest", (2, 3, 4)), ("Nearest2D", "nearest", (2, 3, 2, 2)),
            ("Nearest3D", "nearest", (1, 3, 2, 2, 2)),
            ("NearestExact1D", "nearest-exact", (2, 3, 4)),
            ("NearestExact2D", "nearest-exact", (2, 3, 2, 2)), ("Linear1D", "linear", (2, 3, 4)),
            ("NearestExact3D", "nearest-exact", (1, 3, 2, 2, 2)),
            ("Bilinear2D", "bilinear", (2, 3, 2, 2)), ("Trilinear3D", "trilinear", (1, 3, 2, 2, 2)),
            ("Bicubic2D", "bicubic", (2, 3, 3, 3)),
        )
    ),
    ("UpsampleBilinear2DAa", _aa, ((2, 3, 4, 4),)),
    *(
        (f"{name}Pad{rank}D", _pad(rank, mode), ((2, 3, *(2,) * rank),))
        for name, mode in (("Reflection", "reflect"), ("Replication", "replicate"))
        for rank in (1, 2, 3)
    ),
    *(
        (
            "ScaledDotProductFlashAttentionForCpu",
            _attention,
            ((2, 4, 3, 4), (2, keys, 5, 4), (2, keys, 5, 4)),
        )
        for keys in (4, 2)
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operation:
    """One node of a graph with what computes it.

    Attributes:
        name: torch's name of the node.
        call: from the tensors in the graph to the output or outputs.
        positions: for each tensor, which operand of the node it is.
        operands: recorded shapes of all operands, constants included.
        outputs: shapes of the outputs.
        settings: recorded settings.
    """

    name: str
    call: Callable[..., Any]
    positions: tuple[int, ...]
    operands: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    settings: dict[str, str]


@cache
def operations() -> tuple[Operation, ...]:
    """Return every operation of the table that this machine can run."""
    torch.manual_seed(0)
    found = []
    for name, call, shapes in CALLS:
        leaves = [(torch.rand(shape) + 0.1).requires_grad_() for shape in shapes]
        out = outputs(call(*leaves))[0]
        graph = read([out], SETTINGS, {})
        node = graph.nodes[graph.roots[0][0]]
        assert node.name.startswith(f"{name}Backward"), (node.name, name)
        by_id = {id(p): i for i, p in enumerate(graph.parameters)}
        numbers = {n.parameter: i for i, n in enumerate(graph.nodes) if n.parameter is not None}
        if any(id(leaf) not in by_id for leaf in leaves):
            raise AssertionError(name)
        edges = [numbers[by_id[id(leaf)]] for leaf in leaves]
        direct = [edge and edge[0] for edge in node.inputs]
        if not set(edges) <= set(direct):
            continue
        settings = {key: str(value) for key, value in node.attrs.items()}
        positions = tuple(direct.index(edge) for edge in edges)
        found.append(
            Operation(node.name, call, positions, node.in_shapes, node.out_shapes, settings)
        )
    return tuple(found)


def outputs(result: Any) -> tuple[Tensor, ...]:
    """Return the outputs of a call as a tuple."""
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def random_span(random: Random, size: int) -> Span:
    """Return some span of an axis: often the whole, or one index."""
    choice = random.random()
    if choice < 0.5 or size == 1:
        return (0, size, size)
    period = size
    if choice > 0.9:
        period = random.choice([p for p in range(1, size + 1) if size % p == 0])
    start = random.randrange(period)
    stop = start + 1 if choice < 0.7 else random.randint(start + 1, period)
    return (start, stop, period)


def random_box(random: Random, shape: Shape) -> Box:
    """Return some box of a tensor."""
    return tuple(random_span(random, size) for size in shape)


def inside(shape: Shape, box: Box) -> Tensor:
    """Return which elements are in a box: an independent definition, element by element."""
    found = torch.ones(shape, dtype=torch.bool)
    for axis, (start, stop, period) in enumerate(box):
        place = torch.arange(shape[axis]) % period
        flags = (start <= place) & (place < stop)
        found &= flags.reshape([-1 if own == axis else 1 for own in range(len(shape))])
    return found


def obeying(shape: Shape, facts: Sequence[tuple[Fact, Box]]) -> Tensor:
    """Return random values that obey the facts, and nothing more."""
    values = torch.randn(shape) * 2
    values = torch.where(torch.rand(shape) < 0.1, torch.zeros(()), values)
    for fact, box in facts:
        where = inside(shape, box)
        if fact is Fact.NONPOSITIVE:
            values = torch.where(where, values.clamp(max=0), values)
        elif fact is Fact.NONNEGATIVE:
            values = torch.where(where, values.clamp(min=0), values)
    for fact, box in facts:
        if fact is Fact.ZERO:
            values = values.masked_fill(inside(shape, box), 0.0)
    return values


def holds(values: Tensor, fact: Fact, box: Box) -> bool:
    """Whether a fact is true of computed values, those that are no numbers left out."""
    found = values[inside(tuple(values.shape), box)]
    if not torch.isfinite(values).all():
        return True
    if fact is Fact.ZERO:
        return bool((found == 0).all())
    return bool((found <= 0).all() if fact is Fact.NONPOSITIVE else (found >= 0).all())
