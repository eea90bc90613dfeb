"""The monitor that tests of repair share."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ormas_core import MemorySink, Monitor

Make = Callable[..., tuple[Monitor, MemorySink]]


@pytest.fixture(name="make")
def make_and_close(make: Make) -> Iterator[Make]:
    """Make monitors as elsewhere, and close them."""
    made: list[Monitor] = []

    def build(*args: Any, **options: Any) -> tuple[Monitor, MemorySink]:
        for earlier in made:
            earlier.close()
        monitor, sink = make(*args, **options)
        made.append(monitor)
        return monitor, sink

    yield build
    for monitor in made:
        monitor.close()
