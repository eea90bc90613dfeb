"""Reports of checkpoint files that are broken, stray or something else, retold."""

import json
import pickle
import tarfile
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_models import conv_net, saved
from torch import nn

from ormas_core import CheckResult, check_checkpoint


def codes(result: CheckResult) -> list[str]:
    return [one.code for one in result.findings]


def said(result: CheckResult) -> str:
    """Return everything that the findings say."""
    return " ".join(f"{one.where} {one.detail} {one.advice}" for one in result.findings)


def test_case_65_truncated_safetensors(tmp_path: Path) -> None:
    """Promised and found bytes, the first incomplete tensor, and how many are whole."""
    path = saved(tmp_path / "m.safetensors", conv_net())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(0.7 * len(whole))])
    result = check_checkpoint(path)
    assert codes(result) == ["unreadable"]
    assert f"promises {len(whole):,} bytes" in said(result)
    assert f"has {int(0.7 * len(whole)):,}" in said(result)
    assert "first incomplete tensor" in said(result)
    assert f"{result.read} of {result.tensors} tensors are whole" in said(result)
    assert result.verdict()[0] == 1


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'ab' * 32}\nsize 4976698672\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (POINTER.encode(), ["4,976,698,672", "ab" * 32]),
        (b"<!DOCTYPE html>\n<html><title>Not found</title></html>", ["web page"]),
        (bytes(8) + b"\x80" * 100, ["zero"]),
        (bytes(4096), ["zero"]),
        (b"", ["empty"]),
    ],
    ids=["pointer", "page", "zeroed header", "zeros", "empty"],
)
def test_case_66_something_else_instead_of_weights(
    content: bytes, expected: list[str], tmp_path: Path
) -> None:
    """Each is named, the pointer with size and digest; exit 2, and no traceback."""
    (tmp_path / "model.safetensors").write_bytes(content)
    result = check_checkpoint(tmp_path / "model.safetensors")
    assert codes(result) == ["unreadable"]
    for text in expected:
        assert text in said(result)
    assert result.verdict("never")[0] == 2


def halves() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state of a network in two parts."""
    state = conv_net()
    names = list(state)
    return {n: state[n] for n in names[:4]}, {n: state[n] for n in names[4:]}


def test_case_69_a_stray_single_file_beside_shards(tmp_path: Path) -> None:
    """Which one a loader would use, and that the other does not agree."""
    first, second = halves()
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    saved(tmp_path / names[0], first)
    saved(tmp_path / names[1], second)
    places = {**dict.fromkeys(first, names[0]), **dict.fromkeys(second, names[1])}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    saved(tmp_path / "model.safetensors", conv_net(), **{"4__weight": lambda t: t.add_(1)})
    result = check_checkpoint(tmp_path)
    assert "stray-weights" in codes(result)
    assert "Loaders use model.safetensors." in said(result)
    assert result.verdict("warning")[0] == 1


def test_case_69_shards_without_an_index(tmp_path: Path) -> None:
    """Both are read, and that the index lacks is a warning; a missing shard is critical."""
    first, second = halves()
    saved(tmp_path / "model-00001-of-00002.safetensors", first)
    saved(tmp_path / "model-00002-of-00002.safetensors", second)
    result = check_checkpoint(tmp_path)
    assert codes(result) == ["no-index"]
    assert result.read == len(first) + len(second)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert "missing-file" in codes(check_checkpoint(tmp_path))


@pytest.mark.parametrize(("change", "code"), [(0.0, "stray-copies"), (1.0, "stray-weights")])
def test_case_69_two_formats_in_one_folder(change: float, code: str, tmp_path: Path) -> None:
    """Copies of equal content are information; of different content, a warning."""
    saved(tmp_path / "model.safetensors", conv_net())
    state = {n: t + change if n == "4.weight" else t for n, t in conv_net().items()}
    torch.save(state, tmp_path / "pytorch_model.bin")
    result = check_checkpoint(tmp_path)
    assert codes(result) == [code]
    assert "model.safetensors" in said(result)


HEADERS = {
    "duplicate names": b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
    b'"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
    "overlap": b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
    b'"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
    "hole": b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
    "shape": b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}',
    "nesting": b"[" * 100_000,
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_case_76_malformed_headers(header: bytes, tmp_path: Path) -> None:
    """A finding of structure for each, never a traceback."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    assert "unreadable" in codes(check_checkpoint(path))


def test_case_76_a_header_of_enormous_length(tmp_path: Path) -> None:
    """2^62 bytes are refused before any are asked for."""
    path = tmp_path / "m.safetensors"
    path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}" + bytes(64))
    result = check_checkpoint(path)
    assert codes(result) == ["unreadable"]
    assert result.verdict("never")[0] == 2


def test_case_76_metadata_and_nothing_else(tmp_path: Path) -> None:
    """A valid file with no tensor is no healthy checkpoint."""
    header = b'{"__metadata__":{"format":"pt"}}'
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    assert codes(check_checkpoint(path)) == ["no-tensors"]


