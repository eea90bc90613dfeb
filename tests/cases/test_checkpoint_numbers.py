"""Reports of checkpoints with wrong numbers, retold: what `check` says of each."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_models import conv_net, saved
from safetensors.torch import save_file
from torch import Tensor

from ormas_core import CheckResult, Finding, check_checkpoint


def only(result: CheckResult) -> Finding:
    """Return the one finding that there is."""
    assert len(result.findings) == 1, [one.code for one in result.findings]
    return result.findings[0]


def by_code(result: CheckResult) -> dict[str, Finding]:
    """Return the findings by their codes, each of which occurs once."""
    found = {one.code: one for one in result.findings}
    assert len(found) == len(result.findings)
    return found


def write_raw(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> Path:
    """Write safetensors by hand: name -> type as the header spells it, shape, bytes."""
    header: dict[str, Any] = {}
    data = b""
    for name, (dtype, shape, raw) in tensors.items():
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def nan_first(tensor: Tensor) -> None:
    tensor.view(-1)[0] = float("nan")


def nan_two_thirds(tensor: Tensor) -> None:
    flat = tensor.view(-1)
    flat[: round(0.67 * flat.numel())] = float("nan")


def infinite_last(tensor: Tensor) -> None:
    tensor.view(-1)[-1] = float("inf")


def test_case_70_nan_published(tmp_path: Path) -> None:
    """One NaN, 67% NaN and one Inf: tensor, count, share, first index, the worst first, exit 1."""
    changes = {"0__weight": nan_first, "4__weight": nan_two_thirds, "1__bias": infinite_last}
    result = check_checkpoint(saved(tmp_path / "m.safetensors", conv_net(), **changes))
    assert [one.code for one in result.findings] == ["nonfinite"] * 3
    assert [one.where for one in result.findings] == ["4.weight", "1.bias", "0.weight"]
    worst, infinite, single = (one.detail for one in result.findings)
    assert worst.startswith("43 NaN of 64 elements (67.19%)")
    assert infinite == "1 infinite of 16 elements (6.25%), in 1 of 16 rows; the first at [15]"
    assert single.endswith("the first at [0, 0, 0, 0]")
    assert result.verdict()[0] == 1


def test_case_70_a_clean_file_is_clean(tmp_path: Path) -> None:
    """NaN that only appears after loading is not in the file, and is not said to be."""
    assert check_checkpoint(saved(tmp_path / "m.safetensors", conv_net())).findings == ()


@pytest.mark.parametrize(
    ("dtype", "nan"), [("F8_E4M3", 0x7F), ("F8_E5M2", 0x7E), ("F8_E8M0", 0xFF)]
)
def test_case_72_eight_bit_floats(dtype: str, nan: int, tmp_path: Path) -> None:
    """The NaN pattern of each type is found, and the same bytes without it are clean."""
    bits = np.arange(64, dtype=np.uint8).reshape(8, 8) % 40 + 16
    clean = {"w.weight_scale": (dtype, (8, 8), bits.tobytes())}
    assert check_checkpoint(write_raw(tmp_path / "clean", clean)).findings == ()
    bits[2, 3] = nan
    bad = {"w.weight_scale": (dtype, (8, 8), bits.tobytes())}
    one = only(check_checkpoint(write_raw(tmp_path / "bad", bad)))
    assert one.code == "nonfinite"
    assert one.detail.endswith("the first at [2, 3]")


def test_case_72_a_type_from_the_future_is_not_called_clean(tmp_path: Path) -> None:
    """Not inspected, exit 2 if there is nothing else; or the whole header is refused by name."""
    odd = {"w.weight": ("F3_E1M1", (8, 8), bytes(24))}
    result = check_checkpoint(write_raw(tmp_path / "odd", odd))
    assert only(result).code in ("not-inspected", "unreadable")
    assert "F3_E1M1" in only(result).detail
    assert result.verdict("never")[0] == 2


def test_case_72_packed_four_bit_floats_are_read_or_said(tmp_path: Path) -> None:
    """Two to a byte: never a crash, and never dead channels where the nibbles are not zero."""
    packed = {"w.weight": ("F4", (8, 8), bytes(range(0x11, 0x31)))}
    result = check_checkpoint(write_raw(tmp_path / "m", packed))
    assert result.tensors == 1
    assert {one.code for one in result.findings} <= {"not-inspected", "packed"}


@pytest.mark.parametrize("part", ["real", "imaginary"])
def test_case_74_complex_tensors(part: str, tmp_path: Path) -> None:
    """A NaN in either part is found, in safetensors and in a PyTorch file."""
    table = torch.polar(torch.ones(4, 8), torch.linspace(0.1, 1, 32).reshape(4, 8))
    raw = table.numpy().astype(np.complex64)
    clean = {"freqs": ("C64", (4, 8), raw.tobytes())}
    assert check_checkpoint(write_raw(tmp_path / "clean", clean)).findings == ()
    raw[1, 2] = complex(float("nan"), 0) if part == "real" else complex(0, float("nan"))
    bad = check_checkpoint(write_raw(tmp_path / "m", {"freqs": ("C64", (4, 8), raw.tobytes())}))
    torch.save({"freqs": torch.from_numpy(raw)}, tmp_path / "m.pt")
    for result in (bad, check_checkpoint(tmp_path / "m.pt")):
        assert only(result).code == "nonfinite"
        assert "1 NaN" in only(result).detail
        assert only(result).detail.endswith("the first at [1, 2]")


def adapter(folder: Path, state: Mapping[str, Tensor]) -> Path:
    """Write an adapter folder as peft does."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(dict(state), folder / "adapter_model.safetensors", {"format": "pt"})
    return folder


