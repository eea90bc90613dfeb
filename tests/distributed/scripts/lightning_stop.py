"""A user's script: Lightning on two processes, with `stop_on` and a loss that is NaN on rank 1."""

from pathlib import Path
from typing import Any

import torch
from ranks_support import script_main
from support import lightning_net, lightning_trainer, loader, toy_loss
from torch import Tensor

from ormas_lightning import LightningMonitorCallback

NAN_AT = 6


class Net(type(lightning_net())):  # type: ignore[misc]
    """The toy network; one rank's loss is NaN once, and its gradients are not."""

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss = toy_loss(self, **batch)
        if batch_idx == NAN_AT and self.global_rank == 1:
            return torch.where(torch.tensor(True), loss.detach() * torch.nan, loss)
        return loss


def main(folder: Path) -> dict[str, Any]:
    """Train, and say where this rank stopped and why."""
    callback = LightningMonitorCallback(
        out=folder / "run", check_every=3, stop_on="nonfinite_loss", verbose=False
    )
    trainer = lightning_trainer(folder, [callback], devices=2, strategy="ddp")
    trainer.fit(Net(), loader(40))
    assert callback.monitor is not None
    stopped = callback.monitor.facts.stopped
    return {
        "steps": trainer.global_step,
        "should_stop": trainer.should_stop,
        "asked_at": stopped.step if stopped is not None else None,
        "by": list(stopped.ranks) if stopped is not None else None,
    }


if __name__ == "__main__":
    script_main(main)
