"""Several optimizers on one model: each is counted, sampled and judged by itself."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support import FEATURES, of
from torch import Tensor, nn
from torch.nn.modules import module as module_globals

from ormas_core import (
    Alarm,
    Diagnosis,
    Manifest,
    Measurement,
    MemorySink,
    Monitor,
    RunEnd,
    RunStart,
    Status,
    read_metrics,
    verify_record,
)
from ormas_core.errors import ConfigError
from ormas_core.hooks.lanes import MOST_WAITING
from ormas_core.replay import replay_run

ONE, TWO = "0:SGD", "1:Adam"


class Gan(nn.Module):
    """A generator and a discriminator, with noise that is the same in every run."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.gen = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, FEATURES))
        self.disc = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, 1))
        self.noise = torch.Generator().manual_seed(6)

    def fake(self) -> Tensor:
        return self.gen(torch.randn(16, 4, generator=self.noise))

    def real(self) -> Tensor:
        return torch.randn(16, FEATURES, generator=self.noise) + 1.0


class Loop:
    """A GAN in a plain loop: the discriminator in each round, the generator in every so many."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.sink = MemorySink()
        self.net = Gan()
        self.disc = torch.optim.SGD(self.net.disc.parameters(), lr=1e-3)
        self.gen = torch.optim.Adam(self.net.gen.parameters(), lr=1e-4)
        options = {"check_every": 1, "verbose": False, "sinks": [self.sink], **options}
        self.monitor = Monitor(self.net, [self.disc, self.gen], out=folder, **options)
        self.factors = {ONE: 1.0, TWO: 1.0}
        self.hooked: list[bool] = []

    def step(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        self.hooked.append(bool(module_globals._global_forward_hooks))
        loss.backward()
        self.monitor.step(loss, optimizer)
        optimizer.step()

    def rounds(self, count: int, gen_every: int = 1) -> None:
        net = self.net
        for number in range(count):
            truth = nn.functional.softplus(-net.disc(net.real())).mean()
            lie = nn.functional.softplus(net.disc(net.fake().detach())).mean()
            self.step(self.disc, (truth + lie) * self.factors[ONE])
            if number % gen_every == gen_every - 1:
                loss = nn.functional.softplus(-net.disc(net.fake())).mean()
                self.step(self.gen, loss * self.factors[TWO])

    def of(self, kind: type, lane: str | None = None) -> list[Any]:
        return [e for e in of(self.sink, kind) if lane is None or e.lane == lane]


@pytest.fixture
def loop(tmp_path: Path) -> Loop:
    return Loop(tmp_path / "run")


def layers_of(measurement: Measurement) -> set[str]:
    return {name.partition(".")[0] for name in measurement.layers}


def test_each_optimizer_has_its_own_layers_losses_and_baselines(loop: Loop, tmp_path: Path) -> None:
    """An explosion of the generator is an alarm of its lane; the discriminator's has none."""
    loop.rounds(12)
    loop.factors[TWO] = 1e6
    loop.rounds(1)
    loop.monitor.close()
    one, two = loop.of(Measurement, ONE), loop.of(Measurement, TWO)
    assert len(one) == len(two) == 13
    assert {frozenset(layers_of(m)) for m in one} == {frozenset({"disc"})}
    assert {frozenset(layers_of(m)) for m in two} == {frozenset({"gen"})}
    assert [m.step for m in loop.of(Measurement)] == list(range(26))
    alarms = loop.of(Alarm)
    assert {(a.lane, a.diagnosis, a.step) for a in alarms} == {(TWO, Diagnosis.EXPLODING, 25)}
    assert {a.layer.partition(".")[0] for a in alarms} == {"gen"}
    assert two[-1].loss > 1e4 > one[-1].loss
    assert loop.of(RunStart)[0].optimizer == "SGD, Adam"
    end = loop.of(RunEnd)[0]
    assert (end.steps, end.status) == (26, Status.PROBLEM)
    assert set(loop.monitor.facts.open_layers) == {f"{a.layer} ({TWO})" for a in alarms}
    assert verify_record(tmp_path / "run").complete


