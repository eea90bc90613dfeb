"""Cones and drains, with thousands of settings at once, by rules that are pinned to torch's."""

import torch
from fuzz.momentum import SETTINGS, Adamw, adamw, powers, run_cone, run_drain, sgd
from torch import nn, optim


def test_the_written_out_sgd_is_that_of_torch() -> None:
    """Value and buffer agree after ten steps with zero gradients."""
    noise = torch.Generator().manual_seed(1)
    rule, values = sgd(noise, 24), torch.randn(24, generator=noise)
    value, buffer = values, None
    for _ in range(10):
        value, buffer = rule.step(value, buffer, rule.lr)
    for i in range(24):
        parameter = nn.Parameter(values[i : i + 1].clone())
        optimizer = optim.SGD(
            [parameter],
            lr=float(rule.lr[i]),
            momentum=float(rule.momentum[i]),
            dampening=float(rule.dampening[i]),
            weight_decay=float(rule.decay[i]),
            nesterov=bool(rule.nesterov[i]),
        )
        for _ in range(10):
            parameter.grad = torch.zeros(1)
            optimizer.step()
        torch.testing.assert_close(parameter.data, value[i : i + 1], rtol=1e-4, atol=1e-6)


def test_the_written_out_adamw_is_that_of_torch() -> None:
    """The value agrees after ten steps with zero gradients and left-over momentum."""
    noise = torch.Generator().manual_seed(2)
    rule, values = adamw(noise, 24), torch.randn(24, generator=noise)
    firsts, seconds = torch.randn(24, generator=noise), torch.rand(24, generator=noise)
    value, first, second = values, firsts, seconds
    for count in range(4, 14):
        value, first, second = rule.step(value, first, second, count, rule.lr)
    for i in range(24):
        parameter = nn.Parameter(values[i : i + 1].clone())
        optimizer = optim.AdamW(
            [parameter],
            lr=float(rule.lr[i]),
            betas=(float(rule.beta1[i]), float(rule.beta2[i])),
            eps=float(rule.eps[i]),
            weight_decay=float(rule.decay[i]),
        )
        optimizer.state[parameter] = {
            "step": torch.tensor(3.0),
            "exp_avg": firsts[i : i + 1].clone(),
            "exp_avg_sq": seconds[i : i + 1].clone(),
        }
        for _ in range(10):
            parameter.grad = torch.zeros(1)
            optimizer.step()
        torch.testing.assert_close(parameter.data, value[i : i + 1], rtol=1e-4, atol=1e-5)


def test_no_value_leaves_the_cone_of_sgd() -> None:
    """Of 3,000 settings, with schedules, no accepted value changes sign while it is above floor."""
    outcome = run_cone(3)
    assert not outcome.wrong
    assert 0.15 < outcome.accepted < 0.95
    assert outcome.above > 200


def test_refused_settings_of_sgd_can_change_signs() -> None:
    """The cone is not refused for nothing: many refused elements do pass through zero."""
    noise = torch.Generator().manual_seed(4)
    rule = sgd(noise)
    value = torch.randn(SETTINGS, generator=noise)
    buffer = value * powers(noise, -4, 1)
    refused = torch.tensor(
        [not bool(rule.claim(i, value, buffer).keeps_sign) for i in range(SETTINGS)]
    )
    start, crossed = value, torch.zeros(SETTINGS, dtype=torch.bool)
    for _ in range(200):
        value, buffer = rule.step(value, buffer, rule.lr)
        crossed |= value * start < 0
    assert int((crossed & ~refused).sum()) == 0
    assert float((crossed & refused).sum() / refused.sum()) > 0.7


def test_momentum_of_adam_moves_a_value_no_further_than_its_bound() -> None:
    """Of 1,500 settings, with decoupled decay and schedules, drift and sign hold for 400 steps."""
    outcome = run_drain(6)
    assert not outcome.wrong
    assert 0.2 < outcome.accepted < 0.95


def test_a_bound_of_adam_is_not_far_from_what_happens() -> None:
    """At constant rates the drift is at least a tenth of its bound, for half of the settings."""
    noise = torch.Generator().manual_seed(7)
    rule = adamw(noise, 400)._replace(decay=torch.zeros(400))
    second = powers(noise, -8, 0, 400)
    first, value = second.sqrt(), torch.full((400,), 100.0)
    drift = torch.tensor([float(rule.claim(i, value, first, second, 5).drift) for i in range(400)])
    start = value = value.double()
    rule = Adamw(*(one.double() for one in rule))
    first, second = first.double(), second.double()
    for count in range(6, 500):
        value, first, second = rule.step(value, first, second, count, rule.lr)
    share = (value - start).abs() / drift
    assert float((share > 0.1).double().mean()) > 0.5
    assert float(share.max()) <= 1.0
