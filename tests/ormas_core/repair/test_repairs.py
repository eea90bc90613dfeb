"""Repair within a run: refusals, what the loop notices, what the record and the verdict say."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from repair_support import (
    Channels,
    Mlp,
    Watched,
    losses,
    plant_certified,
    plant_decayed,
    plant_flat,
    plant_silent,
    repairs,
    sgd,
    train,
)
from sklearn.datasets import load_digits
from torch import Tensor, nn

from ormas_core import (
    Alarm,
    ConfigError,
    Manifest,
    Mechanism,
    MechanismState,
    MemorySink,
    Monitor,
    MonitorError,
    Repair,
    RunEnd,
    Status,
    describe,
    read_record,
    run_facts,
)
from ormas_core import Channels as ChannelsEvent
from ormas_core.options import MonitorOptions, check_options
from ormas_core.ranks import Agreement
from ormas_core.repairs import MOST_REPAIRS

Make = Callable[..., tuple[Monitor, MemorySink]]


def refused(make: Make, net: nn.Module, optimizer: Any, steps: int = 6, **options: Any) -> str:
    """Return why nothing was repaired in a run; nothing was written, and it was said once."""
    monitor, sink = make(net, optimizer, repair=True, patience=2, **options)
    step = Watched(monitor, net, optimizer)
    train(net, optimizer, step, steps)
    assert step.steps() == []
    assert not any(isinstance(event, MonitorError) for event in sink.events)
    (event,) = repairs(sink)
    assert (event.changed, event.delta, event.relative) == ((), 0.0, 0.0)
    assert monitor.facts.repaired == 0
    assert event.refused in describe(event)
    return event.refused


@pytest.mark.parametrize("value", ["some", "", "ALL", 0, 1, None, 1.0, ["all"]])
def test_what_to_repair_is_one_of_three(value: Any) -> None:
    """The message lists them and shows what was given."""
    with pytest.raises(ConfigError) as caught:
        check_options(MonitorOptions(repair=value))
    assert str(caught.value) == (
        "repair must be False, True (certified, flat and decayed channels) or 'all' (silent ones "
        f"too); got {value!r}"
    )


@pytest.mark.parametrize("value", [False, True, "all"])
def test_the_three_are_accepted(value: Any) -> None:
    """As they are."""
    assert check_options(MonitorOptions(repair=value))["repair"] is value


def test_all_is_refused_on_several_processes(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Activations differ from rank to rank; it is said before training."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="repair='all' on 2 processes"):
        make(Channels(), repair="all")


def test_without_an_optimizer_nothing_is_repaired(make: Make) -> None:
    """Its state could not be reset."""
    net = plant_decayed(Channels())
    assert refused(make, net, None) == (
        "no torch optimizer was given, whose state would have to be reset"
    )


def test_a_parameter_of_another_optimizer_is_not_repaired(make: Make) -> None:
    """Its state is out of reach."""
    net = plant_decayed(Channels())
    optimizer = torch.optim.SGD([*net.conv.parameters(), *net.head.parameters()], lr=0.0)
    assert "is not in exactly one group of the optimizer" in refused(make, net, optimizer)


def test_a_frozen_parameter_is_not_repaired(make: Make) -> None:
    """Neither a bias before the norm, nor the norm itself."""
    net = plant_decayed(Channels())
    net.conv.bias.requires_grad_(requires_grad=False)
    assert refused(make, net, sgd(net, lr=0.0)) == "conv.bias is frozen"
    net = plant_flat(Channels())
    net.norm.requires_grad_(requires_grad=False)
    found = refused(make, net, sgd(net, lr=0.0), overwrite=True)
    assert found == "the norm behind conv is frozen"


def test_a_shared_weight_is_not_repaired(make: Make) -> None:
    """Another layer would be changed with it."""
    net = plant_decayed(Channels())
    net.twin = nn.Conv2d(2, 8, 3)
    net.twin.weight = net.conv.weight
    assert refused(make, net, sgd(net, lr=0.0)) == "conv.weight is shared: another layer has it too"


def test_a_norm_of_two_layers_is_not_repaired(make: Make) -> None:
    """The other layer's channel would be changed with it."""

    class Twice(Channels):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Conv2d(2, 8, 3)

        def forward(self, x: Tensor) -> Tensor:
            first, second = (torch.relu(self.norm(conv(x))) for conv in (self.conv, self.other))
            return self.head(torch.relu(self.after(first + second)).mean((2, 3)))

    net = plant_decayed(Twice())
    monitor, sink = make(net, sgd(net, lr=0.0), repair=True, patience=1)
    train(net, None, monitor.step, 1)
    reasons = {event.refused for event in repairs(sink)}
    assert len(reasons) == 2
    assert all("used elsewhere" in reason for reason in reasons)


