"""What several tests of the Lightning callback share; no test."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.utilities import grad_norm
from support import FEATURES, layer_norms, lightning_net, lightning_trainer, loader, of, toy_loss
from torch import Tensor, nn

from ormas_core import (
    Certificate,
    CertificateRefused,
    Measurement,
    MemorySink,
    MonitorError,
    Stage,
)
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


class Totals(Callback):
    """Keeps the total norm that Lightning itself finds before it clips."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_before_optimizer_step(
        self, trainer: Any, pl_module: LightningModule, optimizer: Any
    ) -> None:
        self.values.append(float(grad_norm(pl_module, norm_type=2)["grad_2.0_norm_total"]))


def clipped_fit(folder: Path, net: Any, data: Any = None, clip: float = 1e-2) -> MemorySink:
    """Fit with clipping; norms and clip factors must be those that Lightning has itself."""
    callback, sink = make(folder)
    totals = Totals()
    trainer = lightning_trainer(folder, [callback, totals], gradient_clip_val=clip)
    trainer.fit(net, loader(4) if data is None else data)
    found = [math.hypot(*(norm for norm in norms.values() if norm)) for norms in layer_norms(sink)]
    assert len(found) == trainer.global_step
    assert found == pytest.approx(totals.values, rel=1e-4)
    seen = of(sink, Measurement)
    assert {m.stage for m in seen} == {Stage.PRE_CLIP}
    factors = [min(1.0, clip / total) for total in totals.values]
    assert [m.clip_factor for m in seen] == pytest.approx(factors, rel=1e-3)
    assert not of(sink, MonitorError)
    return sink


def assert_closed_now_at_most(sink: MemorySink, optimizer: str) -> None:
    """Nothing is certified for longer than now, and the refusal names the optimizer."""
    assert {c.cls.value for c in of(sink, Certificate)} <= {"closed_now"}
    reasons = [refused.reason for refused in of(sink, CertificateRefused) if refused.layer == "fc1"]
    assert any(optimizer in reason for reason in reasons), reasons


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
