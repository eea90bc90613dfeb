"""A user's script: Lightning starts its processes from this one, by fork or by spawn.

Arguments: the folder, and the strategy. The callback and the module are pickled for spawn.
"""

import gc
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule
from lightning_support import Gan
from support import lightning_trainer, loader

from ormas_lightning import LightningMonitorCallback


class Leave(Callback):
    """Leaves the process group before the process ends: gloo aborts otherwise, now and then."""

    def teardown(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        gc.collect()
        dist.barrier()
        dist.destroy_process_group()


def main(folder: Path, strategy: str) -> None:
    """Train on two processes, and look at what is left in this one."""
    # Handing tensors over by file descriptors needs more of a sandbox than some allow.
    torch.multiprocessing.set_sharing_strategy("file_system")
    callback = LightningMonitorCallback(out=folder / "run", check_every=2, verbose=False)
    options = {"devices": 2, "strategy": f"{strategy}_find_unused_parameters_true"}
    lightning_trainer(folder, [callback, Leave()], **options).fit(Gan(), loader(12))
    assert callback.monitor is None


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
