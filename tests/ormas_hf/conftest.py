"""What every test of the HF callback needs."""

import os
from typing import Any

import pytest
from accelerate.state import AcceleratorState, PartialState


@pytest.fixture(autouse=True)
def _fresh_accelerate_state() -> Any:
    """Trainers of one process share accelerate's state; each test starts without it.

    So they do what old ones leave in the environment, such as to compile, or to use bfloat16.
    """
    before = set(os.environ)
    yield
    for name in set(os.environ) - before:
        if name.startswith("ACCELERATE_"):
            del os.environ[name]
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState._reset_state()
