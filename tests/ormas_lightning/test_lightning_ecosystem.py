"""Packages that people use with Lightning and that the oldest versions lack: bitsandbytes."""

from pathlib import Path
from typing import Any

from lightning_support import assert_closed_now_at_most, clipped_fit, lit
from support import kill_unit, of
from torch.optim import Optimizer

from ormas_core import RunStart


def test_adam_in_eight_bits_cannot_be_certified_and_that_is_said(tmp_path: Path) -> None:
    """Bitsandbytes keeps rounded moments: a dead unit is refused, with the optimizer as reason."""
    from bitsandbytes.optim import Adam8bit

    def configure_optimizers(self: Any) -> Optimizer:
        optimizer: Optimizer = Adam8bit(self.parameters(), lr=1e-3)
        return optimizer

    net = lit(configure_optimizers=configure_optimizers)
    kill_unit(net)
    sink = clipped_fit(tmp_path, net)
    assert of(sink, RunStart)[0].optimizer == "Adam8bit"
    assert_closed_now_at_most(sink, "Adam8bit")
