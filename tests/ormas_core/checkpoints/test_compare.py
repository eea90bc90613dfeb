"""A checkpoint beside its base: the same, cast, moved, and which rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builders import f32, write_safetensors

from ormas_core.checkpoints import Against, Comparison, State, blocks, open_checkpoint

Tensor = tuple[str, tuple[int, ...], bytes]


def compared(tmp_path: Path, mine: Tensor, base: Tensor, name: str = "w") -> Comparison:
    """Return how one tensor stands beside another."""
    one = open_checkpoint(write_safetensors(tmp_path / "one", {"w": mine}))
    two = open_checkpoint(write_safetensors(tmp_path / "two", {name: base}))
    (facts,) = one.tensors(two)
    assert facts.base is not None
    return facts.base


def typed(dtype: str, numbers: Any) -> Tensor:
    """Return a tensor of a type of NumPy or of bfloat16, rounded as torch does."""
    import torch

    names = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}
    tensor = torch.tensor(np.asarray(numbers, np.float32)).to(names[dtype])
    return dtype, tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("block", [16, 48, 2**20])
def test_rows_that_moved_are_told(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by itself, in one block or in several, wherever in the row the change is."""
    monkeypatch.setattr(blocks, "BLOCK", block)
    found = compared(tmp_path, f32(6, 9, i13=99, i53=0), f32(6, 9))
    assert found.verdict is Against.DIFFERENT
    assert found.moved.tolist() == [False, True, False, False, False, True]
    same = compared(tmp_path, f32(6, 9), f32(6, 9))
    assert (same.verdict, same.moved.any()) == (Against.SAME, False)


@pytest.mark.parametrize("narrow", ["F16", "BF16"])
@pytest.mark.parametrize("mine_is_narrow", [True, False])
def test_a_cast_is_no_movement(narrow: str, mine_is_narrow: bool, tmp_path: Path) -> None:
    """In either direction; a change that the narrow type can show is one."""
    rng = np.random.default_rng(2)
    numbers = rng.standard_normal((5, 70)).astype(np.float32)
    numbers[0, :3] = [1e-9, 1e30, np.nan]
    pair = typed(narrow, numbers), typed("F32", numbers)
    found = compared(tmp_path, *(pair if mine_is_narrow else pair[::-1]))
    assert (found.verdict, found.dtype) == (Against.CAST, pair[mine_is_narrow][0])
    numbers[3, 5] += 1
    pair = typed(narrow, numbers), pair[1]
    found = compared(tmp_path, *(pair if mine_is_narrow else pair[::-1]))
    assert found.verdict is Against.DIFFERENT
    assert found.moved.tolist() == [False, False, False, True, False]


def test_a_vocabulary_that_grew_is_compared_where_both_have_rows(tmp_path: Path) -> None:
    """The verdict is that the shape changed; the shared rows are compared."""
    found = compared(tmp_path, f32(7, 3, i4=50), f32(5, 3))
    assert (found.verdict, found.shape) == (Against.RESHAPED, (5, 3))
    assert found.moved.tolist() == [False, True, False, False, False]
    shrunk = compared(tmp_path, f32(5, 3), f32(7, 3))
    assert shrunk.moved.tolist() == [False] * 5
    assert compared(tmp_path, f32(3, 5), f32(5, 3)).moved is None


def test_names_are_compared_without_wrappers(tmp_path: Path) -> None:
    """`module.` and `_orig_mod.` make no other tensor; another name does."""
    assert compared(tmp_path, f32(3), f32(3), "module._orig_mod.w").verdict is Against.SAME
    assert compared(tmp_path, f32(3), f32(3), "v").verdict is Against.ABSENT


def test_what_cannot_be_compared_is_unknown(tmp_path: Path) -> None:
    """Types without a common measure, and a base that ends too early."""
    assert compared(tmp_path, f32(2), ("I32", (2,), bytes(8))).verdict is Against.UNKNOWN
    one = open_checkpoint(write_safetensors(tmp_path / "one", {"w": f32(400)}))
    two = open_checkpoint(write_safetensors(tmp_path / "two", {"w": f32(400)}))
    with (tmp_path / "two").open("r+b") as file:
        file.truncate(200)
    (facts,) = one.tensors(two)
    assert facts.state is State.READ
    assert facts.base is not None
    assert facts.base.verdict is Against.UNKNOWN


def test_packed_weights_are_compared_too(tmp_path: Path) -> None:
    """Whether they moved can be said, though not what they are."""
    packed = {"l.qweight": ("I32", (4, 2), bytes(range(32)))}
    one = open_checkpoint(write_safetensors(tmp_path / "one", packed))
    two = open_checkpoint(write_safetensors(tmp_path / "two", packed))
    (facts,) = one.tensors(two)
    assert facts.state is State.PACKED
    assert facts.base is not None
    assert facts.base.verdict is Against.SAME
