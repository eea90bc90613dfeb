"""Small networks with planted dead units, for the tests of the checker. No test here."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from checker_transformers import TRANSFORMERS, Case, column, dead
from torch import Tensor, nn
from torch.nn import functional

from ormas_core.certification import certify
from ormas_core.claims import Claim


class Net(nn.Module):
    """Layers by name and a forward pass as a function of them and of the inputs."""

    def __init__(self, run: Callable[..., Tensor], **layers: Any) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.run = run

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.run(self, *inputs)


def _loss(*inputs: Tensor) -> Callable[[nn.Module], Tensor]:
    def loss(model: nn.Module) -> Tensor:
        found: Tensor = model(*inputs).square().mean()
        return found

    return loss


def _norm(kind: type[nn.Module], channels: int, *unit: int) -> nn.Module:
    norm = kind(channels)
    with torch.no_grad():
        norm.bias.fill_(0.3)
        norm.bias[list(unit)] = -0.2
    return norm


def _gate(gate: Callable[[Tensor], Tensor], kind: Any = nn.Conv2d, **options: Any) -> Case:
    """Conv, batch norm, a gate, and a head that reads all."""
    axes = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}[kind]
    norm = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[axes]
    groups = options.get("groups", 1)

    def run(net: Any, x: Tensor) -> Tensor:
        out: Tensor = net.head(gate(net.norm(net.conv(x))).flatten(2).mean(2))
        return out

    net = Net(
        run,
        conv=dead(kind(2 * groups, 6, 3, bias=False, **options), 3),
        norm=_norm(norm, 6, 3),
        head=nn.Linear(6, 4),
    )
    return net, _loss(torch.randn(3, 2 * groups, *(6,) * axes))


def _linear(*extra: int) -> Case:
    """Linear, batch norm on (N, C) or (N, C, L), relu."""

    def run(net: Any, x: Tensor) -> Tensor:
        y = net.norm(net.fc(x).movedim(-1, 1))
        out: Tensor = net.head(functional.relu(y).movedim(1, -1))
        return out

    fc, norm = dead(nn.Linear(4, 6, bias=False), 2), _norm(nn.BatchNorm1d, 6, 2)
    return Net(run, fc=fc, norm=norm, head=nn.Linear(6, 3)), _loss(torch.randn(5, *extra, 4))


def _zero_scale() -> Case:
    net, loss = _gate(functional.relu)
    with torch.no_grad():
        net.conv.weight.normal_()  # type: ignore[operator, union-attr]
        net.norm.weight[3] = 0  # type: ignore[index, operator, union-attr]
    return net, loss


def _pooled() -> Case:
    """Bias-free convolutions with relu, max and average pooling between."""

    def run(net: Any, x: Tensor) -> Tensor:
        y = functional.max_pool2d(functional.relu(net.first(x)), 2)
        y = functional.interpolate(
            functional.avg_pool2d(functional.relu(net.second(y)), 2), scale_factor=2
        )
        out: Tensor = net.head(functional.adaptive_avg_pool2d(y, 1).flatten(1))
        return out

    first, second = dead(nn.Conv2d(2, 5, 3), 1), dead(nn.Conv2d(5, 5, 3, padding=1), 4)
    net = Net(run, first=first, second=second, head=nn.Linear(5, 2))
    return net, _loss(torch.randn(2, 2, 10, 10))


def _residual() -> Case:
    """A residual branch whose filter row and norm scale are both zero."""

    def run(net: Any, x: Tensor) -> Tensor:
        y = net.stem(x)
        y = functional.relu(y + net.norm(net.conv(y)))
        out: Tensor = net.head(y.mean((2, 3)))
        return out

    norm = _norm(nn.BatchNorm2d, 4, 2)
    with torch.no_grad():
        norm.weight[2] = 0  # type: ignore[index, operator]
        norm.bias[2] = 0  # type: ignore[index, operator]
    conv = dead(nn.Conv2d(4, 4, 3, padding=1, bias=False), 2)
    net = Net(run, stem=nn.Conv2d(2, 4, 1), conv=conv, norm=norm, head=nn.Linear(4, 2))
    return net, _loss(torch.randn(3, 2, 5, 5))


def _dying() -> Case:
    """A relu unit with nonpositive weights behind a relu: no input opens it."""

    def run(net: Any, x: Tensor) -> Tensor:
        out: Tensor = net.head(functional.relu(net.fc(functional.relu(net.stem(x)))))
        return out

    fc = nn.Linear(6, 5)
    with torch.no_grad():
        fc.weight[3] = -fc.weight[3].abs()
        fc.bias[3] = -0.1
    return Net(run, stem=nn.Linear(4, 6), fc=fc, head=nn.Linear(5, 2)), _loss(torch.randn(3, 4))


def _mlp(act: Callable[[Tensor], Tensor]) -> Case:
    """A hidden unit with a zero row, bias and column; a layer norm before it."""

    def run(net: Any, x: Tensor) -> Tensor:
        out: Tensor = x + net.down(act(net.up(net.norm(x))))
        return out

    net = Net(
        run,
        norm=nn.LayerNorm(4),
        up=dead(nn.Linear(4, 8), 5),
        down=column(nn.Linear(8, 4), 5),
    )
    return net, _loss(torch.randn(2, 3, 4))


def _gated(*names: str) -> Case:
    """SwiGLU: gate and up rows zero, or up row and down column."""

    def run(net: Any, x: Tensor) -> Tensor:
        out: Tensor = net.down(functional.silu(net.gate(x)) * net.up(x))
        return out

    layers = {name: nn.Linear(4, 6, bias=False) for name in ("gate", "up")}
    layers["down"] = nn.Linear(6, 4, bias=False)
    for name in names:
        (column if name == "down" else dead)(layers[name], 2)
    return Net(run, **layers), _loss(torch.randn(2, 3, 4))


def _attention(*names: str, fused: bool, keys: int = 4) -> Case:
    """Four query heads of three features, on `keys` heads of keys and values."""
    heads, size = 4, 3

    def split(x: Tensor, count: int) -> Tensor:
        return x.view(*x.shape[:2], count, size).transpose(1, 2)

    def run(net: Any, x: Tensor) -> Tensor:
        q, k, v = split(net.q(x), heads), split(net.k(x), keys), split(net.v(x), keys)
        if fused:
            y = functional.scaled_dot_product_attention(q, k, v, enable_gqa=keys != heads)
        else:
            k, v = (
                t[:, :, None]
                .expand(-1, -1, heads // keys, -1, -1)
                .reshape(x.shape[0], heads, -1, size)
                for t in (k, v)
            )
            y = (q @ k.transpose(-1, -2) / size**0.5).softmax(-1) @ v
        out: Tensor = net.o(y.transpose(1, 2).reshape(*x.shape[:2], -1))
        return out

    layers = {name: nn.Linear(8, size * heads) for name in "q"}
    layers |= {name: nn.Linear(8, size * keys) for name in "kv"}
    layers["o"] = nn.Linear(size * heads, 8)
    group = heads // keys
    for name in names:
        if name == "o":
            column(layers["o"], *range(size * group, 2 * size * group))
        else:
            wide = group if name == "q" else 1
            dead(layers[name], *range(size * wide, 2 * size * wide))
    return Net(run, **layers), _loss(torch.randn(2, 5, 8))


def _adapter() -> Case:
    """A low-rank pair with one rank zero on both sides."""

    def run(net: Any, x: Tensor) -> Tensor:
        out: Tensor = net.base(x) + 2.0 * net.b(functional.dropout(net.a(x), 0.1))
        return out

    a, b = dead(nn.Linear(6, 3, bias=False), 1), column(nn.Linear(3, 6, bias=False), 1)
    return Net(run, base=nn.Linear(6, 6), a=a, b=b), _loss(torch.randn(4, 6))


def _moves(move: Callable[[Tensor], Tensor]) -> Case:
    """Two dead units behind operations that move elements of (batch, 6, 4)."""

    def run(net: Any, x: Tensor) -> Tensor:
        y = move(functional.relu(net.fc(x)).view(-1, 6, 4))
        return y.sin() + 1

    fc = nn.Linear(5, 24)
    dead(fc, 0, 9)
    return Net(run, fc=fc), _loss(torch.randn(3, 5))


def _group_norm() -> Case:
    """A group of channels that is zero, behind a relu that its shift closes."""

    def run(net: Any, x: Tensor) -> Tensor:
        out: Tensor = functional.relu(net.norm(net.conv(x)))
        return out

    norm = nn.GroupNorm(3, 6)
    with torch.no_grad():
        norm.bias.fill_(0.3)
        norm.bias[2:4] = -0.3
    conv = dead(nn.Conv2d(2, 6, 3), 2, 3)
    return Net(run, conv=conv, norm=norm), _loss(torch.randn(2, 2, 5, 5))


def _embedded() -> Case:
    """Tokens, a scale of zero in a layer norm, and log probabilities."""

    def run(net: Any, tokens: Tensor) -> Tensor:
        y = net.norm(net.table(tokens) + net.table.weight.mean(0))
        out: Tensor = net.out(functional.relu(net.fc(y))).log_softmax(-1)
        return out

    fc = dead(nn.Linear(6, 5), 2)
    net = Net(run, table=nn.Embedding(9, 6), norm=nn.LayerNorm(6), fc=fc, out=nn.Linear(5, 9))
    return net, _loss(torch.randint(0, 9, (2, 4)))


def _bounded(kind: type[nn.Module] = nn.BatchNorm2d) -> Case:
    """A channel whose scale is too small for its shift, for any batch of moderate size."""
    net, loss = _gate(functional.relu)
    with torch.no_grad():
        net.conv.weight.normal_()  # type: ignore[operator, union-attr]
        net.norm.weight[3] = 1e-4  # type: ignore[index, operator, union-attr]
    return net, loss


def _bounded_sum(layer: nn.Module, features: Sequence[int]) -> Case:
    """A channel whose bias is far below zero, for any input of moderate size."""
    net = Net(lambda net, x: net.head(functional.relu(net.layer(x)).flatten(1)), layer=layer)
    net.head = nn.LazyLinear(3)
    with torch.no_grad():
        layer.bias[2] = -50.0  # type: ignore[index, operator]
    x = torch.randn(4, *features)
    net(x)
    return net, _loss(x)


CASES: dict[str, Callable[[], Case]] = {
    "relu": lambda: _gate(functional.relu),
    "relu in place": lambda: _gate(lambda x: functional.relu(x, inplace=True)),
    "relu6": lambda: _gate(functional.relu6),
    "hardtanh": lambda: _gate(lambda x: functional.hardtanh(x, 0.0, 3.0)),
    "clamp": lambda: _gate(lambda x: x.clamp(min=1e-3)),
    "threshold": lambda: _gate(lambda x: functional.threshold(x, 0.0, 0.0)),
    "grouped": lambda: _gate(functional.relu, groups=2),
    "depthwise": lambda: _gate(functional.relu, groups=3),
    "strided": lambda: _gate(functional.relu, stride=2, padding=1, dilation=2),
    "conv1d": lambda: _gate(functional.relu, nn.Conv1d),
    "conv3d": lambda: _gate(functional.relu, nn.Conv3d),
    "linear": _linear,
    "linear with length": lambda: _linear(7),
    "zero scale": _zero_scale,
    "pooled": _pooled,
    "residual": _residual,
    "dying relu": _dying,
    "gelu": lambda: _mlp(functional.gelu),
    "gelu tanh": lambda: _mlp(lambda x: functional.gelu(x, approximate="tanh")),
    "elu": lambda: _mlp(functional.elu),
    "leaky": lambda: _mlp(lambda x: functional.leaky_relu(x, 0.1)),
    "square": lambda: _mlp(lambda x: x.square() - 0.5 * x.abs()),
    "divided": lambda: _mlp(lambda x: x / (1 + x.exp())),
    "gate and up": lambda: _gated("gate", "up"),
    "up and down": lambda: _gated("up", "down"),
    "qk fused": lambda: _attention("q", "k", fused=True),
    "vo fused": lambda: _attention("v", "o", fused=True),
    "qk explicit": lambda: _attention("q", "k", fused=False),
    "vo explicit": lambda: _attention("v", "o", fused=False),
    "qk grouped": lambda: _attention("q", "k", fused=True, keys=2),
    "vo grouped": lambda: _attention("v", "o", fused=True, keys=2),
    "qk grouped explicit": lambda: _attention("q", "k", fused=False, keys=2),
    "vo grouped explicit": lambda: _attention("v", "o", fused=False, keys=2),
    "adapter": _adapter,
    "group norm": _group_norm,
    "embedded": _embedded,
    "bounded": _bounded,
    "bounded linear": lambda: _bounded_sum(nn.Linear(5, 6), (5,)),
    "bounded conv": lambda: _bounded_sum(nn.Conv2d(2, 6, 3), (2, 5, 5)),
    "slices": lambda: _moves(lambda x: torch.cat([x[:, ::2], x[:, 1:4]], 1)),
    "select": lambda: _moves(lambda x: x[:, 2] * x.select(2, 1)[:, :4]),
    "permuted": lambda: _moves(lambda x: x.permute(2, 0, 1).flip(0).roll(2, 2).unsqueeze(1)),
    "rolled flat": lambda: _moves(lambda x: x.roll(5)),
    "split": lambda: _moves(lambda x: torch.cat(x.split([1, 2, 3], 1)[::-1], 1)),
    "chunks": lambda: _moves(lambda x: x.chunk(2, 2)[0] + x.chunk(2, 2)[1]),
    "unbound": lambda: _moves(lambda x: torch.stack(x.unbind(1)[::-1], 2)),
    "unused": lambda: _moves(lambda x: torch.stack(x.unbind(1)[:3], 2)),
    "repeated": lambda: _moves(lambda x: functional.pad(x.repeat(1, 2, 3), (1, 1, -1, 2))),
    "expanded": lambda: _moves(lambda x: x[:, :, None].expand(-1, -1, 3, -1).reshape(3, 18, 4)),
    "reduced": lambda: _moves(lambda x: x.mean(0) + x.sum((1, 2)).mean() + x.amax(2, True).mean()),
    **TRANSFORMERS,
}


@cache
def claims(name: str) -> tuple[Claim, ...]:
    """Return what the engine claims of a case, under plain SGD."""
    torch.manual_seed(0)
    model, loss_of = CASES[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return certify(model, optimizer, loss_of(model)).claims
