"""Each optimizer's real update rule, run with zero gradients, against what is claimed of it."""

import math
from typing import Any, Final

import pytest
import torch
from fuzz.resting import LR, VARIANTS, examine, judged
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from ormas_core.certificates.optimizers import SUPPORTED, Refused, Rest, Slot, lr_ceiling, rest

DTYPES: Final = (torch.float32, torch.bfloat16, torch.float64, torch.float16)


def everywhere(state: Tensor) -> Tensor:
    return state


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", VARIANTS, ids=lambda kind: kind.__name__)
def test_what_is_claimed_to_rest_rests(kind: type[Optimizer], dtype: torch.dtype) -> None:
    """Under zero gradients no element that is claimed to rest changes sign, or drifts too far."""
    claimed, wrong = examine(kind, dtype, seed=5)
    assert not wrong
    assert claimed, "nothing was claimed"


def test_every_supported_optimizer_is_run() -> None:
    """No optimizer is supported without running its update rule here."""
    assert set(VARIANTS) == set(SUPPORTED)


def one(kind: type, value: float, state: dict[str, float], **group: Any) -> Rest:
    """Judge one element, of double precision, with its state."""
    kept = {name: torch.tensor([number], dtype=torch.float64) for name, number in state.items()}
    settings = {"lr": LR, "eps": 1e-8, "betas": (0.9, 0.999), "step": 1, **group}
    slot = Slot(kind, settings, kept, lr_max=group.get("lr", LR))
    return rest(slot, torch.tensor([value], dtype=torch.float64), everywhere)


def refusal(kind: type, dtype: torch.dtype = torch.float32, **group: Any) -> str:
    """Return why nothing is said about a parameter of this optimizer."""
    slot = Slot(kind, {"lr": LR, **group}, {}, lr_max=group.get("lr", LR))
    with pytest.raises(Refused) as refused:
        rest(slot, torch.zeros(2, dtype=dtype), everywhere)
    return str(refused.value)


ADAM: Final = {"betas": (0.9, 0.999)}


@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam])
def test_an_eps_that_is_zero_in_the_type_is_refused(kind: type[Optimizer]) -> None:
    """With eps 1e-8 in half precision, the update is 0 / 0."""
    assert "is zero in float16" in refusal(kind, torch.float16, eps=1e-8, **ADAM)


def test_capturable_at_learning_rate_zero_is_refused() -> None:
    """The capturable form divides by the learning rate."""
    assert "divides by its learning rate" in refusal(
        optim.Adam, lr=0.0, eps=1e-8, capturable=True, **ADAM
    )


class Odd(optim.SGD):
    """A subclass, which may do anything."""


