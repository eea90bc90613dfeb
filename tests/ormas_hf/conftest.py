"""What every test of the HF callback needs."""

import os
from typing import Any

import pytest
from accelerate.state import AcceleratorState, PartialState


@pytest.fixture(autouse=True)
def _fresh_accelerate_state() -> Any:
    """Trainers of one process share accelerate's state; each test starts without it.

    Old ones ask accelerate to compile by a variable of the environment, and leave it there.
    """
    yield
    for name in [name for name in os.environ if name.startswith("ACCELERATE_DYNAMO_")]:
        del os.environ[name]
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState._reset_state()
