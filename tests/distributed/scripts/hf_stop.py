"""A user's script: the transformers Trainer under torchrun, with a NaN loss on rank 1 only.

Arguments: the folder, and optimizer steps between two checks.
"""

import os
from pathlib import Path
from typing import Any

from ranks_support import script_main
from support import Toy, ToyNet, hf_arguments, hf_trainer
from torch import Tensor

from ormas_core import Measurement, MemorySink, NonfiniteLoss
from ormas_hf import HFMonitorCallback

BAD_RANK = 1
BAD_FROM = 5
"""Forward pass, from 1, at which the losses of that rank become NaN."""


class Net(ToyNet):
    """The toy network; its loss is NaN on one rank, though not its gradients."""

    calls = 0

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss."""
        self.calls += 1
        bad = int(os.environ["RANK"]) == BAD_RANK and self.calls >= BAD_FROM
        return {"loss": super().forward(x, labels)["loss"] + (float("nan") if bad else 0.0)}


def main(folder: Path, every: str) -> dict[str, Any]:
    """Train, and say where this rank stopped and what it saw."""
    memory = MemorySink()
    callback = HFMonitorCallback(
        out=folder / "run", check_every=int(every), sinks=[memory], stop_on="nonfinite_loss"
    )
    arguments = hf_arguments(folder / "trainer", max_grad_norm=1.0)
    trainer = hf_trainer(Net(), arguments, [callback], train_dataset=Toy(40))
    with callback:
        trainer.train()
    assert callback.monitor is not None
    facts = callback.monitor.facts
    return {
        "steps": trainer.state.global_step,
        "stopped": facts.stopped is not None and facts.stopped.step,
        "own": facts.counts.get(NonfiniteLoss.kind, 0),
        "checks": facts.counts[Measurement.kind],
    }


if __name__ == "__main__":
    script_main(main)