def test_a_record_of_several_optimizers_is_replayed_exactly(loop: Loop, tmp_path: Path) -> None:
    """Rules that are fed the rows again, each lane apart, make the recorded events."""
    loop.rounds(20, gen_every=2)
    loop.factors[TWO] = 1e7
    loop.rounds(2)
    loop.factors[TWO] = 1.0
    loop.rounds(3)
    loop.monitor.close()
    found = replay_run(tmp_path / "run")
    assert found.same
    assert {event.kind for event in found.recorded} >= {"alarm", "alarm_cleared", "loss_spike"}
    assert {event.lane for event in found.recorded} == {TWO}
    assert [m.lane for m in read_metrics(tmp_path / "run")] == [
        m.lane for m in loop.of(Measurement)
    ]


def test_case_45_the_side_that_is_off_in_a_step_is_not_said_to_have_no_gradient(
    tmp_path: Path,
) -> None:
    """A generator that steps every 5th round is judged then, and alarms when it has no gradient."""
    loop = Loop(tmp_path / "run")
    loop.rounds(60, gen_every=5)
    assert loop.of(Alarm) == []
    assert len(loop.of(Measurement, ONE)) == 60
    assert len(loop.of(Measurement, TWO)) == 12
    loop.net.gen[0].weight.register_hook(lambda gradient: gradient * 0.0)
    loop.net.gen[0].bias.register_hook(lambda gradient: gradient * 0.0)
    loop.rounds(6, gen_every=5)
    loop.monitor.close()
    found = {(a.layer, a.lane, a.diagnosis) for a in loop.of(Alarm)}
    assert found == {("gen.0", TWO, Diagnosis.NO_GRADIENT)}


def test_every_optimizer_is_sampled_by_its_own_steps(tmp_path: Path) -> None:
    """`check_every` counts the steps of each; hooks exist while either may come next and is due."""
    loop = Loop(tmp_path / "run", check_every=4)
    loop.rounds(9)
    loop.monitor.close()
    assert [m.step for m in loop.of(Measurement, ONE)] == [0, 8, 16]
    assert [m.step for m in loop.of(Measurement, TWO)] == [1, 9, 17]
    assert [at for at, hooked in enumerate(loop.hooked) if hooked] == [0, 1, 7, 8, 9, 15, 16, 17]


def test_an_optimizer_that_never_steps_does_not_keep_the_hooks(tmp_path: Path) -> None:
    """It is waited for during a limited number of steps of the others."""
    loop = Loop(tmp_path / "run", check_every=1000)
    loop.rounds(MOST_WAITING + 10, gen_every=10_000)
    assert loop.hooked[:3] == [True] * 3
    assert not any(loop.hooked[-5:])
    loop.monitor.close()


def test_optimizers_that_step_together_are_one_lane(tmp_path: Path) -> None:
    """`step(loss)` without an optimizer, as with one for matrices and one for vectors."""
    net, sink = Gan().disc, MemorySink()
    matrices = [p for p in net.parameters() if p.dim() > 1]
    vectors = [p for p in net.parameters() if p.dim() < 2]
    both = [torch.optim.SGD(matrices, lr=0.1), torch.optim.Adam(vectors)]
    with Monitor(net, both, out=tmp_path / "run", check_every=1, sinks=[sink]) as monitor:
        for _ in range(3):
            loss = net(torch.ones(4, FEATURES)).mean()
            for optimizer in both:
                optimizer.zero_grad()
            loss.backward()
            monitor.step(loss)
            for optimizer in both:
                optimizer.step()
    assert [(m.lane, m.step, len(m.layers)) for m in of(sink, Measurement)] == [
        ("", step, 2) for step in range(3)
    ]


