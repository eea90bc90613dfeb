"""Bounded claims, trained on with the worst inputs within the limits that they state."""

import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from fuzz.build import seeded
from torch import Tensor, nn, optim
from torch.nn import functional as fn
from torch.optim import Optimizer

from ormas_core import certify
from ormas_core.claims import CertificateClass, Claim

CHANNELS: Final = 24
_MOST: Final = 256
"""Elements of a channel that are tried where the limit allows more."""
_STEPS: Final = 8


def attacks(m: int, x_max: float, dtype: torch.dtype) -> Tensor:
    """Return inputs of at most x_max in size, shape (m, attacks): spikes, offsets, near constants.

    A spike attains |x_hat| = sqrt(m - 1); one of a few units in the last place upon a large mean
    is where the mean is worst rounded.
    """
    top = torch.tensor(x_max, dtype=dtype)
    if top.double() > x_max:
        top = torch.nextafter(top, torch.zeros((), dtype=dtype))
    columns = []
    for base in (top, top / 3, top / 17, top / 120, torch.zeros_like(top)):
        spacing = torch.nextafter(base, top + top) - base
        spikes = [-top, -base, base / 2, *(base - k * spacing for k in (1, 2, 3, max(1, m // 2)))]
        for spike in (spike.to(dtype) for spike in spikes):
            for place in (0, m // 2, m - 1):
                column = base.expand(m).clone()
                column[place] = spike
                columns += [column, -column]
        columns += [base.expand(m), -base.expand(m)]
    columns += list((top * torch.linspace(0.5, 1.0, 16).to(dtype)).expand(m, 16).T)
    for spread in (2.0, 1e-3):
        near = top.double() * (1 - spread * torch.rand(m, 8, dtype=torch.float64))
        columns += list(near.to(dtype).clamp(-top, top).T)
    return torch.stack(columns * 2, dim=1)  # half of the channels have a negative scale


def worst(layer: Any, size: float, shape: tuple[int, ...]) -> Tensor:
    """Return a batch with, for each channel, the input whose every product has the bias's reverse.

    Where the input is larger than the kernel it is tiled with it, so that many places come close.
    """
    rows = []
    groups = getattr(layer, "groups", 1)
    for channel, weight in enumerate(layer.weight.detach()):
        row = torch.zeros(shape)
        own = channel // (len(layer.weight) // groups) * weight.shape[0] if groups > 1 else 0
        pattern = weight.sign() * size
        for axis, length in enumerate(shape[1:], start=1):
            index = torch.arange(length) % weight.shape[axis]
            pattern = pattern.index_select(axis, index)
        row[own : own + weight.shape[0]] = pattern
        rows += [row, row.flip(-1), size * torch.sign(torch.randn(shape))]
    return torch.stack(rows)


class Normed(nn.Module):
    """A layer that hands on its input, a batch norm and ReLU; its shift may be used once more."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.first = nn.Linear(CHANNELS, CHANNELS, bias=False)
        self.main = nn.BatchNorm1d(CHANNELS)
        self.elements, self.again = rng.choice((3, 20, 64)), rng.random() < 0.3

    def plant(self) -> None:
        """Put some shifts so far below zero that batches of about this size open nothing."""
        room = (self.elements - 1) ** 0.5 * (1 + 2 * torch.rand(CHANNELS) ** 3)
        scale = torch.randn(CHANNELS)
        nn.init.eye_(self.first.weight)
        self.main.weight.copy_(scale)
        self.main.bias.copy_(torch.where(torch.rand(CHANNELS) < 0.7, -scale.abs() * room, 0.1))

    def batch(self, limits: dict[str, float], rng: random.Random, dtype: torch.dtype) -> Tensor:
        most = int(min(limits.get("m_max", self.elements), _MOST))
        m = rng.choice((most, most, self.elements, 2))
        columns = attacks(m, limits["x_max"], dtype)
        spikes = torch.zeros(m, CHANNELS, dtype=dtype)
        spikes[0] = self.main.weight.sign() * columns.abs().max()
        others = columns[:, torch.randint(columns.shape[1], (CHANNELS,))]
        return torch.where(torch.rand(CHANNELS) < 0.5, spikes, others)

    def plain(self) -> Tensor:
        return torch.randn(self.elements, CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        out = fn.relu(self.main(self.first(x)))
        return out - 10 * self.main.bias if self.again else out


class Summed(nn.Module):
    """A linear layer with biases far below zero, and ReLU."""

    def __init__(self, _: random.Random) -> None:
        super().__init__()
        self.main = nn.Linear(32, CHANNELS)

    def plant(self) -> None:
        """Put some biases far below zero."""
        nn.init.normal_(self.main.weight, std=0.2)
        self.main.bias.copy_(torch.where(torch.rand(CHANNELS) < 0.7, -10 - 40 * torch.rand(1), 0.1))

    def batch(self, limits: dict[str, float], rng: random.Random, dtype: torch.dtype) -> Tensor:
        return worst(self.main, limits["input_max"], (32,)).to(dtype)

    def plain(self) -> Tensor:
        return torch.randn(4, 32)

    def forward(self, x: Tensor) -> Tensor:
        return fn.relu(self.main(x))


class Elsewhere(Summed):
    """Each channel by itself, with biases far below zero; its weights are used once more."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.first = nn.Conv1d(CHANNELS, CHANNELS, 1, groups=CHANNELS, bias=False)
        self.main: Any = nn.Conv1d(CHANNELS, CHANNELS, 3, groups=CHANNELS)
        self.again = rng.random() < 0.7

    def plant(self) -> None:
        """Put some biases far below zero, and hand on the input."""
        super().plant()
        nn.init.ones_(self.first.weight)

    def batch(self, limits: dict[str, float], rng: random.Random, dtype: torch.dtype) -> Tensor:
        return worst(self.main, limits["input_max"], (CHANNELS, 3)).to(dtype)

    def plain(self) -> Tensor:
        return torch.randn(4, CHANNELS, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(self.first(x))
        weight = self.main.weight
        return out - 10 * fn.conv1d(x.sign(), weight, groups=CHANNELS).abs() if self.again else out


NETS: Final[dict[str, Callable[[random.Random], Any]]] = {
    "bounded norm": Normed,
    "bounded sum": Summed,
    "bounded sum, elsewhere": Elsewhere,
}


class Verdict(NamedTuple):
    """What came of one network.

    Attributes:
        units: how many were certified within limits.
        steps: how many steps of attack they stood.
        wrong: what did not hold.
    """

    units: int
    steps: int
    wrong: str


def _optimizer(net: Any, rng: random.Random) -> Optimizer:
    """Return one whose decay may be apart for biases, and shrink much in a step."""
    decay, other = (rng.choice((0.0, 0.0, 0.4)) for _ in range(2))
    biases = [net.main.bias]
    others = [p for p in net.parameters() if p is not net.main.bias]
    groups: list[dict[str, Any]] = (
        [{"params": others, "weight_decay": decay}, {"params": biases, "weight_decay": other}]
        if rng.random() < 0.5
        else [{"params": [*others, *biases], "weight_decay": decay}]
    )
    if rng.random() < 0.4:
        return optim.AdamW(groups, lr=rng.choice((0.1, 1.0)), betas=(0.5, 0.9))
    return optim.SGD(groups, lr=rng.choice((0.1, 1.0)), momentum=rng.choice((0.0, 0.5, 0.9)))


def examine(kind: str, seed: int) -> Verdict:
    """Certify one random network, and train it on with the worst that a claim allows."""
    rng = seeded(seed)
    torch.manual_seed(seed)
    dtype, autocast = rng.choice(
        ((torch.float32, False), (torch.bfloat16, False), (torch.float64, False))
        if kind == "bounded norm"
        else ((torch.float32, False), (torch.float64, False), (torch.float32, True))
    )
    net = NETS[kind](rng).to(dtype)
    optimizer = _optimizer(net, rng)

    def backward(x: Tensor, factor: float = 1.0) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = net(x.to(dtype))
            loss: Tensor = factor * (out * torch.randn_like(out)).float().sum()
        loss.backward()
        return loss

    factor = rng.choice((1.0, 1e-2, 1e-3))
    for _ in range(rng.choice((0, 2))):
        backward(net.plain(), factor)
        optimizer.step()
    with torch.no_grad():
        net.plant()
    if hasattr(net, "first"):
        optimizer.state.pop(net.first.weight, None)  # it goes on handing on its input
    lr_max = 2 * optimizer.param_groups[0]["lr"]
    found = certify(net, optimizer, backward(net.plain()), lr_max=lr_max)
    for refusal in found.refused:
        if "the proof " in refusal.reason:
            return Verdict(0, 0, f"{kind}, seed {seed}: {refusal.layer}: {refusal.reason}")
    claims = [claim for claim in found if claim.cls is CertificateClass.BOUNDED]
    if not claims:
        return Verdict(0, 0, "")
    claim = rng.choice(claims)
    limits = {condition.name: condition.value for condition in claim.conditions}
    for step in range(_STEPS):
        with torch.no_grad():
            x = net.batch(limits, rng, dtype)
        backward(x)
        if not _small_enough(net, claim, limits):
            return Verdict(len(claim.units), step, "")
        gradient = net.get_submodule(claim.layer).weight.grad[list(claim.units)]
        if bool((gradient != 0).any()):
            what = f"{claim.layer} {claim.units} has gradient {float(gradient.abs().max()):.3g}"
            text = f"{kind}, seed {seed}, step {step}, {dtype}, {limits}: {what}"
            return Verdict(len(claim.units), step, text)
        for group in optimizer.param_groups:
            group["lr"] = lr_max * rng.choice((1.0, 1.0, 0.5))
        optimizer.step()
    return Verdict(len(claim.units), _STEPS, "")


def _small_enough(net: Any, claim: Claim, limits: dict[str, float]) -> bool:
    """Whether every number is finite, and the values are as large as the claim asks."""
    bias = net.main.bias.detach()[list(claim.units)]
    finite = all(
        bool(p.isfinite().all()) and bool(p.grad.isfinite().all()) for p in net.parameters()
    )
    return finite and bool((bias.abs() >= limits.get("value_min", 0.0)).all())
