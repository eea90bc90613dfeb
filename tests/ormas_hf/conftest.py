"""What every test of the HF callback needs."""

from typing import Any

import pytest
from accelerate.state import AcceleratorState, PartialState


@pytest.fixture(autouse=True)
def _fresh_accelerate_state() -> Any:
    """Trainers of one process share accelerate's state; each test starts without it."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState._reset_state()
