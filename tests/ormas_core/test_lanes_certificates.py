"""Certificates where several optimizers step apart: what the losses of a whole round prove."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ormas_core import Certificate, CertificateRefused, CertificateRevoked, MemorySink, Monitor

Found = list[tuple[str, tuple[int, ...], str]]


class Pair(nn.Module):
    """A generator and a discriminator; the first loss of a round is about one of them only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.gen = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6))
        self.disc = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))

    @torch.no_grad()
    def close_disc(self, unit: int) -> None:
        """Close a unit by a zero row and a negative bias."""
        self.disc[0].weight[unit], self.disc[0].bias[unit] = 0, -0.1

    @torch.no_grad()
    def close_gen(self, unit: int) -> None:
        """Close a unit by its zero row, bias and column: as it is, it would never move."""
        self.gen[0].weight[unit], self.gen[0].bias[unit] = 0, 0
        self.gen[2].weight[:, unit] = 0


class Rounds:
    """Training of the two sides, each with an optimizer and losses of its own."""

    def __init__(self, folder: Path, net: Pair, every: int = 1, **adam: Any) -> None:
        self.net, self.sink = net, MemorySink()
        self.disc = torch.optim.SGD(net.disc.parameters(), lr=0.05)
        self.gen = torch.optim.Adam(net.gen.parameters(), lr=1e-3, **adam)
        self.monitor = Monitor(
            net,
            [self.disc, self.gen],
            out=folder,
            check_every=every,
            verbose=False,
            sinks=[self.sink],
        )

    def discriminate(self) -> None:
        fake = self.net.gen(torch.randn(16, 4)).detach()
        both = self.net.disc(torch.cat([torch.randn(16, 6) + 1, fake]))
        self._step(self.disc, nn.functional.softplus(both).mean())

    def generate(self) -> None:
        lie = self.net.disc(self.net.gen(torch.randn(16, 4)))
        self._step(self.gen, nn.functional.softplus(-lie).mean())

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.discriminate()
            self.generate()

    def _step(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        self.disc.zero_grad()
        self.gen.zero_grad()
        loss.backward()
        self.monitor.step(loss, optimizer)
        optimizer.step()

    def certified(self) -> Found:
        """Return what was certified: layer, units, optimizer."""
        return [(e.layer, e.units, e.optimizer) for e in self._of(Certificate)]

    def refused(self) -> Found:
        """Return what was refused: layer, units, reason."""
        return [(e.layer, e.units, e.reason) for e in self._of(CertificateRefused)]

    def revoked(self) -> Found:
        """Return what was revoked: layer, units, reason."""
        return [(e.layer, e.units, e.reason) for e in self._of(CertificateRevoked)]

    def _of(self, kind: type) -> list[Any]:
        return [event for event in self.sink.events if isinstance(event, kind)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Rounds]]:
    made: list[Rounds] = []

    def started(net: Pair, **options: int) -> Rounds:
        made.append(Rounds(tmp_path / "run", net, **options))
        return made[-1]

    yield started
    for run in made:
        run.monitor.close()


def test_a_unit_that_both_losses_reach_is_certified(start: Callable[[Pair], Rounds]) -> None:
    """Once, under its own optimizer, when both sides have had a step; it stays where it is."""
    net = Pair()
    net.close_disc(3)
    run = start(net)
    run.discriminate()
    assert run.certified() == []
    run.generate()
    assert run.certified() == [("disc.0", (3,), "SGD")]
    kept = net.disc[0].weight[3].clone(), net.disc[0].bias[3].clone()
    run.rounds(5)
    assert torch.equal(net.disc[0].weight[3], kept[0])
    assert torch.equal(net.disc[0].bias[3], kept[1])
    assert (len(run.certified()), run.refused(), run.revoked()) == (1, [], [])


@pytest.mark.parametrize("first", ["discriminate", "generate"])
def test_a_unit_that_one_loss_does_not_reach_is_refused(
    first: str, start: Callable[[Pair], Rounds]
) -> None:
    """What one graph says nothing of is not proven, whichever side steps first; said once."""
    net = Pair()
    net.close_gen(2)
    run = start(net)
    if first == "generate":
        run.generate()
    run.rounds(3)
    reason = "the graphs of one step differ: 1 of 2 close it"
    assert run.refused() == [("gen.0", (2,), reason)]
    assert run.certified() == []


def test_a_unit_that_the_other_side_opens_is_revoked(start: Callable[[Pair], Rounds]) -> None:
    """Its weights are written between the two steps of a round, which the next check sees."""
    net = Pair()
    net.close_disc(3)
    run = start(net)
    run.rounds(2)
    run.discriminate()
    with torch.no_grad():
        net.disc[0].weight[3] = 0.5
    run.generate()
    ((layer, units, reason),) = run.revoked()
    assert (layer, units) == ("disc.0", (3,))
    assert reason.endswith("in a closed channel")


@pytest.mark.parametrize("every", [2, 3, 5])
def test_steps_between_checks_do_not_count(every: int, start: Callable[..., Rounds]) -> None:
    """One optimizer's check may be due while the other steps: that step is none of the check's."""
    net = Pair()
    net.close_disc(3)
    run = start(net, every=every)
    run.rounds(4 * every + 1)
    assert run.certified() == [("disc.0", (3,), "SGD")]
    assert (run.refused(), run.revoked()) == ([], [])


def test_a_round_that_is_never_completed_is_guarded(start: Callable[[Pair], Rounds]) -> None:
    """One side alone goes on; of the other side's loss nothing is known, of the weights enough."""
    net = Pair()
    net.close_disc(3)
    run = start(net)
    run.rounds(2)
    for _ in range(3):
        run.discriminate()
    assert run.revoked() == []
    with torch.no_grad():
        net.disc[0].weight[3], net.disc[0].bias[3] = 0.5, 0.5
    run.discriminate()
    ((layer, units, _),) = run.revoked()
    assert (layer, units) == ("disc.0", (3,))
