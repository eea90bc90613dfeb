"""Models, callbacks and trainings that tests of the HF callback share. No test lives here."""

from pathlib import Path
from typing import Any

from causal_support import tiny_llama, token_rows
from support import layer_norms, of
from transformers import TrainerCallback

from ormas_core import MemorySink
from ormas_hf import HFMonitorCallback

__all__ = ["Logged", "layer_norms", "make", "of", "tiny_llama", "token_rows"]


def make(folder: Path, **options: Any) -> tuple[HFMonitorCallback, MemorySink]:
    """Return a callback that checks every step, and the sink that its events go to."""
    sink = MemorySink()
    options = {"check_every": 1, "verbose": False, "sinks": [sink], **options}
    return HFMonitorCallback(out=folder / "run", **options), sink


class Logged(TrainerCallback):
    """Keeps what the Trainer logs under a name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kw: Any) -> None:
        if self.name in logs:
            self.values.append(float(logs[self.name]))