def test_case_77_a_distributed_checkpoint_is_read(tmp_path: Path) -> None:
    """In one process, without a process group: a NaN in it is found."""
    from torch.distributed import checkpoint as dcp

    state = {**conv_net(), "4.bias": torch.tensor([0.1, float("nan"), 0.2, 0.3])}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    result = check_checkpoint(tmp_path / "dcp")
    assert codes(result) == ["nonfinite"]
    assert result.read == len(state)


def test_case_77_a_zero_folder_is_not_checked(tmp_path: Path) -> None:
    """Recognised, with the script that converts it; not called clean."""
    step = tmp_path / "global_step10"
    step.mkdir()
    for rank in (0, 1):
        name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": {}}, step / name)
    result = check_checkpoint(tmp_path)
    assert "zero_to_fp32" in said(result)
    assert result.verdict("never")[0] == 2


def test_case_80_the_format_before_1_6(tmp_path: Path) -> None:
    """Read all the same, and judged."""
    state = {**conv_net(), "4.bias": torch.full((4,), float("nan"))}
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    result = check_checkpoint(tmp_path / "old.pth")
    assert "nonfinite" in codes(result)
    assert result.read == len(state)


def test_case_80_look_alikes(tmp_path: Path) -> None:
    """A tar, half a zip and a TorchScript archive: each recognised by content."""
    (tmp_path / "pickle").write_bytes(pickle.dumps([]))
    with tarfile.open(tmp_path / "tar.pt", "w") as tar:
        for name in ("sys_info", "pickle", "tensors", "storages"):
            tar.add(tmp_path / "pickle", name)
    torch.save(conv_net(), tmp_path / "half.pt")
    whole = (tmp_path / "half.pt").read_bytes()
    (tmp_path / "half.pt").write_bytes(whole[: len(whole) // 2])
    for name in ("tar.pt", "half.pt"):
        result = check_checkpoint(tmp_path / name)
        assert result.verdict("never")[0] == 2
        assert codes(result)[0] in ("unreadable", "not-inspected")
    assert "tar" in said(check_checkpoint(tmp_path / "tar.pt"))
    assert "cut" in said(check_checkpoint(tmp_path / "half.pt"))
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        script = torch.jit.script(nn.Linear(4, 4))
    script.save(str(tmp_path / "script.pt"))
    result = check_checkpoint(tmp_path / "script.pt")
    assert "TorchScript" in result.kind


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


def test_case_82_optimizer_and_argument_files(tmp_path: Path) -> None:
    """Only the weights are judged; no pickle beside them is loaded."""
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({"x": Bomb(tmp_path / "bang")}, tmp_path / name)
    (tmp_path / "trainer_state.json").write_text("{}")
    (tmp_path / "config.json").write_text("{}")
    state = {**conv_net(), "4.bias": torch.tensor([0.1, float("nan"), 0.2, 0.3])}
    saved(tmp_path / "model.safetensors", state)
    result = check_checkpoint(tmp_path)
    assert not (tmp_path / "bang").exists()
    assert [one for one in codes(result) if one != "not-judged"] == ["nonfinite"]
    assert result.tensors == len(state)


def test_case_86_placeholders(tmp_path: Path) -> None:
    """Three tensors have no data: said so, and no statistic trips over them."""
    state: dict[str, Any] = conv_net()
    for name in ("0.weight", "1.weight", "4.bias"):
        state[name] = torch.empty_like(state[name], device="meta")
    torch.save(state, tmp_path / "m.pt")
    result = check_checkpoint(tmp_path / "m.pt")
    assert codes(result) == ["no-data"]
    assert "3 of 8 tensors have no data" in said(result)
    assert set(result.findings[0].tensors) == {"0.weight", "1.weight", "4.bias"}
    assert result.verdict()[0] == 1


def test_case_87_a_file_that_is_written_meanwhile(tmp_path: Path) -> None:
    """The result is void: exit 2, and what was found is still there."""
    state = {**conv_net(), "4.bias": torch.full((4,), float("nan")), "big.weight": _big()}
    path = saved(tmp_path / "m.safetensors", state)
    written = threading.Event()

    def rewrite(_done: int, _size: int) -> None:
        if not written.is_set():
            written.set()
            saved(path, state)

    result = check_checkpoint(path, progress=rewrite)
    assert written.is_set()
    assert "nonfinite" in codes(result)
    code, why = result.verdict("never")
    assert code == 2
    assert "changed during the check" in why


def _big() -> torch.Tensor:
    torch.manual_seed(3)
    return torch.randn(1024, 2048)


def test_case_87_a_half_saved_folder(tmp_path: Path) -> None:
    """A checkpoint of a trainer without its state, and leftovers of a download."""
    folder = tmp_path / "checkpoint-100"
    saved(folder / "model.safetensors", conv_net())
    torch.save({}, folder / "optimizer.pt")
    result = check_checkpoint(folder)
    assert "incomplete" in codes(result)
    assert "trainer_state.json" in said(result)
