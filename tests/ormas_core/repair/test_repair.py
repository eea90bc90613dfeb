"""What a repair writes: exact elements, every cause and kind, optimizer state."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from repair_support import (
    CERTIFIED,
    Adapter,
    Attention,
    Branch,
    Channels,
    Gated,
    Mlp,
    Watched,
    plant_certified,
    plant_decayed,
    plant_flat,
    plant_silent,
    repairs,
    sgd,
    snapshot,
    train,
)
from torch import Tensor, nn

from ormas_core import Certificate, MemorySink, Monitor, UnitKind
from ormas_core.repair import Part, Site, draw, write

Make = Callable[..., tuple[Monitor, MemorySink]]

OF_A_CHANNEL = {
    "conv.weight",
    "conv.bias",
    "norm.weight",
    "norm.bias",
    "norm.running_mean",
    "norm.running_var",
}
PATIENCE = 3


def watched(make: Make, net: nn.Module, optimizer: Any, **options: Any) -> tuple[Watched, Any]:
    """Return a monitor's step that notes what it changed, and the sink."""
    monitor, sink = make(net, optimizer, **{"repair": True, "patience": PATIENCE, **options})
    return Watched(monitor, net, optimizer), sink


def rows(change: dict[str, list[list[int]]], name: str, axis: int = 0) -> set[int]:
    """Return which rows of a tensor were changed."""
    return {index[axis] for index in change.get(name, [])}


def test_certified_channels_are_repaired_at_the_second_check(make: Make) -> None:
    """The check that issues the certificate only says so; the next one confirms it and writes."""
    net = plant_certified(Channels())
    step, sink = watched(make, net, sgd(net))
    train(net, sgd(net), step, 5)
    assert step.steps() == [1]
    (repair,) = repairs(sink)
    assert (repair.step, repair.layer, repair.cause) == (1, "conv", "certified")
    assert (repair.units, repair.refused) == (CERTIFIED, "")


def test_nothing_but_the_channel_is_written(make: Make) -> None:
    """Filter, bias, scale, shift and running statistics of it: all other bits are as before."""
    net = plant_certified(Channels())
    step, sink = watched(make, net, sgd(net))
    train(net, None, step, 2)
    change = step.changes[1]
    values = {name for name in change if not name.endswith(".grad")}
    assert values <= OF_A_CHANNEL
    assert set().union(*(rows(change, name) for name in change)) == set(CERTIFIED)
    assert rows(change, "conv.weight") == set(CERTIFIED)
    for channel in CERTIFIED:
        after = step.after
        found = [
            float(after[f"{name}"][channel]) for name in sorted(OF_A_CHANNEL - {"conv.weight"})
        ]
        assert found == [0.0, 0.0, 0.0, 1.0, 1.0]  # bias, shift, mean, variance, scale
        for name in ("conv.weight", "conv.bias", "norm.weight", "norm.bias"):
            assert not after[f"{name}.grad"][channel].any()
    (repair,) = repairs(sink)
    assert set(repair.changed) == OF_A_CHANNEL


def test_the_filter_is_kaiming_normal() -> None:
    """Zero mean, variance 2 / fan-in, where fan-in counts what one output channel reads."""
    weight = nn.Parameter(torch.zeros(64, 32, 3, 3))
    part = Part("w", weight, 0, tuple(range(64)), None, {})
    values = draw([Site("layer", "flat", part.rows, (part,))], seed=0, step=0)[0][0]
    assert float(values.mean()) == pytest.approx(0.0, abs=3e-3)
    assert float(values.var()) == pytest.approx(2 / (32 * 9), rel=0.05)


def test_the_event_says_how_much_was_changed(make: Make) -> None:
    """`delta` is the norm of the whole difference, `relative` the same over the norm before."""
    net = plant_certified(Channels())
    monitor, sink = make(net, sgd(net), repair=True)
    seen = []

    def step(loss: Tensor) -> None:
        seen.append(snapshot(net))
        monitor.step(loss)
        seen.append(snapshot(net))

    train(net, None, step, 2)
    (repair,) = repairs(sink)
    before, after = seen[2], seen[3]
    delta = sum(float((after[n] - before[n]).double().square().sum()) for n in OF_A_CHANNEL) ** 0.5
    norm = sum(float(before[n].double().square().sum()) for n in OF_A_CHANNEL) ** 0.5
    assert repair.delta == pytest.approx(delta, rel=1e-5)
    assert repair.relative == pytest.approx(delta / norm, rel=1e-5)


