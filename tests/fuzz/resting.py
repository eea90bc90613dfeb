"""Runs the real update rule of every supported optimizer, with zero gradients."""

from collections.abc import Iterator
from typing import Any, Final

import torch
from fuzz.build import seeded
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from ormas_core.certificates import optimizers
from ormas_core.certificates.optimizers import Refused, Rest, Slot

LR: Final = 0.05
STEPS: Final = 24
LOOKED_AT: Final = (0, 1, 3, 8, STEPS - 1)

VARIANTS: Final[dict[type[Optimizer], list[dict[str, Any]]]] = {
    optim.SGD: [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.5, "dampening": 0.3},
        {"momentum": 0.999},
    ],
    optim.Adam: [
        {},
        {"amsgrad": True},
        {"betas": (0.5, 0.9), "eps": 1e-4},
        {"betas": (0.9, 0.7)},
        {"betas": (0.999, 0.9999)},
    ],
    optim.AdamW: [{}, {"betas": (0.0, 0.999)}, {"eps": 1e-3}],
    optim.NAdam: [{}, {"decoupled_weight_decay": True, "eps": 1e-3}],
    optim.RAdam: [{}, {"decoupled_weight_decay": True, "eps": 1e-3}],
    optim.Adamax: [{}, {"eps": 1e-3}],
    optim.Adagrad: [{"eps": 1e-3}, {"lr_decay": 0.1, "eps": 1e-3}],
    optim.RMSprop: [{}, {"momentum": 0.5, "eps": 1e-3}],
    optim.Adadelta: [{}, {"eps": 1e-3}],
    optim.Rprop: [{}],
    optim.ASGD: [{}, {"lambd": 0.5}],
    optim.Adafactor: [{}],
}
DECAYS: Final = (0.0, 0.01, 0.4, 15.0)
"""The last one times the largest learning rate is above one: it must be refused, or rest anyway."""
FUSED: Final = {optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad}
WITHOUT_DECAY: Final = {optim.Rprop}


def settings(kind: type[Optimizer]) -> Iterator[dict[str, Any]]:
    for variant in VARIANTS[kind]:
        for decay in DECAYS if kind not in WITHOUT_DECAY else (0.0,):
            options = {**variant, **({} if kind in WITHOUT_DECAY else {"weight_decay": decay})}
            yield options
            if decay == DECAYS[1]:
                yield {**options, "foreach": True}
            if decay == DECAYS[1] and kind in FUSED:
                yield {**options, "fused": True}


def values(dtype: torch.dtype, noise: torch.Generator) -> Tensor:
    """Return zeros of both signs, large and small numbers, a matrix."""
    drawn = torch.randn(6, 8, generator=noise, dtype=torch.float64)
    drawn *= 10.0 ** torch.randint(-3, 2, (6, 8), generator=noise)
    drawn[0, :4], drawn[1, :2] = 0.0, -0.0
    return drawn.to(dtype)


def warm(optimizer: Optimizer, parameter: nn.Parameter, noise: torch.Generator) -> None:
    """Leave momentum in some elements: a few steps with gradients, of any size, in some of them."""
    size = 10.0 ** float(torch.randint(-4, 1, (1,), generator=noise))
    moved = torch.rand(parameter.shape, generator=noise) < 0.5
    for _ in range(int(torch.randint(0, 4, (1,), generator=noise))):
        gradient = torch.randn(parameter.shape, generator=noise) * moved * size
        parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()
    with torch.no_grad():  # A zero may also be planted, or be left by a repair.
        parameter[0, :4] = 0.0
        parameter[2, :2] = 0.0


def judged(optimizer: Optimizer, parameter: nn.Parameter, lr_max: float) -> Rest:
    group, state = optimizer.param_groups[0], optimizer.state.get(parameter, {})
    slot = Slot(type(optimizer), group, state, lr_max)
    return optimizers.rest(slot, parameter.detach(), lambda one: one)


def broken(before: Tensor, now: Tensor, claim: Rest) -> Tensor:
    """Return which elements do what was ruled out."""
    small = now.double().abs() < claim.floor
    signs = (before == 0) & (now != 0) | (before > 0) & (now < 0) | (before < 0) & (now > 0)
    signs &= (before == 0) | ~small
    if claim.shrinks:
        far = now.double().abs() > before.double().abs() + claim.drift
    else:
        far = (now.double() - before.double()).abs() > claim.drift
    return claim.keeps_sign & (signs | far & claim.drift.isfinite() | ~now.isfinite())


def examine(kind: type[Optimizer], dtype: torch.dtype, seed: int) -> tuple[int, list[str]]:
    """Return how many elements were claimed to rest under all settings, and which did not."""
    noise, rng = torch.Generator().manual_seed(seed), seeded(seed)
    claimed, wrong = 0, []
    for options in settings(kind):
        parameter = nn.Parameter(values(dtype, noise))
        try:
            optimizer = kind([parameter], lr=LR, **options)
            warm(optimizer, parameter, noise)
            claim = judged(optimizer, parameter, 2 * LR)
        except (Refused, RuntimeError):
            continue  # RuntimeError: no such kernel for this type.
        if not bool(parameter.isfinite().all()):
            continue
        claimed += int(claim.keeps_sign.sum())
        before = parameter.detach().clone()
        for step in range(STEPS):
            parameter.grad = torch.zeros_like(parameter) * rng.choice((1, -1))
            optimizer.param_groups[0]["lr"] = rng.choice((2 * LR, 2 * LR, LR, 1e-3 * LR))
            optimizer.step()
            if step not in LOOKED_AT:
                continue
            bad = broken(before, parameter.detach(), claim)
            if bool(bad.any()):
                moved = f"{before[bad][0]:.4g} to {parameter[bad][0]:.4g}"
                wrong.append(f"{kind.__name__} {options} step {step}: from {moved}")
                break
    return claimed, wrong
