"""Quantised models: their integers are recognised, and their scales judged as numbers."""

from pathlib import Path

import numpy as np
import pytest
from checkpoint_builders import f32, read_all, write_safetensors

from ormas_core.checkpoints import State

ZEROS = bytes(64)
WEIGHTS = ("F16", (8, 4), np.ones(32, np.float16).tobytes())

MODELS = {
    "GPTQ": (
        {
            "l.qweight": ("I32", (4, 4), ZEROS),
            "l.qzeros": ("I32", (4, 4), ZEROS),
            "l.g_idx": ("I32", (16,), ZEROS),
            "l.scales": WEIGHTS,
        },
        {"l.qweight", "l.qzeros", "l.g_idx"},
    ),
    "bitsandbytes, 4 bits": (
        {
            "l.weight": ("U8", (64, 1), ZEROS),
            "l.weight.absmax": ("U8", (64,), ZEROS),
            "l.weight.quant_map": f32(16),
            "l.weight.nested_absmax": f32(16),
            "l.weight.quant_state.bitsandbytes__nf4": ("U8", (64,), ZEROS),
        },
        {
            "l.weight",
            "l.weight.absmax",
            "l.weight.quant_map",
            "l.weight.nested_absmax",
            "l.weight.quant_state.bitsandbytes__nf4",
        },
    ),
    "bitsandbytes, 8 bits": (
        {"l.weight": ("I8", (8, 8), ZEROS), "l.SCB": f32(8)},
        {"l.weight"},
    ),
    "MX": (
        {
            "e.down_proj_blocks": ("U8", (2, 4, 8), ZEROS),
            "e.down_proj_scales": ("U8", (8, 8), ZEROS),
        },
        {"e.down_proj_blocks", "e.down_proj_scales"},
    ),
    "compressed-tensors": (
        {
            "l.weight_packed": ("I32", (4, 4), ZEROS),
            "l.weight_scale": WEIGHTS,
            "l.weight_shape": ("I64", (8,), ZEROS),
        },
        {"l.weight_packed", "l.weight_shape"},
    ),
}


@pytest.mark.parametrize("method", sorted(MODELS))
def test_packed_integers_are_recognised(method: str, tmp_path: Path) -> None:
    """All zero here, as a file of real weights would be dead."""
    tensors, packed = MODELS[method]
    _, facts = read_all(write_safetensors(tmp_path / "m.safetensors", tensors))
    assert {name for name, f in facts.items() if f.state is State.PACKED} == packed
    assert all(f.reason for f in facts.values() if f.state is State.PACKED)
    assert all(f.state is State.READ for name, f in facts.items() if name not in packed)


def test_integers_that_stand_for_themselves_are_read(tmp_path: Path) -> None:
    """Positions, counters and masks are no packed weights; floats never are."""
    tensors = {
        "position_ids": ("I64", (1, 8), ZEROS),
        "bn.num_batches_tracked": ("I64", (), bytes(8)),
        "mask": ("BOOL", (8, 8), ZEROS),
        "l.weight": f32(4, 4),
        "l.weight_scale": f32(4),
    }
    _, facts = read_all(write_safetensors(tmp_path / "m.safetensors", tensors))
    assert {f.state for f in facts.values()} == {State.READ}
