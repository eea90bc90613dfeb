"""What one pass says of a tensor, against the same said slowly."""

import math
from typing import Any, Final

import numpy as np
import pytest
from checkpoint_builders import read_all, write_safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from ormas_core.checkpoints import State, TensorFacts, blocks
from ormas_core.checkpoints.dtypes import LAYOUTS, TORCH_ONLY, bytes_of
from ormas_core.checkpoints.opened import Checkpoint, Entry, Kind

TORCH_NAMES: Final = {
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu", "U8": "uint8", "I8": "int8",
    "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32", "U64": "uint64",
    "I64": "int64", "C64": "complex64", "C128": "complex128", "C32": "complex32",
}  # fmt: skip


def numbers_of(dtype: str, raw: bytes) -> Any:
    """Return what torch reads in some bytes, as float64; complex parts one by one."""
    import torch

    kind = getattr(torch, TORCH_NAMES[dtype])
    tensor = torch.frombuffer(bytearray(raw), dtype=kind)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor).reshape(-1)
    return (
        tensor.to(torch.float64).numpy()
        if "64" not in dtype or dtype[0] in "FC"
        else (np.frombuffer(raw, "i8" if dtype == "I64" else "u8").astype(np.float64))
    )


def facts_of(dtype: str, shape: tuple[int, ...], raw: bytes) -> TensorFacts:
    """Return the facts of a tensor in memory."""
    entry = Entry(
        name="t",
        dtype=dtype,
        shape=shape,
        file="f",
        size=len(raw),
        source=lambda: np.frombuffer(raw, np.uint8),
    )
    (facts,) = Checkpoint(path=None, kind=Kind.ZIP, entries=(entry,)).tensors()  # type: ignore[arg-type]
    return facts


