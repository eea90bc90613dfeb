"""A small run of the checkpoint fuzz, as part of the tests."""

import pickle
import sys
from pathlib import Path

import pytest
from fuzz.checkpoints import TRACE, Traced, files


def test_the_trace_would_be_left() -> None:
    """The object that mutants hold does run where a pickle is loaded: the fuzz can fail."""
    try:
        pickle.loads(pickle.dumps(Traced()))  # noqa: S301 - made here
        assert TRACE in sys.modules
    finally:
        sys.modules.pop(TRACE, None)


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")  # of mutated zip directories
def test_mutated_pytorch_files_are_neither_run_nor_a_crash(tmp_path: Path) -> None:
    """Six hundred of them, of three formats, the same on every machine."""
    found = files(600, tmp_path / "mutant")
    assert found["not readable"] > 50
    assert found["readable"] > 50
