"""What several tests of the Lightning callback share; no test."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from support import FEATURES, lightning_net, toy_loss
from torch import Tensor, nn

from ormas_core import MemorySink
from ormas_lightning import LightningMonitorCallback


def make(folder: Path, **options: Any) -> tuple[LightningMonitorCallback, MemorySink]:
    """Return a callback that checks every step into `folder / "run"`, and what it says."""
    sink = MemorySink()
    options = {"check_every": 1, "verbose": False, "sinks": [sink], **options}
    return LightningMonitorCallback(out=folder / "run", **options), sink


def lit(**methods: Any) -> LightningModule:
    """Return the toy LightningModule with some methods replaced."""
    net: LightningModule = type("Net", (type(lightning_net()),), methods)()
    return net


def scaled_step(factors: dict[int, float]) -> Any:
    """Return a `training_step` whose loss is multiplied at some batches."""

    def training_step(self: Any, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return toy_loss(self, **batch) * factors.get(batch_idx, 1.0)

    return training_step


class Gan(LightningModule):
    """Manual optimization: the discriminator in each batch, the generator in every so many."""

    def __init__(self, gen_every: int = 1, explode_at: int | None = None) -> None:
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(5)
        self.gen = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, FEATURES))
        self.disc = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, 1))
        self.noise = torch.Generator().manual_seed(6)
        self.gen_every, self.explode_at = gen_every, explode_at

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        disc = torch.optim.SGD(self.disc.parameters(), lr=1e-3)
        return [disc, torch.optim.Adam(self.gen.parameters(), lr=1e-4)]

    def update(self, place: int, loss: Tensor) -> None:
        optimizer = self.optimizers()[place]
        self.toggle_optimizer(optimizer)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.untoggle_optimizer(optimizer)

    def fake(self, count: int) -> Tensor:
        return self.gen(torch.randn(count, 4, generator=self.noise))

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        real, fake = batch["x"], self.fake(len(batch["x"]))
        truth = nn.functional.softplus(-self.disc(real + 1.0)).mean()
        self.update(0, truth + nn.functional.softplus(self.disc(fake.detach())).mean())
        if batch_idx % self.gen_every == self.gen_every - 1:
            factor = 1e6 if batch_idx == self.explode_at else 1.0
            fake = self.fake(len(real))
            self.update(1, nn.functional.softplus(-self.disc(fake)).mean() * factor)