@pytest.mark.parametrize(
    ("kind", "group", "said"),
    [
        (Odd, {"momentum": 0.0}, "Odd is not a supported optimizer"),
        (nn.Module, {}, "Module is not a supported optimizer"),
        (getattr(optim, "Muon", type("Muon", (), {})), {}, "mixes the elements"),
        (optim.RMSprop, {"eps": 1e-8, "centered": True}, "centered"),
        (optim.SGD, {"momentum": 1.0}, "momentum=1.0"),
        (optim.SGD, {"weight_decay": -0.1}, "weight_decay=-0.1"),
        (optim.SGD, {"weight_decay": 30.0}, "change signs"),
        (optim.AdamW, {"weight_decay": 30.0, "eps": 1e-8, **ADAM}, "change signs"),
        (optim.AdamW, {"weight_decay": 0.0, "eps": 1e-8, "betas": (1.0, 0.9)}, "betas"),
        (optim.ASGD, {"lambd": 30.0}, "change signs"),
        (optim.ASGD, {"lambd": 0.1, "alpha": -1.0}, "alpha < 0"),
        (optim.Adafactor, {"weight_decay": -0.5}, "change signs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_covered_is_refused_by_name(
    kind: type, group: dict[str, Any], said: str
) -> None:
    """Each refusal says what it is about."""
    assert said in refusal(kind, **group)


@pytest.mark.parametrize(
    "kind",
    [
        optim.Adam,
        optim.NAdam,
        optim.RAdam,
        optim.Adamax,
        optim.Adagrad,
        optim.RMSprop,
        optim.Adadelta,
    ],
)
def test_coupled_decay_moves_every_nonzero_element(kind: type[Optimizer]) -> None:
    """Decay inside a normalised gradient moves a value by about the learning rate."""
    assert bool(one(kind, 0.0, {}, weight_decay=0.01).keeps_sign)
    claim = one(kind, 0.5, {}, weight_decay=0.01)
    assert not bool(claim.keeps_sign)
    assert "weight decay" in claim.reason


def test_a_zero_weight_with_momentum_is_not_at_rest() -> None:
    """Momentum revives a weight that was set to zero."""
    for kind, name in (
        (optim.SGD, "momentum_buffer"),
        (optim.Adam, "exp_avg"),
        (optim.RAdam, "exp_avg"),
        (optim.Adamax, "exp_avg"),
        (optim.RMSprop, "momentum_buffer"),
    ):
        claim = one(kind, 0.0, {name: 1e-30, "exp_avg_sq": 1e-3}, momentum=0.9)
        assert not bool(claim.keeps_sign), kind
        assert claim.reason == "waiting for momentum to drain"


def test_sgd_outside_its_cone_is_not_at_rest() -> None:
    """A buffer that pushes the value through zero, or away from it, is outside the cone."""
    settings = {"momentum": 0.9, "weight_decay": 0.01}
    assert bool(one(optim.SGD, -0.5, {"momentum_buffer": -0.01}, **settings).keeps_sign)
    for buffer in (0.01, -5.0):
        claim = one(optim.SGD, -0.5, {"momentum_buffer": buffer}, **settings)
        assert not bool(claim.keeps_sign)
        assert claim.reason == "momentum is outside the cone"
    unstable = one(optim.SGD, -0.5, {}, momentum=0.99, weight_decay=0.1, lr=1.0)
    assert "no stable cone" in unstable.reason


def test_a_type_that_does_not_drain_is_not_at_rest() -> None:
    """In bfloat16 a buffer times 0.999 rounds to itself, and moves the value for ever."""
    parameter = nn.Parameter(torch.full((1,), -0.5, dtype=torch.bfloat16))
    optimizer = optim.SGD([parameter], lr=LR, momentum=0.999)
    optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, -1e-3)
    claim = judged(optimizer, parameter, LR)
    for _ in range(50):
        parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    assert optimizer.state[parameter]["momentum_buffer"].item() == pytest.approx(-1e-3, rel=0.01)
    assert not bool(claim.keeps_sign)
    assert claim.drift.item() == math.inf


def test_half_precision_momentum_that_sticks_is_not_at_rest() -> None:
    """The least numbers of float16 times 0.9 round to themselves."""
    parameter = nn.Parameter(torch.full((1,), -2e-4, dtype=torch.float16))
    optimizer = optim.SGD([parameter], lr=0.5, momentum=0.9)
    optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, -2e-7)
    claim = judged(optimizer, parameter, 0.5)
    for _ in range(3000):
        parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    assert parameter.item() >= 0
    assert not bool(claim.keeps_sign)


def test_state_of_a_finer_type_is_not_rounded_to_zero() -> None:
    """Single-precision momentum of a half-precision parameter counts as it is."""
    parameter = torch.zeros(1, dtype=torch.float16)
    slot = Slot(
        optim.SGD, {"lr": LR, "momentum": 0.9}, {"momentum_buffer": torch.full((1,), 1e-20)}, LR
    )
    assert not bool(rest(slot, parameter, everywhere).keeps_sign)


def test_the_ceiling_of_an_unknown_schedule_is_ten_times_what_was_seen() -> None:
    """Claims about momentum and decay cover learning rates up to it."""
    assert lr_ceiling({"lr": 0.1}, 0.3) == pytest.approx(3.0)
    assert lr_ceiling({"lr": 0.1, "initial_lr": 0.4}, 0.3, factor=1.0) == pytest.approx(0.4)
