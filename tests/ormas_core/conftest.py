"""The monitor that tests of the core share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from ormas_core import MemorySink, Monitor


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., tuple[Monitor, MemorySink]]:
    """Make a quiet monitor with a memory sink; every step is a check unless told otherwise."""

    def build(
        model: nn.Module, optimizer: Any = None, **options: Any
    ) -> tuple[Monitor, MemorySink]:
        sink = MemorySink()
        settings = {"out": tmp_path / "run", "check_every": 1, "verbose": False, **options}
        settings["sinks"] = [*settings.get("sinks", ()), sink]
        return Monitor(model, optimizer, **settings), sink

    return build