def test_a_parametrized_weight_is_not_repaired(make: Make) -> None:
    """What is stored is not the weight."""

    class Same(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight.clone()

    net = plant_decayed(Channels())
    nn.utils.parametrize.register_parametrization(net.conv, "weight", Same())
    assert "(parametrized)" in refused(make, net, sgd(net, lr=0.0))


def test_a_unit_that_dies_again_and_again_is_left_alone(make: Make) -> None:
    """After some repairs another would not help, and that is said."""
    net = Channels()
    monitor, sink = make(net, sgd(net), repair=True)
    for _ in range(4 * MOST_REPAIRS):
        plant_certified(net)
        train(net, None, monitor.step, 1)
    done = [event for event in repairs(sink) if not event.refused]
    (left,) = [event for event in repairs(sink) if event.refused]
    assert len(done) == MOST_REPAIRS
    assert left.refused.startswith(f"repaired {MOST_REPAIRS} times before")


def test_a_graph_that_is_used_again_still_works(make: Make) -> None:
    """A further backward pass through the graph of a step that was repaired does not fail."""
    net = plant_certified(Channels())
    monitor, sink = make(net, sgd(net), repair=True)
    train(net, None, monitor.step, 1)
    net.zero_grad()
    loss = next(losses(net))
    loss.backward(retain_graph=True)
    monitor.step(loss)
    loss.backward()
    assert [event.step for event in repairs(sink)] == [1]


def test_gradients_may_be_accumulated(make: Make) -> None:
    """The check is made at the last micro-batch, and certificates cover the graphs of all."""
    net = plant_certified(Channels())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    monitor, sink = make(net, optimizer, repair=True)
    source = losses(net)
    for _ in range(4):
        optimizer.zero_grad()
        for _ in range(3):
            loss = next(source)
            monitor.note_loss(loss)
            (loss / 3).backward()
        monitor.step()
        optimizer.step()
    assert [(event.step, event.units) for event in repairs(sink)] == [(1, (3, 5))]


def test_a_step_that_is_not_finite_repairs_nothing(make: Make) -> None:
    """Nothing can be proven by it; the next one goes on where the last one stopped."""
    net = plant_certified(Channels())
    monitor, sink = make(net, sgd(net), repair=True)
    source = losses(net)
    for factor in (1.0, float("nan"), 1.0):
        net.zero_grad()
        loss = factor * next(source)
        loss.backward()
        monitor.step(loss)
    assert [event.step for event in repairs(sink)] == [2]


def test_a_repair_raises_no_alarm(make: Make) -> None:
    """Gradients come back in the channels, and the layer's norm stays within its history."""
    net = Channels()
    optimizer = sgd(net, lr=0.01)
    monitor, sink = make(net, optimizer, repair=True, warmup=8)
    source = losses(net)
    train(net, optimizer, monitor.step, 20, source)
    plant_certified(net)
    train(net, optimizer, monitor.step, 20, source)
    assert len(repairs(sink)) == 1
    assert not any(isinstance(event, Alarm) for event in sink.events)
    monitor.close()
    kinds = [event.kind for event in sink.events]
    assert "channels_cleared" in kinds
    assert "certificate_revoked" not in kinds
    assert monitor.facts.status is Status.REPAIRED
    assert monitor.facts.stuck == {}


def test_the_record_says_what_the_run_said(make: Make, tmp_path: Any) -> None:
    """Repairs are lines of the record, and the facts of the record are those of the run."""
    net = plant_certified(Channels())
    monitor, sink = make(net, sgd(net), repair=True)
    train(net, sgd(net), monitor.step, 12)
    monitor.close()
    events = [line.event for line in read_record(tmp_path / "run")]
    assert [event for event in events if isinstance(event, Repair)] == repairs(sink)
    facts = run_facts(events)
    assert (facts.status, facts.repaired) == (Status.REPAIRED, 1)


def line(sink: MemorySink) -> Mechanism:
    """Return the last word of the manifest on repair."""
    manifests = [event for event in sink.events if isinstance(event, Manifest)]
    (found,) = [each for each in manifests[-1].mechanisms if each.name == "repair"]
    return found


@pytest.mark.parametrize(
    ("mode", "optimizer", "loss", "state"),
    [
        (False, True, True, MechanismState.UNUSED),
        (True, True, True, MechanismState.ACTIVE),
        ("all", True, True, MechanismState.ACTIVE),
        (True, False, True, MechanismState.OFF),
        (True, True, False, MechanismState.UNOBSERVABLE),
    ],
)
def test_the_manifest_says_whether_repair_is_at_work(
    make: Make, mode: Any, optimizer: bool, loss: bool, state: MechanismState
) -> None:
    """And, where it is not, why."""
    net = Mlp()
    monitor, sink = make(net, sgd(net) if optimizer else None, repair=mode)
    train(net, None, monitor.step if loss else lambda _: monitor.step(), 9)
    monitor.close()
    found = line(sink)
    assert found.state is state
    assert bool(found.reason) is (state is not MechanismState.ACTIVE)


def test_a_repair_that_was_not_seen_to_work_leaves_warnings(make: Make) -> None:
    """A run that ends with the check that repairs has not been looked at since."""
    net = Channels()
    monitor, sink = make(net, sgd(net), repair=True)
    train(net, sgd(net), monitor.step, 8)
    plant_certified(net)
    train(net, sgd(net), monitor.step, 2)
    monitor.close()
    assert len(repairs(sink)) == 1
    (end,) = [event for event in sink.events if isinstance(event, RunEnd)]
    assert end.status is Status.WARNINGS


def test_channels_that_are_only_silent_do_not_spoil_the_verdict(make: Make) -> None:
    """Once the certified ones are repaired, what is left of the layer's finding is no finding."""
    net = plant_silent(plant_certified(Channels()))
    monitor, sink = make(net, sgd(net), repair=True, patience=1)
    train(net, sgd(net), monitor.step, 12)
    monitor.close()
    said = [event for event in sink.events if isinstance(event, ChannelsEvent)]
    assert [(event.certified, event.silent) for event in said] == [(2, 1), (0, 1)]
    assert monitor.facts.status is Status.REPAIRED


def test_one_process_agrees_with_itself() -> None:
    """No group is needed."""
    agreement = Agreement()
    assert agreement.all_equal(b"x", binding=True)
    assert agreement.problem == ""


def test_processes_without_a_group_do_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is kept, and nobody is asked again."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    agreement = Agreement()
    assert not agreement.all_equal(b"x", binding=True)
    assert "no process group" in agreement.problem
    assert not agreement.all_equal(b"x", binding=False)


def accuracy(make: Make, folder: str, *, repair: bool) -> float:
    """Train a small CNN on digits, of which most filters die early; return its accuracy."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    torch.manual_seed(2)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 16, 10),
    )
    with torch.no_grad():
        net[0].weight[1:], net[0].bias[1:], net[1].bias[1:] = 0, 0, -0.1
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    monitor, _ = make(net, optimizer, repair=repair, check_every=5, out=folder)
    generator = torch.Generator().manual_seed(3)
    for _ in range(80):
        batch = torch.randperm(1400, generator=generator)[:64]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images[batch]), labels[batch])
        loss.backward()
        monitor.step(loss)
        optimizer.step()
    net.eval()
    with torch.no_grad():
        return float((net(images[1400:]).argmax(1) == labels[1400:]).float().mean())


def test_a_repaired_network_learns_what_the_other_cannot(make: Make, tmp_path: Any) -> None:
    """Same seed, data and faults: the arm with repair is the better one by far."""
    watched = accuracy(make, tmp_path / "watched", repair=False)
    repaired = accuracy(make, tmp_path / "repaired", repair=True)
    assert repaired > watched + 0.05


def test_silent_channels_of_a_whole_run(make: Make) -> None:
    """`repair="all"` names them as what they are: silent, and no more."""
    net = plant_silent(Channels())
    monitor, sink = make(net, sgd(net), repair="all", patience=2)
    train(net, sgd(net), monitor.step, 4)
    assert [(event.cause, event.units) for event in repairs(sink)] == [("silent", (6,))]