@pytest.mark.parametrize(
    ("plant", "channel", "cause"), [(plant_flat, 2, "flat"), (plant_decayed, 4, "decayed")]
)
def test_flat_and_decayed_channels_are_repaired_after_patience(
    make: Make, plant: Callable[[Channels], Channels], channel: int, cause: str
) -> None:
    """At the check at which they have been so for `patience` checks, and not before."""
    net = plant(Channels())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    step, sink = watched(make, net, optimizer)
    train(net, optimizer, step, PATIENCE + 3)
    assert step.steps() == [PATIENCE - 1]
    (repair,) = repairs(sink)
    assert (repair.layer, repair.units, repair.cause) == ("conv", (channel,), cause)


def test_a_channel_that_recovers_in_between_starts_to_wait_anew(make: Make) -> None:
    """The checks must follow each other."""
    net = plant_flat(Channels())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    step, _ = watched(make, net, optimizer)
    dead = net.conv.weight.detach()[2].clone()
    for alive in (False, False, True, False, False, False):
        with torch.no_grad():
            net.conv.weight[2] = dead + 0.3 * alive
        train(net, optimizer, step, 1)
    assert step.steps() == [5]


def test_silent_channels_are_repaired_if_all_are_asked_for(make: Make) -> None:
    """They are an observation, so `repair=True` leaves them alone."""
    for mode, expected in ((True, []), ("all", [(PATIENCE - 1, (6,), "silent")])):
        net = plant_silent(Channels())
        step, sink = watched(make, net, sgd(net), repair=mode, overwrite=True)
        train(net, sgd(net), step, 2 * PATIENCE)
        assert [(r.step, r.units, r.cause) for r in repairs(sink)] == expected
        assert step.steps() == [found[0] for found in expected]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("SGD", {"momentum": 0.9}),
        ("Adam", {"amsgrad": True}),
        ("AdamW", {}),
        ("NAdam", {}),
        ("RAdam", {}),
        ("Adamax", {}),
        ("Adagrad", {}),
        ("RMSprop", {"momentum": 0.5, "centered": True}),
        ("Adadelta", {}),
        ("Rprop", {}),
        ("ASGD", {}),
    ],
)
def test_the_optimizer_state_of_just_these_elements_is_zeroed(
    make: Make, kind: str, settings: dict[str, Any]
) -> None:
    """Every state tensor of the parameter's shape; the step count and all others stay."""
    net = plant_decayed(Channels())
    optimizer = getattr(torch.optim, kind)(net.parameters(), lr=1e-9, **settings)
    if kind == "Rprop":
        optimizer.param_groups[0]["step_sizes"] = (1e-12, 1e-9)
    step, sink = watched(make, net, optimizer)
    train(net, optimizer, step, PATIENCE)
    (repair,) = repairs(sink)
    assert repair.units == (4,)
    (change,) = [change for change in step.changes if change]
    states = {name for name in change if ":" in name}
    assert states
    for name in states:
        assert rows(change, name) == {4}
        parameter, _, key = name.partition(":")
        expected = step.after[parameter][4] if key == "ax" else torch.zeros(())
        assert torch.equal(step.after[name][4], expected.expand_as(step.after[name][4])), name
    for name, value in step.after.items():
        parameter, colon, key = name.partition(":")
        wide = value.shape == step.after[parameter].shape
        if colon and wide and parameter.split(".")[0] in ("conv", "norm") and key != "ax":
            assert not value[4].any(), name


def test_a_state_that_is_a_copy_of_the_parameter_is_written_alike() -> None:
    """Zeros in master weights would undo the repair at the next step."""
    weight = nn.Parameter(torch.randn(4, 3))
    master, momentum = weight.detach().double(), torch.randn(4, 3)
    part = Part("w", weight, 0, (2,), None, {"master": master, "momentum": momentum})
    site = Site("layer", "flat", (2,), (part,))
    (values,) = draw([site], seed=0, step=0)
    write(site, values)
    assert torch.equal(master, weight.detach().double())
    assert torch.equal(weight.detach()[2], values[0][0])
    assert not momentum[2].any()
    assert momentum[[0, 1, 3]].all()


def hidden_unit(net: Mlp) -> dict[str, set[int]]:
    """Zero the in-row and the out-column of a unit."""
    net.up.weight[2], net.up.bias[2], net.down.weight[:, 2] = 0, 0, 0
    return {"up.weight": {2}}


def gate_and_up(net: Gated) -> dict[str, set[int]]:
    """Zero the rows of a unit in both layers that are multiplied."""
    net.gate.weight[2], net.up.weight[2] = 0, 0
    return {"up.weight": {2}, "gate.weight": {2}}


