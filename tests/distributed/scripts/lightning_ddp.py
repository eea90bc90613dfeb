"""A user's script: Lightning on two processes, which it starts itself.

Arguments: the folder, and `alone` (the sink has a store of its own) or `logger` (the sink joins the
run of Lightning's logger).
"""

import os
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import MLFlowLogger
from ranks_support import script_main
from support import lightning_net, lightning_trainer, loader, plant_explosion
from truth import EXPLODING_RANK, EXPLOSION_AT, STEPS, report

from ormas_core import MemorySink
from ormas_lightning import LightningMonitorCallback
from ormas_mlflow import MLflowSink


def main(folder: Path, mlflow: str) -> dict[str, Any]:
    """Train, and say what this rank did, and which run its logger has."""
    options: dict[str, Any] = {"devices": 2, "strategy": "ddp"}
    logger_run = None
    if mlflow == "logger":
        uri = f"sqlite:///{folder}/mlflow.db"
        logger = MLFlowLogger("training", tracking_uri=uri, artifact_location=folder.as_uri())
        options["logger"], logger_run = logger, logger.run_id
        sink = MLflowSink(tracking_uri=uri, run_id=logger_run, close_timeout=60.0)
    else:
        options["gradient_clip_val"] = 1.0
        sink = MLflowSink.embedded(folder, close_timeout=60.0)
    memory = MemorySink()
    callback = LightningMonitorCallback(out=folder / "run", check_every=1, sinks=[memory, sink])
    net = lightning_net()
    if int(os.environ.get("LOCAL_RANK", "0")) == EXPLODING_RANK:
        plant_explosion(net, EXPLOSION_AT)
    trainer = lightning_trainer(folder, [callback], **options)
    trainer.fit(net, loader(2 * STEPS))
    found = report(trainer.global_rank, trainer.global_step, callback.monitor, memory, net)
    return {**found, "logger_run": logger_run}


if __name__ == "__main__":
    script_main(main)
