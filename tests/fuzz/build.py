"""What the grammar builds networks from: parameters with planted facts, and steps on tensors."""

import random
from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

Shape = tuple[int, ...]
Step = Callable[[Tensor], Tensor]

ACTIVATIONS: Final[dict[str, Step]] = {
    "relu": fn.relu,
    "relu_": lambda x: fn.relu_(x.clone()),
    "relu6": fn.relu6,
    "hardtanh": lambda x: fn.hardtanh(x, -0.5, 2.0),
    "hardtanh_": lambda x: fn.hardtanh_(x.clone(), 0.0, 3.0),
    "clamp": lambda x: x.clamp(0.0, 4.0),
    "clamp_min": lambda x: x.clamp_min(0.0),
    "clamp_max": lambda x: x.clamp_max(0.0),
    "threshold": lambda x: fn.threshold(x, 0.1, -0.3),
    "gelu": fn.gelu,
    "gelu tanh": lambda x: fn.gelu(x, approximate="tanh"),
    "gelu by hand": lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.04 * torch.pow(x, 3)))),
    "silu": fn.silu,
    "silu by hand": lambda x: x * torch.sigmoid(x),
    "relu squared": lambda x: fn.relu(x).square(),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "elu": fn.elu,
    "elu_": lambda x: fn.elu_(x.clone()),
    "mish": fn.mish,
    "softplus": fn.softplus,
    "leaky": fn.leaky_relu,
    "hardswish": fn.hardswish,
    "hardsigmoid": fn.hardsigmoid,
    "abs": torch.abs,
    "minimum": lambda x: torch.minimum(x, torch.zeros_like(x)),
    "maximum": lambda x: torch.maximum(x, torch.zeros_like(x)),
    "where": lambda x: torch.where(x > 0, x, 0.5 * x),
    "dropout": lambda x: fn.dropout(x, 0.3),
}


def seeded(seed: int) -> random.Random:
    """Return draws that are the same on every machine."""
    return random.Random(seed)


class Drawn(NamedTuple):
    """How many of a network's planted facts are of which kind, drawn once for each network."""

    whole: float
    signs: float
    theme: float
    tiny: float


class Build:
    """The random choices of one network, and the parameters they made."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.rng = seeded(seed)
        self.noise = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)  # For dropout, and modules that initialise themselves.
        self.dtype = dtype
        self.parameters: list[tuple[str, nn.Parameter]] = []
        self.notes: list[str] = []
        draw = self.rng.random
        self.drawn = Drawn(0.25 * draw(), 0.3 * draw(), 0.4 + 0.6 * draw(), 0.2 * draw())
        self.dead = [i for i in range(4) if draw() < 0.4]

    def note(self, text: str) -> None:
        """Say what was built, for whoever reads a counterexample."""
        self.notes.append(text)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def act(self) -> Step:
        """Return an activation; half of the time one that can close."""
        likely = ("relu", "relu_", "relu6", "hardtanh_", "clamp", "clamp_min", "relu squared")
        name = self.rng.choice(likely if self.chance(0.5) else tuple(ACTIVATIONS))
        self.note(name)
        return ACTIVATIONS[name]

    def weight(self, *shape: int, scale: float = 0.7) -> nn.Parameter:
        """Return a new parameter; `plant` gives it facts later."""
        values = torch.randn(shape, generator=self.noise) * scale
        made = nn.Parameter(values.to(self.dtype))
        self.parameters.append((f"p{len(self.parameters)}", made))
        return made

    def vector(self, size: int, centre: float = 0.0) -> nn.Parameter:
        made = self.weight(size, scale=0.3)
        with torch.no_grad():
            made += centre
        return made

    def maybe_vector(self, size: int, centre: float = 0.0) -> nn.Parameter | None:
        return self.vector(size, centre) if self.chance(0.6) else None

    def plant(self) -> None:
        """Give the parameters zeros and signs: as wholes, by sign, by rows and columns, tiny."""
        with torch.no_grad():
            for _, parameter in self.parameters:
                self._plant(parameter)

    def _plant(self, parameter: Tensor) -> None:
        drawn = self.drawn
        if self.chance(drawn.signs):
            parameter.abs_()
            if self.chance(0.6):
                parameter.neg_()
        if self.chance(drawn.tiny):
            parameter.mul_(1e-3)
        if self.chance(drawn.whole):
            parameter.zero_()
        if self.chance(0.05):
            parameter[torch.rand(parameter.shape, generator=self.noise) < 0.5] = 0.0
        if self.chance(0.02):
            parameter.neg_()  # Also makes negative zeros.
        for axis in range(min(parameter.dim(), 2)):
            if self.chance(drawn.theme):
                self._plant_theme(parameter, axis)

    def _plant_theme(self, parameter: Tensor, axis: int) -> None:
        size = parameter.shape[axis]
        index = [i for i in range(size) if i % 4 in self.dead]
        if not index:
            return
        lines = parameter.index_select(axis, torch.tensor(index))
        if (parameter.dim() == 1 and self.chance(0.6)) or self.chance(0.15):
            changed = -lines.abs()
        else:
            changed = torch.zeros_like(lines)
        parameter.index_copy_(axis, torch.tensor(index), changed)


def chain(*steps: Step) -> Step:
    """Return the steps one after the other."""

    def run(x: Tensor) -> Tensor:
        for step in steps:
            x = step(x)
        return x

    return run
