"""Networks to repair, the loop that trains them, and what a repair changed. No test lives here."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ormas_core import MemorySink, Monitor, Repair

State = dict[str, Tensor]


class Channels(nn.Module):
    """conv -> norm -> ReLU -> conv -> ReLU -> head, so that the first layer's channels can die."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.conv = nn.Conv2d(2, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.after = nn.Conv2d(8, 4, 3)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.relu(self.norm(self.conv(x)))
        return self.head(nn.functional.relu(self.after(x)).mean((2, 3)))


class Mlp(nn.Module):
    """A GELU block with a residual path around it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.up = nn.Linear(6, 8)
        self.down = nn.Linear(8, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.down(nn.functional.gelu(self.up(x))))


class Gated(nn.Module):
    """A SwiGLU block with a residual path around it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.gate = nn.Linear(6, 8, bias=False)
        self.up = nn.Linear(6, 8, bias=False)
        self.down = nn.Linear(8, 6, bias=False)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.down(nn.functional.silu(self.gate(x)) * self.up(x)))


class Attention(nn.Module):
    """Self-attention of two heads of three features over five positions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.q, self.k, self.v, self.o = (nn.Linear(6, 6) for _ in range(4))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 5, 6)
        q, k, v = (
            layer(x).view(x.shape[0], 5, 2, 3).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        return self.head((x + self.o(y)).mean(1))


class Adapter(nn.Module):
    """A low-rank pair beside a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.base = nn.Linear(6, 6).requires_grad_(requires_grad=False)
        self.a = nn.Linear(6, 4, bias=False)
        self.b = nn.Linear(4, 6, bias=False)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x) + self.b(self.a(x)))


class Branch(nn.Module):
    """A residual branch that ends in a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.stem = nn.Conv2d(2, 6, 1)
        self.conv = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head((x + self.norm(self.conv(x))).mean((2, 3)))


IMAGES = (8, 2, 8, 8)
VECTORS = (10, 6)
CERTIFIED = (3, 5)
"""The channels of `Channels` that `plant_certified` closes."""


@torch.no_grad()
def plant_certified(net: Channels) -> Channels:
    """Close channel 3 by a zero filter and 5 by a zero scale."""
    net.norm.bias.fill_(0.1)
    net.conv.weight[3], net.conv.bias[3], net.norm.bias[3] = 0, 0, -0.1
    net.norm.weight[5], net.norm.bias[5] = 0, -0.2
    return net


@torch.no_grad()
def plant_flat(net: Channels, channel: int = 2) -> Channels:
    """Let a channel be constant and positive."""
    net.norm.bias.fill_(0.1)
    net.conv.weight[channel], net.conv.bias[channel], net.norm.bias[channel] = 0, 0, 0.3
    return net


@torch.no_grad()
def plant_decayed(net: Channels, channel: int = 4) -> Channels:
    """Let the scale of a channel be almost zero."""
    net.norm.weight[channel], net.norm.bias[channel] = 1e-5, 1e-3
    return net


@torch.no_grad()
def plant_silent(net: Channels, channel: int = 6) -> Channels:
    """Let a channel put out nothing on ordinary data, and have a scale like the others."""
    net.norm.bias[channel] = -8.0
    return net


def losses(net: nn.Module) -> Iterator[Tensor]:
    """Yield the loss of each batch of a network of this module."""
    attention = isinstance(net, Attention)
    images = isinstance(net, Channels | Branch)
    generator = torch.Generator().manual_seed(11)
    shape = IMAGES if images else (50, 6) if attention else VECTORS
    while True:
        x = torch.randn(shape, generator=generator)
        rows = 10 if attention else shape[0]
        yield nn.functional.cross_entropy(net(x), torch.randint(0, 3, (rows,), generator=generator))


def train(
    net: nn.Module,
    optimizer: Optimizer | None,
    step: Callable[[Tensor], None],
    steps: int,
    source: Iterator[Tensor] | None = None,
) -> None:
    """Train as a user would."""
    source = losses(net) if source is None else source
    for _ in range(steps):
        net.zero_grad()
        loss = next(source)
        loss.backward()
        step(loss)
        if optimizer is not None:
            optimizer.step()


def sgd(net: nn.Module, lr: float = 0.05) -> torch.optim.SGD:
    """Return plain SGD."""
    return torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=lr)


def snapshot(net: nn.Module, optimizer: Optimizer | None = None) -> State:
    """Return a copy of weights, buffers, gradients and optimizer state, by name."""
    found = {name: value.detach().clone() for name, value in net.state_dict().items()}
    for name, parameter in net.named_parameters():
        if parameter.grad is not None:
            found[f"{name}.grad"] = parameter.grad.clone()
        for key, state in optimizer.state.get(parameter, {}).items() if optimizer else ():
            found[f"{name}:{key}"] = torch.as_tensor(state).clone()
    return found


def changed(before: State, after: State) -> dict[str, list[list[int]]]:
    """Return the indices of all elements whose bits differ, by name."""
    assert before.keys() == after.keys()
    found = {}
    for name, old in before.items():
        kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
        kind = kinds[old.element_size()]
        differs = old.contiguous().view(kind) != after[name].contiguous().view(kind)
        if differs.any():
            found[name] = differs.nonzero().tolist()
    return found


class Watched:
    """A monitor's step that notes what it changed.

    Attributes:
        changes: for each step, what `changed` says of it.
    """

    def __init__(self, monitor: Monitor, net: nn.Module, optimizer: Optimizer | None) -> None:
        self._monitor, self._net, self._optimizer = monitor, net, optimizer
        self.changes: list[dict[str, list[list[int]]]] = []
        self.after: State = {}

    def __call__(self, loss: Tensor) -> None:
        before = snapshot(self._net, self._optimizer)
        self._monitor.step(loss)
        self.after = snapshot(self._net, self._optimizer)
        self.changes.append(changed(before, self.after))

    def steps(self) -> list[int]:
        """Return the steps at which anything was changed."""
        return [step for step, change in enumerate(self.changes) if change]


def repairs(sink: MemorySink) -> list[Repair]:
    """Return the repairs of a run, refused ones too."""
    return [event for event in sink.events if isinstance(event, Repair)]
