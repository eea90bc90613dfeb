"""Folders of `torch.distributed.checkpoint`: read by torch, once it is known that this is safe."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from checkpoint_builders import codes, details, read_all

from ormas_core.checkpoints import Kind, State, open_checkpoint


def saved(folder: Path) -> Path:
    """Return a folder as one process saves it."""
    state = {
        "model": {"w": torch.arange(12.0).reshape(3, 4), "n": torch.tensor([1.0, float("nan")])},
        "optim": {"exp_avg": torch.zeros(3)},
        "step": 3,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder


def test_it_is_read_without_a_process_group(tmp_path: Path) -> None:
    """Weights with their values; what belongs to the optimizer is left out."""
    found, facts = read_all(saved(tmp_path / "dcp"))
    assert (found.kind, codes(found)) == (Kind.DISTRIBUTED, ["not-judged"])
    assert set(facts) == {"w", "n"}
    assert facts["w"].magnitude.tolist() == [3.0, 7.0, 11.0]
    assert (facts["n"].nan, facts["n"].first) == (1, (1,))


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    """And its tensors are unreadable."""
    folder = saved(tmp_path / "dcp")
    for part in folder.glob("*.distcp"):
        part.unlink()
    found, facts = read_all(folder)
    assert "missing-file" in codes(found)
    assert {f.state for f in facts.values()} == {State.UNREADABLE}


def test_a_part_by_itself_is_not_taken_for_a_whole_file(tmp_path: Path) -> None:
    """It is zip files in a row, of which only the last is in the directory at its end."""
    (part,) = saved(tmp_path / "dcp").glob("*.distcp")
    found, facts = read_all(part)
    assert (codes(found), facts) == (["unsupported"], {})
    assert "check the folder" in details(found)


def test_a_folder_whose_metadata_was_not_written_is_not_finished(tmp_path: Path) -> None:
    """It is written last; its parts are not guessed at."""
    (saved(tmp_path / "dcp") / ".metadata").unlink()
    found, facts = read_all(tmp_path / "dcp")
    assert (found.kind, codes(found), facts) == (Kind.DISTRIBUTED, ["missing-file"], {})


class _Evil:
    def __init__(self, function: Any) -> None:
        self.function = function

    def __reduce__(self) -> Any:
        return (self.function, ("true",))


def test_a_metadata_file_that_would_run_code_is_not_opened(tmp_path: Path) -> None:
    """Torch's reader would run it; what it would import is said."""
    import os

    (tmp_path / ".metadata").write_bytes(pickle.dumps(_Evil(os.system)))
    found = open_checkpoint(tmp_path)
    assert (codes(found), found.entries) == (["unreadable"], ())
    assert "posix.system" in details(found)


def test_a_dotted_name_does_not_pass_for_a_part_of_torch(tmp_path: Path) -> None:
    """Pickles may name attributes of attributes: a known beginning proves nothing."""
    module, name = b"torch.distributed.checkpoint.metadata", b"os.system"
    raw = b"".join(
        (b"\x80\x04\x8c", bytes([len(module)]), module, b"\x8c", bytes([len(name)]), name)
    )
    (tmp_path / ".metadata").write_bytes(raw + b"\x93\x8c\x04true\x85R.")
    found = open_checkpoint(tmp_path)
    assert codes(found) == ["unreadable"]
    assert "metadata.os.system" in details(found)


@pytest.mark.parametrize("raw", [b"", b"\x80\x04", b"garbage", b"\x80\x04N."])
def test_a_metadata_file_that_is_none_is_told(raw: bytes, tmp_path: Path) -> None:
    """Without a traceback."""
    (tmp_path / ".metadata").write_bytes(raw)
    assert codes(open_checkpoint(tmp_path)) == ["unreadable"]
