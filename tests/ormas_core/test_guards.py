"""Each guard of a certificate in force revokes it for its own reason, and only then."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from repair_support import CERTIFIED, Channels, plant_certified, sgd
from run_support import Batches, FarBias, Make, Run, SmallScale, started, write_gradient
from torch import Tensor, nn
from torch.optim import Optimizer

from ormas_core import MonitorConfig

Reasons = dict[tuple[int, ...], str]


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        ("conv.weight", 3, {(3,): "the gradient of conv is not zero there"}),
        ("conv.weight", 5, {(5,): "the gradient of conv is not zero there"}),
        ("norm.bias", 3, {(3,): "the gradient of norm.bias is not zero where the proof needs it"}),
        (
            "norm.weight",
            5,
            {(5,): "the gradient of norm.weight is not zero where the proof needs it"},
        ),
        ("conv.weight", 2, {}),
        ("norm.bias", 2, {}),
        ("norm.weight", 3, {}),
        ("head.weight", 0, {}),
    ],
)
def test_a_gradient_that_a_user_writes_revokes(
    name: str, row: int, expected: Reasons, make: Make
) -> None:
    """Of the unit's own weights, or of what else its proof rests on; others are no concern."""
    run = started(make)
    run.step(lambda: write_gradient(run.net, name, row))
    assert run.revoked() == expected


def test_a_shift_is_watched_for_every_unit_of_a_claim(make: Make) -> None:
    """The proof names the shift of the first unit; that of the second is its like."""
    net = Channels()
    with torch.no_grad():
        net.conv.weight[[3, 6]], net.conv.bias[[3, 6]], net.norm.bias[[3, 6]] = 0, 0, -0.1
    run = Run(make, net, sgd(net))
    run.steps(2)
    assert run.certified() == [((3, 6), "absorbing", True)]
    run.step(lambda: write_gradient(net, "norm.bias", 6))
    assert run.revoked() == {
        (3, 6): "the gradient of norm.bias is not zero where the proof needs it"
    }


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(lambda g: g + 1e-3, {(3,), (5,)}, id="adds"),
        pytest.param(lambda g: 2 * g, set(), id="scales"),
    ],
)
def test_a_hook_on_an_output_revokes_if_it_adds(
    change: Callable[[Tensor], Tensor], expected: set[tuple[int, ...]], make: Make
) -> None:
    """No graph shows it; the gradients do, even those that never reach the filter."""
    run = started(make)

    def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
        output.register_hook(change)

    handle = run.net.norm.register_forward_hook(hook)
    run.step()
    handle.remove()
    assert set(run.revoked()) == expected


def test_what_a_guard_contradicts_is_not_issued_again(make: Make) -> None:
    """While a gradient is written at every step, the proof alone is not enough; it is said once."""
    run = started(make)
    for _ in range(3):
        run.step(lambda: write_gradient(run.net, "conv.weight", 5))
    kinds = [event.kind for event in run.proofs()]
    assert kinds.count("certificate_revoked") == kinds.count("certificate_refused") == 1
    assert "certificate" not in kinds
    run.step()
    assert run.certified() == [((5,), "absorbing", False)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("conv.weight", {(3,): "conv.weight: a hook on it may change its gradient"}),
        ("norm.weight", {(5,): "norm.weight: a hook on it may change its gradient"}),
        ("head.weight", {}),
    ],
)
def test_a_hook_on_a_parameter_revokes(name: str, expected: Reasons, make: Make) -> None:
    """It may change the gradient at any later step, if the proof rests on this parameter."""
    run = started(make)
    run.net.get_parameter(name).register_hook(lambda gradient: None)
    run.step()
    assert run.revoked() == expected


def test_a_second_monitor_is_no_hook(make: Make, tmp_path: Any) -> None:
    """What another monitor counts on the same weights changes no gradient."""
    net = plant_certified(Channels())
    optimizer = sgd(net)
    runs = [Run(make, net, optimizer, out=tmp_path / name) for name in ("one", "other")]
    for _ in range(4):
        optimizer.zero_grad()
        loss = next(runs[0].source)
        loss.backward()
        for run in runs:
            run.check(loss)
        optimizer.step()
    for run in runs:
        kinds = [event.kind for event in run.proofs()]
        assert kinds == ["certificate", "certificate", "channels"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [(5, {(5,): "its weights were changed from outside the optimizer"}), (4, {})],
)
def test_a_weight_that_is_written_revokes(row: int, expected: Reasons, make: Make) -> None:
    """Behind a scale of zero the gradient stays zero, but the bits are not what was certified."""
    run = started(make)
    with torch.no_grad():
        run.net.conv.weight[row, 0, 0, 0] += 1e-3
    run.step()
    assert run.revoked() == expected


def one_group(net: nn.Module) -> Optimizer:
    """Return an optimizer in which the head has a group of its own."""
    rest = [p for name, p in net.named_parameters() if not name.startswith("head")]
    head = [p for name, p in net.named_parameters() if name.startswith("head")]
    return torch.optim.SGD([{"params": rest}, {"params": head}], lr=0.05, weight_decay=1e-3)


