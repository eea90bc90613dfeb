"""Settings for every test."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Before any framework is imported: nothing is fetched and nothing is reported to anyone.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["DO_NOT_TRACK"] = "true"
# Tests run side by side; threads of their own would only wait for each other. One also adds up
# numbers in the same order on every machine.
os.environ["OMP_NUM_THREADS"] = "1"

# A shell's background jobs ignore Ctrl-C, and so would what tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Deterministic and untimed: the same examples on every machine, however slow it is.
settings.register_profile("ormas", derandomize=True, deadline=None, database=None, max_examples=50)
settings.load_profile("ormas")

# Until the frameworks are imported, there is nothing to collect.
gc.disable()


def pytest_collection_finish() -> None:
    """Leave what is imported out of later collections, which it makes a hundred times slower."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture
def offline_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """W&B without a network, in the test's own folder, forgotten after it."""
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    yield wandb
    wandb.teardown()  # or the next test in this process writes to where this one did
