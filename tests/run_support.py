"""A training run whose certificates a test looks at step by step. No test lives here."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from repair_support import CERTIFIED, losses, plant_certified, sgd
from repair_support import Channels as Net
from torch import Tensor, nn
from torch.optim import Optimizer

from ormas_core import (
    Certificate,
    CertificateRefused,
    CertificateRevoked,
    Channels,
    ChannelsCleared,
    Event,
    MemorySink,
    Monitor,
    MonitorError,
    RunFacts,
)

Make = Callable[..., tuple[Monitor, MemorySink]]
Proof = Certificate | CertificateRefused | CertificateRevoked | Channels | ChannelsCleared


class Run:
    """Trains one step at a time, with whatever a test does in between.

    Attributes:
        net: the network.
        optimizer: its optimizer.
        source: the losses of its batches.
    """

    def __init__(
        self,
        make: Make,
        net: nn.Module,
        optimizer: Optimizer,
        source: Iterator[Tensor] | None = None,
        **options: Any,
    ) -> None:
        self.net, self.optimizer = net, optimizer
        self.source = losses(net) if source is None else source
        self._monitor, self._sink = make(net, optimizer, **options)
        self._seen = 0

    def step(self, before_check: Callable[[], object] | None = None, factor: float = 1.0) -> None:
        """Do one optimizer step; `before_check` comes between backward and the check."""
        self.optimizer.zero_grad()
        loss = factor * next(self.source)
        loss.backward()
        if before_check is not None:
            before_check()
        self.check(loss)
        self.optimizer.step()

    def check(self, loss: Tensor) -> None:
        """Let the monitor check the step."""
        self._monitor.step(loss)

    def steps(self, count: int) -> None:
        """Do some steps."""
        for _ in range(count):
            self.step()

    def accumulate(
        self, *, note: Sequence[bool], before_check: Callable[[], object] | None = None
    ) -> None:
        """Do one optimizer step of several losses, of which the monitor is shown those noted."""
        self.optimizer.zero_grad()
        for shown in note:
            loss = next(self.source)
            if shown:
                self._monitor.note_loss(loss)
            loss.backward()
        if before_check is not None:
            before_check()
        self._monitor.step()
        self.optimizer.step()

    def close(self) -> None:
        """End the run."""
        self._monitor.close()

    @property
    def facts(self) -> RunFacts:
        """What is known of the run."""
        return self._monitor.facts

    def news(self) -> list[Event]:
        """Return what was said since the last call of this; the monitor must not have failed."""
        events = self._sink.events[self._seen :]
        self._seen += len(events)
        assert not [event for event in events if isinstance(event, MonitorError)]
        return events

    def proofs(self) -> list[Proof]:
        """Return the news about certificates and channels."""
        return [event for event in self.news() if isinstance(event, Proof)]

    def certified(self) -> list[tuple[tuple[int, ...], str, bool]]:
        """Return the news of certificates: units, class, whether they were there at first."""
        return [
            (event.units, event.cls.value, event.initial)
            for event in self.news()
            if isinstance(event, Certificate)
        ]

    def revoked(self) -> dict[tuple[int, ...], str]:
        """Return the news of revocations: units -> reason."""
        return {
            event.units: event.reason
            for event in self.news()
            if isinstance(event, CertificateRevoked)
        }


def started(
    make: Make,
    net: Net | None = None,
    optimizer: Callable[[nn.Module], Optimizer] = sgd,
    **options: Any,
) -> Run:
    """Return a run in which channels 3 and 5 have had their certificates for two checks."""
    net = plant_certified(Net() if net is None else net)
    run = Run(make, net, optimizer(net), **options)
    run.steps(2)
    assert [units for units, _, _ in run.certified()] == [(unit,) for unit in CERTIFIED]
    return run


def write_gradient(net: Any, name: str, row: int) -> None:
    """Write to a gradient, as a user's own code between backward and step may."""
    net.get_parameter(name).grad[row] += 1e-3


class SmallScale(nn.Module):
    """linear -> batch norm -> ReLU, where channels 3 and 4 have a small scale and shift -0.5."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.fc = nn.Linear(6, 8, bias=False)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3)
        with torch.no_grad():
            self.norm.bias.fill_(0.1)
            self.norm.weight[[3, 4]], self.norm.bias[[3, 4]] = 0.05, -0.5

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.fc(x))))


class FarBias(nn.Module):
    """linear -> ReLU, where units 1, 4 and 7 have a bias of -50."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.fc = nn.Linear(6, 8)
        self.head = nn.Linear(8, 3)
        with torch.no_grad():
            self.fc.bias[[1, 4, 7]] = -50.0

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.fc(x)))


class Batches:
    """Losses over uniform inputs in [-1, 1], of a size and offset that a test may change.

    Attributes:
        rows: samples of the next batch.
        offset: what is added to its inputs.
        size: what its inputs are multiplied with.
    """

    def __init__(self, net: nn.Module, rows: int = 20) -> None:
        self._net = net
        self._generator = torch.Generator().manual_seed(11)
        self.rows, self.offset, self.size = rows, 0.0, 1.0

    def __iter__(self) -> Iterator[Tensor]:
        return self

    def __next__(self) -> Tensor:
        x = self.size * (2 * torch.rand(self.rows, 6, generator=self._generator) - 1)
        target = torch.randint(0, 3, (self.rows,), generator=self._generator)
        return nn.functional.cross_entropy(self._net(x + self.offset), target)
