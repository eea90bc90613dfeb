"""What every test of the HF callback needs."""

import os
from typing import Any
from unittest import mock

import pytest
from accelerate.state import AcceleratorState, PartialState


@pytest.fixture(autouse=True)
def _fresh_accelerate_state() -> Any:
    """Trainers of one process share accelerate's state; each test starts without it.

    So they do what old ones leave in the environment, such as to compile, or to use bfloat16.
    """
    with mock.patch.dict(os.environ):
        for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
            del os.environ[name]
        yield
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState._reset_state()