def up_and_down(net: Gated) -> dict[str, set[int]]:
    """Zero a row of one factor and its out-column: the other factor is left as it is."""
    net.up.weight[2], net.down.weight[:, 2] = 0, 0
    return {"up.weight": {2}}


def query_and_key(net: Attention) -> dict[str, set[int]]:
    """Zero queries and keys of a head."""
    for layer in (net.q, net.k):
        layer.weight[3:], layer.bias[3:] = 0, 0
    return {"q.weight": {3, 4, 5}, "k.weight": {3, 4, 5}}


def value_and_out(net: Attention) -> dict[str, set[int]]:
    """Zero values and out-columns of a head: queries and keys are left as they are."""
    net.v.weight[3:], net.v.bias[3:], net.o.weight[:, 3:] = 0, 0, 0
    return {"v.weight": {3, 4, 5}}


def both_factors(net: Adapter) -> dict[str, set[int]]:
    """Zero one rank in both factors."""
    net.a.weight[1], net.b.weight[:, 1] = 0, 0
    return {"a.weight": {1}}


def filter_and_scale(net: Branch) -> dict[str, set[int]]:
    """Zero a filter and the scale after it in a residual branch."""
    net.conv.weight[1], net.norm.weight[1] = 0, 0
    return {"conv.weight": {1}, "norm.weight": {1}}


KINDS: list[tuple[type[nn.Module], Callable[[Any], dict[str, set[int]]], UnitKind]] = [
    (Mlp, hidden_unit, UnitKind.UNIT),
    (Gated, gate_and_up, UnitKind.UNIT),
    (Gated, up_and_down, UnitKind.UNIT),
    (Attention, query_and_key, UnitKind.HEAD),
    (Attention, value_and_out, UnitKind.HEAD),
    (Adapter, both_factors, UnitKind.ADAPTER),
    (Branch, filter_and_scale, UnitKind.BRANCH),
]


@pytest.mark.parametrize(
    ("build", "plant", "kind"), KINDS, ids=[plant.__name__ for _, plant, _ in KINDS]
)
def test_every_kind_gets_gradients_again(
    make: Make,
    build: type[nn.Module],
    plant: Callable[[Any], dict[str, set[int]]],
    kind: UnitKind,
) -> None:
    """Just the rows that are to blame are drawn; two steps later their gradients are not zero."""
    net = build()
    with torch.no_grad():
        expected = plant(net)
    optimizer = sgd(net)
    step, sink = watched(make, net, optimizer)
    train(net, optimizer, step, 4)
    certificates = [event for event in sink.events if isinstance(event, Certificate)]
    assert {event.unit_kind for event in certificates} == {kind}
    assert {event.step for event in certificates} == {0}
    assert step.steps() == [1]
    weights = {n: i for n, i in step.changes[1].items() if n.endswith(".weight")}
    assert {name: rows(weights, name) for name in weights} == expected
    gradients = dict(net.named_parameters())
    for name, units in expected.items():
        assert gradients[name].grad is not None
        assert all(bool(gradients[name].grad[unit].any()) for unit in units), name  # type: ignore[index]


def test_a_transposed_weight_is_written_by_columns(make: Make) -> None:
    """As in GPT-2, whose layers keep (inputs, outputs)."""

    class Transposed(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(self.up.weight.detach().T.contiguous())
            self.bias = nn.Parameter(self.up.bias.detach().clone())
            del self.up

        def forward(self, x: Tensor) -> Tensor:
            hidden = nn.functional.gelu(torch.addmm(self.bias, x, self.weight))
            return self.head(x + self.down(hidden))

    net = Transposed()
    with torch.no_grad():
        net.weight[:, 2], net.bias[2], net.down.weight[:, 2] = 0, 0, 0
    step, sink = watched(make, net, sgd(net))
    train(net, sgd(net), step, 3)
    assert rows(step.changes[1], "weight", axis=1) == {2}
    assert len(step.changes[1]["weight"]) == 6
    assert [repair.units for repair in repairs(sink)] == [(2,)]


def test_layers_before_a_dead_one_keep_what_they_have_learnt(make: Make) -> None:
    """Everything before it is certified too, for its fault: only the dead layer is drawn anew."""
    net = Channels()
    with torch.no_grad():
        net.after.weight.zero_()
        net.after.bias.fill_(-0.1)
    step, sink = watched(make, net, sgd(net))
    train(net, sgd(net), step, 4)
    assert {e.layer for e in sink.events if isinstance(e, Certificate)} == {"conv", "after"}
    assert [(r.layer, r.units) for r in repairs(sink)] == [("after", (0, 1, 2, 3))]
    assert not any(e.kind == "certificate_revoked" for e in sink.events)
