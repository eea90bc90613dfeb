"""A user's script: the transformers Trainer under torchrun.

Arguments: the folder, and `alone` (the sink has a store of its own, the Trainer clips) or
`reporter` (the sink joins the run of the Trainer's own MLflow callback, which reports every step).
"""

import os
from pathlib import Path
from typing import Any

from ranks_support import script_main
from support import Toy, ToyNet, hf_arguments, hf_trainer, plant_explosion
from truth import EXPLODING_RANK, EXPLOSION_AT, STEPS, report

from ormas_core import MemorySink
from ormas_hf import HFMonitorCallback
from ormas_mlflow import MLflowSink


def main(folder: Path, mlflow: str) -> dict[str, Any]:
    """Train, and say what this rank did, and the gradient norms that the Trainer logged."""
    options: dict[str, Any] = {"logging_strategy": "steps", "logging_steps": 1}
    if mlflow == "reporter":
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        options["report_to"] = "mlflow"
        sink = MLflowSink(close_timeout=60.0)
    else:
        options["max_grad_norm"] = 1.0
        sink = MLflowSink.embedded(folder, close_timeout=60.0)
    memory = MemorySink()
    callback = HFMonitorCallback(out=folder / "run", check_every=1, sinks=[memory, sink])
    net = ToyNet()
    if int(os.environ["RANK"]) == EXPLODING_RANK:
        plant_explosion(net, EXPLOSION_AT)
    arguments = hf_arguments(folder / "trainer", **options)
    trainer = hf_trainer(net, arguments, [callback], train_dataset=Toy(2 * STEPS))
    with callback:
        trainer.train()
    state = trainer.state
    return {
        **report(arguments.process_index, state.global_step, callback.monitor, memory, net),
        "grad_norms": [line["grad_norm"] for line in state.log_history if "grad_norm" in line],
    }


if __name__ == "__main__":
    script_main(main)
