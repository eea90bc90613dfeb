"""Update rules written out so that every element has settings of its own: thousands at once."""

from typing import Final, NamedTuple

import torch
from torch import Tensor, optim

from ormas_core.certificates import optimizers
from ormas_core.certificates.optimizers import Rest, Slot

SETTINGS: Final = 3000


class Sgd(NamedTuple):
    """Settings of SGD, one of each for every element."""

    lr: Tensor
    momentum: Tensor
    dampening: Tensor
    decay: Tensor
    nesterov: Tensor

    def step(self, value: Tensor, buffer: Tensor | None, lr: Tensor) -> tuple[Tensor, Tensor]:
        gradient = self.decay * value
        if buffer is None:
            buffer = gradient.clone()
        else:
            buffer = self.momentum * buffer + (1 - self.dampening) * gradient
        move = torch.where(self.nesterov, gradient + self.momentum * buffer, buffer)
        return value - lr * move, buffer

    def claim(self, i: int, value: Tensor, buffer: Tensor | None) -> Rest:
        group = {
            "momentum": float(self.momentum[i]),
            "dampening": float(self.dampening[i]),
            "weight_decay": float(self.decay[i]),
            "nesterov": bool(self.nesterov[i]),
        }
        state = {} if buffer is None else {"momentum_buffer": buffer[i : i + 1]}
        slot = Slot(optim.SGD, group, state, float(self.lr[i]))
        return optimizers.rest(slot, value[i : i + 1], lambda one: one)


class Adamw(NamedTuple):
    """Settings of AdamW, one of each for every element."""

    lr: Tensor
    beta1: Tensor
    beta2: Tensor
    eps: Tensor
    decay: Tensor

    def step(
        self, value: Tensor, first: Tensor, second: Tensor, count: int, lr: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        value = value * (1 - lr * self.decay)
        first, second = first + (1 - self.beta1) * (0 - first), second * self.beta2
        root = second.sqrt() / (1 - self.beta2**count).sqrt() + self.eps
        return value - lr / (1 - self.beta1**count) * first / root, first, second

    def claim(self, i: int, value: Tensor, first: Tensor, second: Tensor, count: int) -> Rest:
        group = {
            "betas": (float(self.beta1[i]), float(self.beta2[i])),
            "eps": float(self.eps[i]),
            "weight_decay": float(self.decay[i]),
        }
        state = {"step": count, "exp_avg": first[i : i + 1], "exp_avg_sq": second[i : i + 1]}
        slot = Slot(optim.AdamW, group, state, float(self.lr[i]))
        return optimizers.rest(slot, value[i : i + 1], lambda one: one)


def uniform(noise: torch.Generator, low: float, high: float, count: int = SETTINGS) -> Tensor:
    return low + (high - low) * torch.rand(count, generator=noise)


def powers(noise: torch.Generator, low: float, high: float, count: int = SETTINGS) -> Tensor:
    return 10 ** uniform(noise, low, high, count)


def sgd(noise: torch.Generator, count: int = SETTINGS) -> Sgd:
    nesterov = torch.rand(count, generator=noise) < 0.4
    dampening = torch.where(
        nesterov | (torch.rand(count, generator=noise) < 0.5), 0.0, uniform(noise, 0, 1, count)
    )
    return Sgd(
        lr=powers(noise, -3, 0.3, count),
        momentum=uniform(noise, 0.05, 0.99, count),
        dampening=dampening,
        decay=powers(noise, -4, 0.5, count),
        nesterov=nesterov,
    )


def adamw(noise: torch.Generator, count: int = SETTINGS) -> Adamw:
    drawn = torch.rand(count, generator=noise)
    return Adamw(
        lr=powers(noise, -4, -0.5, count),
        beta1=uniform(noise, 0.0, 0.95, count),
        beta2=uniform(noise, 0.7, 0.999, count),
        eps=powers(noise, -8, -3, count),
        decay=torch.where(drawn < 0.4, 0.0, powers(noise, -3, 0, count)),
    )


def schedule(lr: Tensor, step: int, noise: torch.Generator) -> Tensor:
    """Return learning rates up to `lr`: constant for some elements, of any size for others."""
    drawn = lr * torch.rand(lr.shape, generator=noise) ** 3
    return torch.where(torch.arange(len(lr)) % 3 == 0, drawn, lr if step % 7 else lr * 0.01)


class Outcome(NamedTuple):
    """What came of a run.

    Attributes:
        accepted: share of the settings of which something was claimed.
        wrong: what did not hold, one line for each step.
        above: how many values were above their floor to the end.
    """

    accepted: float
    wrong: list[str]
    above: int


def run_cone(seed: int, steps: int = 600) -> Outcome:
    """Run SGD with momentum and decay from random values and buffers, with schedules."""
    noise = torch.Generator().manual_seed(seed)
    rule = sgd(noise)
    value = torch.randn(SETTINGS, generator=noise)
    fresh = torch.rand(SETTINGS, generator=noise) < 0.3
    buffer = value * powers(noise, -4, 1) * (torch.rand(SETTINGS, generator=noise) < 0.8)
    buffer = torch.where(torch.rand(SETTINGS, generator=noise) < 0.1, -buffer, buffer)
    claims = [rule.claim(i, value, None if fresh[i] else buffer) for i in range(SETTINGS)]
    accepted = torch.tensor([bool(claim.keeps_sign) for claim in claims])
    floor = torch.tensor([claim.floor for claim in claims])
    start, alive, wrong = value, accepted.clone(), []
    first, made = rule.step(value, None, rule.lr)
    value, buffer = torch.where(fresh, first, value), torch.where(fresh, made, buffer)
    for step in range(steps):
        alive &= value.abs() >= floor
        crossed = accepted & (value * start <= 0) if step == 0 else alive & (value * start <= 0)
        if bool(crossed.any()):
            wrong.append(f"step {step}: {int(crossed.sum())} values changed sign")
        value, buffer = rule.step(value, buffer, schedule(rule.lr, step, noise))
    return Outcome(float(accepted.float().mean()), wrong, int(alive.sum()))


def run_drain(seed: int, steps: int = 400, count: int = SETTINGS // 2) -> Outcome:
    """Run AdamW from random values and momentum, with schedules."""
    noise = torch.Generator().manual_seed(seed)
    rule, taken = adamw(noise, count), 5
    second = powers(noise, -8, 0, count)
    first = second.sqrt() * torch.randn(count, generator=noise)
    start = value = torch.randn(count, generator=noise) * 3
    claims = [rule.claim(i, value, first, second, taken) for i in range(count)]
    accepted = torch.tensor([bool(claim.keeps_sign) for claim in claims])
    drift = torch.tensor([float(claim.drift) for claim in claims])
    plain, wrong = (rule.decay == 0) & drift.isfinite(), []
    for step in range(steps):
        taken += 1
        lr = schedule(rule.lr, step, noise)
        value, first, second = rule.step(value, first, second, taken, lr)
        bad = accepted & (value * start <= 0) | plain & ((value - start).abs() > drift)
        bad |= value.abs() > start.abs() + drift
        if bool(bad.any()):
            wrong.append(f"step {step}: {int(bad.sum())} values moved too far")
    return Outcome(float(accepted.float().mean()), wrong, int(accepted.sum()))
