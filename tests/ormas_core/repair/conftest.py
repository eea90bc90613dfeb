"""The monitor that tests of repair share."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ormas_core import MemorySink, Monitor

Make = Callable[..., tuple[Monitor, MemorySink]]


@pytest.fixture(name="make")
def make_and_close(make: Make) -> Iterator[Make]:
    """Make monitors as elsewhere, and close them; networks this small need no threads."""
    made: list[Monitor] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def build(*args: Any, **options: Any) -> tuple[Monitor, MemorySink]:
        for earlier in made:
            earlier.close()
        monitor, sink = make(*args, **options)
        made.append(monitor)
        return monitor, sink

    yield build
    for monitor in made:
        monitor.close()
    torch.set_num_threads(threads)