def check(dtype: str, rows: int, columns: int, raw: bytes) -> None:
    """Compare the facts of a tensor with those that follow from its numbers one by one."""
    facts = facts_of(dtype, (rows, columns), raw)
    assert facts.state is State.READ, facts.reason
    numbers = numbers_of(dtype, raw)
    parts = len(numbers) // (rows * columns)
    bad = ~np.isfinite(numbers)
    assert facts.nan == np.isnan(numbers).sum()
    assert facts.inf == np.isinf(numbers).sum()
    if bad.any():
        at = int(bad.argmax()) // parts
        assert facts.first == (at // columns, at % columns)
    else:
        assert facts.first is None
    table = np.where(bad, 0, np.abs(numbers)).reshape(rows, -1)
    np.testing.assert_array_equal(facts.magnitude, table.max(axis=1))
    assert facts.bad_rows == bad.reshape(rows, -1).any(axis=1).sum()
    several = rows * columns > 1
    constant = several and not bad.any() and (numbers.reshape(-1, parts) == numbers[:parts]).all()
    assert (facts.constant is not None) == constant


@pytest.mark.parametrize("dtype", sorted(TORCH_NAMES))
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_pass_agrees_with_torch_number_by_number(dtype: str, data: st.DataObject) -> None:
    """Counts, first index and row magnitudes of random bits, of every type torch can read."""
    rows, columns = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 40))
    size = bytes_of(dtype, 1)
    total = rows * columns * size
    pool = data.draw(st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=6))
    picks = data.draw(
        st.lists(st.integers(0, len(pool) - 1), min_size=total // size, max_size=total // size)
    )
    check(dtype, rows, columns, b"".join(pool[pick] for pick in picks))


@pytest.mark.parametrize("dtype", sorted(TORCH_NAMES))
def test_rows_that_do_not_fit_a_block_are_put_together(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows longer and shorter than a block give the same as in one piece."""
    rng = np.random.default_rng(5)
    for block in (16, 48, 1024):
        monkeypatch.setattr(blocks, "BLOCK", block)
        raw = rng.integers(0, 256, 6 * 21 * bytes_of(dtype, 1), np.uint8).tobytes()
        check(dtype, 6, 21, raw)


def test_four_and_six_bits_are_unpacked() -> None:
    """The magnitudes of packed elements are those of the OCP formats."""
    four = facts_of("F4", (2, 4), bytes([0x21, 0x80, 0xF0, 0x07]))
    assert four.magnitude.tolist() == [1.0, 6.0]
    six = facts_of("F6_E2M3", (1, 4), bytes([0x1F, 0x00, 0x00]))
    assert six.magnitude.tolist() == [7.5]
    other = facts_of("F6_E3M2", (1, 4), bytes([0x00, 0x00, 0xFC]))
    assert other.magnitude.tolist() == [28.0]


def test_a_scale_of_eight_exponent_bits_has_no_zero() -> None:
    """All bits clear is the smallest scale and not zero."""
    facts = facts_of("F8_E8M0", (4,), bytes([0, 0, 0, 0]))
    assert facts.constant == 2.0**-127
    assert facts.magnitude.tolist() == [2.0**-127] * 4


def test_every_type_of_the_format_is_read(tmp_path: Any) -> None:
    """No dtype of the safetensors library is left uninspected."""
    tensors = {
        dtype: (dtype, (8, 4), bytes(1 + at % 250 for at in range(bytes_of(dtype, 32))))
        for dtype in LAYOUTS
    }
    _, facts = read_all(write_safetensors(tmp_path / "m.safetensors", tensors))
    assert {name: fact.state for name, fact in facts.items()} == dict.fromkeys(LAYOUTS, State.READ)
    assert all(len(fact.magnitude) == 8 for fact in facts.values())
    assert set(TORCH_NAMES) | {"BOOL", "F4", "F6_E2M3", "F6_E3M2"} == {*LAYOUTS, *TORCH_ONLY}


def test_vectors_are_kept_and_matrices_sampled() -> None:
    """The values of a vector are all there, those of a matrix spread over it."""
    numbers = np.linspace(-1, 1, 4096, dtype=np.float32)
    vector = facts_of("F32", (4096,), numbers.tobytes())
    np.testing.assert_array_equal(vector.values, numbers)
    matrix = facts_of("F32", (64, 64), numbers.tobytes())
    assert matrix.values is None
    assert len(matrix.sample) == 1024
    assert set(matrix.sample) <= set(numbers.astype(np.float64))


def test_shapes_without_rows_or_elements_are_described() -> None:
    """A scalar has one row; nothing has none."""
    scalar = facts_of("F32", (), np.float32(-2).tobytes())
    assert (scalar.rows, scalar.magnitude.tolist(), float(scalar.values)) == (1, [2.0], -2.0)
    empty = facts_of("F32", (0, 3), b"")
    assert (empty.rows, empty.elements, math.prod(empty.shape)) == (1, 0, 0)
    assert facts_of("F32", (3, 0), b"").magnitude.tolist() == [0.0, 0.0, 0.0]


def test_more_rows_than_are_kept_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """So memory stays bounded, and nothing is missed."""
    monkeypatch.setattr(blocks, "MAX_ROWS", 8)
    numbers = np.ones((9, 2), np.float32)
    numbers[7, 1] = -3
    facts = facts_of("F32", (9, 2), numbers.tobytes())
    assert (facts.rows, facts.magnitude.tolist()) == (1, [3.0])


def test_fingerprints_differ_where_tensors_do() -> None:
    """Shape, type and one changed element each give another fingerprint."""
    numbers = np.arange(64, dtype=np.float32).tobytes()
    seen = {
        facts_of("F32", (8, 8), numbers).fingerprint,
        facts_of("F32", (4, 16), numbers).fingerprint,
        facts_of("I32", (8, 8), numbers).fingerprint,
        facts_of("F32", (8, 8), numbers[:-1] + b"\x01").fingerprint,
    }
    assert len(seen) == 4
    assert facts_of("F32", (8, 8), numbers).fingerprint in seen