def lora(zero: range, layers: int = 64) -> dict[str, Tensor]:
    """Return the matrices of a LoRA adapter; B is zero in some layers."""
    torch.manual_seed(0)
    state: dict[str, Tensor] = {}
    for i in range(layers):
        name = f"base_model.model.model.layers.{i}.self_attn.q_proj"
        state[f"{name}.lora_A.weight"] = torch.randn(4, 16) * 0.02
        state[f"{name}.lora_B.weight"] = torch.randn(16, 4) * (0.0 if i in zero else 0.02)
    return state


def test_case_78_an_adapter_that_does_nothing(tmp_path: Path) -> None:
    """One finding with the count, and none for each zero matrix."""
    one = only(check_checkpoint(adapter(tmp_path / "a", lora(range(64)))))
    assert one.code == "adapter-no-op"
    assert one.detail == "adapter changes nothing: 64/64 B matrices are exactly zero"


def test_case_78_an_adapter_that_does_something_in_part(tmp_path: Path) -> None:
    """The layers are listed; a trained adapter is clean."""
    one = only(check_checkpoint(adapter(tmp_path / "a", lora(range(2)))))
    assert one.code == "adapter-part-no-op"
    assert one.detail.startswith("2/64 B matrices are exactly zero: ")
    assert "layers.0.self_attn.q_proj" in one.detail
    assert len(one.tensors) == 2
    assert check_checkpoint(adapter(tmp_path / "b", lora(range(0)))).findings == ()


def test_case_78_an_adapter_without_tensors(tmp_path: Path) -> None:
    """An empty file loads without an error, and fails here."""
    result = check_checkpoint(adapter(tmp_path / "a", {}))
    assert only(result).code == "no-tensors"
    assert result.verdict()[0] == 1
    assert result.verdict("never")[0] == 2


def test_case_78_an_adapter_of_which_another_process_holds_the_weights(tmp_path: Path) -> None:
    """Tensors of no element, as a sharded save without gathering writes them: no data, not zero."""
    hollow = {name: torch.zeros(0) for name in lora(range(0), layers=2)}
    result = check_checkpoint(adapter(tmp_path / "a", hollow))
    assert only(result).code == "no-data"
    assert "4 of 4 tensors have no data" in only(result).detail
    assert [result.verdict(gate)[0] for gate in ("critical", "never")] == [1, 2]


def language_model(folder: Path, tokens: int, table: Tensor) -> Path:
    """Write a model folder with a tokenizer of so many tokens and this table."""
    folder.mkdir()
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128}
    (folder / "config.json").write_text(json.dumps(config))
    vocabulary = {f"t{i}": i for i in range(tokens)}
    tokenizer = {"model": {"type": "BPE", "vocab": vocabulary}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    torch.manual_seed(1)
    head = torch.randn(128, 16) if tokens == 100 else torch.randn(128, 16) * 2
    state = {"model.embed_tokens.weight": table, "lm_head.weight": head}
    saved(folder / "model.safetensors", state)
    return folder


def test_case_84_padded_vocabulary_rows(tmp_path: Path) -> None:
    """Surplus rows are as expected; unmoved tokens inside are listed; new ones are said so."""
    torch.manual_seed(0)
    table = torch.randn(128, 16)
    base = language_model(tmp_path / "base", 100, table)
    moved = table + 0.1
    still = [40, 41, *range(100, 128)]
    moved[still] = table[still]
    tuned = language_model(tmp_path / "tuned", 100, moved)
    found = {one.code: one for one in check_checkpoint(tuned, base).findings if one.units}
    assert found["unmoved-rows"].units == (40, 41)
    assert found["untrained-vocabulary"].units == tuple(range(100, 128))
    assert "beyond the tokenizer's 100 tokens" in found["untrained-vocabulary"].detail
    grown = language_model(tmp_path / "grown", 103, moved)
    details = [one.detail for one in check_checkpoint(grown, base).findings if one.units]
    assert details[1] == "3 new tokens still have the values that the base had there (100-102)"
    assert "(103-127)" in details[2]
    assert check_checkpoint(tuned, base).verdict("warning")[0] == 0


def test_case_85_successive_checkpoints_are_identical(tmp_path: Path) -> None:
    """One finding; a cast to half precision is no movement, and a change below it is."""
    state = conv_net()
    for step in (100, 200):
        saved(tmp_path / f"checkpoint-{step}.safetensors", state)
    first, second = sorted(tmp_path.iterdir())
    one = only(check_checkpoint(second, first))
    assert one.code == "identical-to-base"
    assert one.detail.endswith("tensors are bit-identical: nothing that trained was saved")
    half = saved(
        tmp_path / "half", {n: t.half() if t.is_floating_point() else t for n, t in state.items()}
    )
    assert only(check_checkpoint(half, first)).code == "identical-to-base"
    nudged = {n: t * (1 + 1e-6) if t.is_floating_point() else t for n, t in state.items()}
    nudged["0.weight"] += 1e-6
    moved = check_checkpoint(saved(tmp_path / "moved", nudged), first)
    assert "identical-to-base" not in by_code(moved)
