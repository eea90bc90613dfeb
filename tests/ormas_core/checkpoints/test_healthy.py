"""Healthy models raise no warning: one that is switched off with the gate protects nobody.

`make zoo` checks sixty architectures; these are the ones whose tensors are easily mistaken.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from checkpoint_facts import codes, found, random

from ormas_core import check_checkpoint

SMALL: Final[dict[str, Any]] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 99,
    "image_size": 32,
    "patch_size": 8,
    "head_dim": 16,
}


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma", "vit"])
def test_a_fresh_model_raises_no_warning(name: str, tmp_path: Path) -> None:
    """Ones, zeros, padding rows, tied embeddings and norms that store 1 + weight are as meant."""
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    config = AutoConfig.for_model(name)
    for setting, size in SMALL.items():
        if hasattr(config, setting):
            setattr(config, setting, size)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    result = check_checkpoint(tmp_path)
    assert result.verdict("warning")[0] == 0, result.findings
    assert result.read > 10


def test_buffers_of_older_files_are_no_weights() -> None:
    """Causal masks, positions, rotary tables and counters repeat in every layer."""
    causal = np.tril(np.ones((1, 1, 16, 16)))
    layers = {}
    for i in range(3):
        layers[f"h.{i}.attn.bias"] = causal
        layers[f"h.{i}.attn.masked_bias"] = np.float32(-1e4)
        layers[f"h.{i}.attn.rotary_emb.inv_freq"] = np.logspace(0, -4, 16)
        layers[f"layers.{i}.attn_mask"] = np.where(causal[0] > 0, 0, -100.0)
        layers[f"layers.{i}.relative_position_index"] = np.zeros((16, 16))
        layers[f"bn{i}.num_batches_tracked"] = np.float32(0)
    assert codes(layers) == []


def test_vectors_that_start_equal_are_as_meant() -> None:
    """Biases of zero, scales of one, the scale of a layer, the slopes of a PReLU."""
    assert (
        codes(
            {
                "fc.weight": random(32, 32),
                "fc.bias": np.zeros(32),
                "norm.weight": np.ones(32),
                "norm.bias": np.zeros(32),
                "layer_scale": np.full((32, 1, 1), 1e-6),
                "block.gamma": np.full(32, 1e-6),
                "act.weight": np.full(32, 0.25),
                "logit_scale": np.float32(2.6),
            }
        )
        == []
    )


def test_magnitudes_of_a_wide_but_even_layer_are_ordinary() -> None:
    """Rows that spread over two decades without a gap, as in trained mobile networks."""
    sizes = np.logspace(-2.5, 0, 64)[:, None] * random(64, 32, seed=2)
    assert found({"conv.weight": sizes}) == []


def test_an_outlier_dimension_of_a_language_model_is_ordinary() -> None:
    """A row, and a scale, ten or twenty times the others."""
    weight = random(64, 64)
    weight[7] *= 20
    scale = np.full(64, 0.6)
    scale[[3, 9]] = (9.0, 0.02)
    assert found({"down_proj.weight": weight, "ln.weight": scale, "ln.bias": np.zeros(64)}) == []


def test_numbers_of_both_signs_are_next_to_zero_by_chance() -> None:
    """Scales that cross zero, and rows of one number: three decades are none there, nine are."""
    values = random(64, seed=5)
    values[7] = 1e-4 * np.abs(values).min()
    assert codes({"norm.weight": values, "norm.bias": np.zeros(64)}) == []
    assert codes({"fc.weight": values[:, None]}) == []
    values[7] = 1e-12
    assert codes({"norm.weight": values, "norm.bias": np.zeros(64)}) == ["norm-scale-zero"]


def test_biases_of_experts_start_at_zero_by_right() -> None:
    """They have two axes, one for each expert, and no name of a weight."""
    layers = {"gate_up_proj": random(4, 32, 16), "gate_up_proj_bias": np.zeros((4, 32))}
    named = {f"layers.0.mlp.experts.{name}": value for name, value in layers.items()}
    assert codes(named) == ["zero-tensor"]
    layers["gate_up_proj"][:] = 0
    assert "zero-weights" in codes(named)


def test_families_that_store_some_scales_whole_are_known_by_most() -> None:
    """Fresh, one norm in a layer is ones and the others are zeros: 1 + weight, without a config."""
    scales = {f"layers.{i}.input_layernorm.weight": np.zeros(16) for i in range(3)}
    scales["layers.0.linear_attn.norm.weight"] = np.ones(16)
    assert set(codes(scales)) == {"idle-by-design"}
    scales |= {f"layers.{i}.post_attention_layernorm.weight": np.ones(16) for i in range(3)}
    assert "norm-scale-zero" in codes(scales)


def test_a_layer_of_no_unit_is_not_a_layer_of_zeros(tmp_path: Path) -> None:
    """As a head for no class; a vector of weights without one is what another process holds."""
    headless = {"head.weight": torch.zeros(0, 32), "head.bias": torch.zeros(0)}
    torch.save({**headless, "wide.weight": torch.zeros(4, 0)}, tmp_path / "a.pt")
    assert check_checkpoint(tmp_path / "a.pt").findings == ()
    torch.save({"fc.weight": torch.zeros(0), "fc.bias": torch.zeros(0)}, tmp_path / "b.pt")
    (one,) = check_checkpoint(tmp_path / "b.pt").findings
    assert (one.code, one.where) == ("no-data", "fc.weight")


def test_a_vector_laid_out_for_images_starts_at_zero_by_right() -> None:
    """As the response normalisation of ConvNeXt V2; an output layer of one unit is a weight."""
    assert codes({"grn.weight": np.zeros((1, 1, 1, 32))}) == ["zero-tensor"]
    assert codes({"head.weight": np.zeros((1, 32))}) == ["zero-weights"]