def test_a_layer_shared_by_two_optimizers_is_judged_in_both(tmp_path: Path) -> None:
    """Each lane reads the parameters that are its own: the weight here, the bias there."""
    net, sink = nn.Sequential(nn.Linear(4, 1)), MemorySink()
    both = [torch.optim.SGD([net[0].weight], lr=0.1), torch.optim.SGD([net[0].bias], lr=0.1)]
    with Monitor(net, both, out=tmp_path / "run", check_every=1, sinks=[sink]) as monitor:
        loss = net(torch.full((2, 4), 3.0)).mean()
        loss.backward()
        for optimizer in both:
            monitor.step(loss, optimizer)
            optimizer.step()
    one, two = of(sink, Measurement)
    assert (one.lane, two.lane) == ("0:SGD", "1:SGD")
    assert one.layers == two.layers == ("0",)
    assert one.norms == pytest.approx([6.0])
    assert two.norms == pytest.approx([1.0])


def test_a_resumed_run_goes_on_with_every_lane(tmp_path: Path) -> None:
    """Counts and baselines of each optimizer come back with the state of the monitor."""
    first = Loop(tmp_path / "run", check_every=2)
    first.rounds(20, gen_every=4)
    state = first.monitor.state_dict()
    first.monitor.close()
    second = Loop(tmp_path / "run", check_every=2, resume=True)
    second.monitor.load_state_dict(state)
    assert second.monitor.state_dict()["lanes"] == {"": 0, ONE: 20, TWO: 5}
    second.factors[ONE] = 1e6
    second.rounds(2, gen_every=4)
    second.monitor.close()
    (alarm, *_) = second.of(Alarm)
    assert (alarm.lane, alarm.step) == (ONE, 25)
    assert replay_run(tmp_path / "run").same


def test_an_unknown_optimizer_is_said_and_harms_nothing(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    """An error in the log, a line in the manifest; the others are watched on."""
    loop.rounds(8)
    other = torch.optim.AdamW(loop.net.gen.parameters())
    loop.step(other, loop.net.disc(loop.net.fake()).mean())
    loop.rounds(2)
    loop.monitor.close()
    assert "AdamW that the monitor does not know" in caplog.text
    lines = {m.name: m for m in loop.of(Manifest)[-1].mechanisms}
    assert "AdamW" in lines["optimizers"].reason
    assert len(loop.of(Measurement)) == 20
    assert loop.of(RunEnd)[0].steps == 21


@pytest.mark.parametrize("second", ["no optimizer", None])
def test_a_list_with_something_else_in_it_is_refused_at_once(tmp_path: Path, second: Any) -> None:
    """Which one it is, and what it is; the same optimizer twice is refused as well."""
    net = Gan()
    first = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="number 1 of 2"):
        Monitor(net, [first, second or first], out=tmp_path / "run")


def test_training_is_bit_identical_with_and_without_the_monitor(tmp_path: Path) -> None:
    """Two optimizers, every step checked."""
    watched = Loop(tmp_path / "run")
    watched.rounds(10, gen_every=3)
    watched.monitor.close()
    bare = Loop(tmp_path / "bare")
    bare.monitor.close()
    bare.rounds(10, gen_every=3)
    for name, value in watched.net.state_dict().items():
        assert torch.equal(value, bare.net.state_dict()[name]), name


def test_layers_in_no_optimizer_are_named(tmp_path: Path) -> None:
    """With several optimizers that step apart, nobody's layers are not judged, and it is said."""
    net, sink = Gan(), MemorySink()
    two = [
        torch.optim.SGD(net.disc[0].parameters(), lr=0.1),
        torch.optim.SGD(net.gen.parameters(), lr=0.1),
    ]
    Monitor(net, two, out=tmp_path / "run", sinks=[sink]).close()
    lines = [m for m in of(sink, Manifest)[0].mechanisms if "none of the optimizers" in m.reason]
    assert [line.layers for line in lines] == [("disc.2",)]