@pytest.mark.parametrize(
    ("group", "setting", "value", "words"),
    [
        (0, "lr", 0.11, "is 0.11; it covers up to 0.1"),
        (0, "lr", 0.1, ""),
        (1, "lr", 0.11, ""),
        (0, "weight_decay", 0.01, "is 0.01; it covers up to 0.001"),
        (0, "weight_decay", 1e-4, ""),
        (1, "weight_decay", 0.01, ""),
    ],
)
def test_a_rate_above_what_is_covered_revokes(
    group: int, setting: str, value: float, words: str, make: Make
) -> None:
    """That of a parameter the proof rests on; up to the limit, or of others, nothing happens."""
    run = started(make, optimizer=one_group, config=MonitorConfig(lr_max=0.1, check_every=1))
    run.optimizer.param_groups[group][setting] = value
    run.step()
    revoked = run.revoked()
    name = {"lr": "learning rate", "weight_decay": "decay"}[setting]
    assert set(revoked) == ({CERTIFIED} if words else set())
    assert all(f"the {name} of" in reason and words in reason for reason in revoked.values())


def test_without_an_lr_max_ten_times_the_largest_seen_is_covered(make: Make) -> None:
    """Beyond it the certificates are issued anew, for what has been seen since."""
    run = started(make)
    run.optimizer.param_groups[0]["lr"] = 0.5
    run.step()
    assert run.revoked() == {}
    run.optimizer.param_groups[0]["lr"] = 5.1
    run.step()
    events = run.proofs()
    assert [event.kind for event in events[:3]] == ["certificate_revoked", *["certificate"] * 2]
    assert {c.value for e in events[1:3] for c in e.conditions if c.name == "lr_max"} == {51.0}


@pytest.mark.parametrize(
    ("note", "revoked"), [((True, False), True), ((False, True), True), ((True, True), False)]
)
def test_a_loss_that_was_not_shown_revokes(
    note: tuple[bool, ...], revoked: bool, make: Make
) -> None:
    """More backward passes reach the weights than graphs were seen; micro-batches may be many."""
    run = started(make)
    run.accumulate(note=note)
    expected = (
        "2 backward passes wrote its gradient, and the graphs of 1 were seen: another loss "
        "reaches it"
    )
    assert run.revoked() == ({CERTIFIED: expected} if revoked else {})


def test_a_loss_that_is_never_shown_ends_the_claims_for_good(make: Make) -> None:
    """A penalty with a backward pass of its own at each step: refused once, and not issued."""
    run = started(make)
    for _ in range(3):
        run.accumulate(note=(True, False))
    events = [event for event in run.proofs() if event.kind.startswith("certificate")]
    assert [event.kind for event in events] == ["certificate_revoked", "certificate_refused"]


def small_scale(make: Make) -> tuple[Run, Batches]:
    """Return a run with a bounded claim about channels 3 and 4, and what gives its batches."""
    net = SmallScale()
    batches = Batches(net)
    run = Run(make, net, sgd(net, lr=1e-3), batches)
    run.steps(2)
    assert run.certified() == [((3, 4), "bounded", True)]
    return run, batches


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(30, {(3, 4): "norm saw 30 elements in a channel; it covers 25"}), (25, {})],
)
def test_a_batch_beyond_m_max_revokes(rows: int, expected: Reasons, make: Make) -> None:
    """The limit is m_max = (room / 2 scale)^2 + 1 with the rounding left out, 25 here."""
    run, batches = small_scale(make)
    batches.rows = rows
    run.step()
    assert run.revoked() == expected


@pytest.mark.parametrize(("offset", "words"), [(1e4, "the input of norm reached"), (50.0, "")])
def test_an_input_beyond_x_max_revokes(offset: float, words: str, make: Make) -> None:
    """A large mean makes rounding errors; the input is measured, and the reason has the limit."""
    run, batches = small_scale(make)
    batches.offset = offset
    run.step()
    revoked = run.revoked()
    assert set(revoked) == ({(3, 4)} if words else set())
    assert all(words in reason and "(x_max / 16)" in reason for reason in revoked.values())


@pytest.mark.parametrize(
    ("size", "expected"),
    [(16.0, [(7,)]), (20.0, [(1, 4), (7,)]), (14.0, [])],
)
def test_an_input_beyond_input_max_revokes(
    size: float, expected: list[tuple[int, ...]], make: Make
) -> None:
    """Units with limits of another order have a claim of their own; half of each is for a run."""
    net = FarBias()
    batches = Batches(net)
    run = Run(make, net, sgd(net, lr=1e-3), batches)
    run.steps(2)
    assert run.certified() == [((7,), "bounded", True), ((1, 4), "bounded", True)]
    batches.size = size
    run.step()
    revoked = run.revoked()
    assert sorted(revoked) == expected
    assert all("(input_max / 2)" in reason for reason in revoked.values())


def test_an_input_that_is_not_seen_revokes(make: Make) -> None:
    """A limit that cannot be measured any more is unknown, and not kept."""

    class Named(FarBias):
        named = False

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.fc(input=x) if self.named else self.fc(x)))

    net = Named()
    run = Run(make, net, sgd(net, lr=1e-3), Batches(net))
    run.steps(2)
    assert len(run.certified()) == 2
    net.named = True
    run.step()
    assert set(run.revoked().values()) == {"the input of fc was not seen: input_max is not checked"}
