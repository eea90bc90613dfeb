"""`check_checkpoint`: files in, findings out, and what makes it fail."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from checkpoint_models import FILTERS, RESIDUAL, STEM, conv_net, resnet_folder, saved
from event_samples import write_run

from ormas_core import (
    CheckpointError,
    CheckResult,
    ConfigError,
    check_checkpoint,
    make_keys,
    sign_record,
)


def codes(result: CheckResult) -> list[str]:
    """Return the codes of the findings, in order."""
    return [one.code for one in result.findings]


def poison(tensor: torch.Tensor) -> None:
    """Put a NaN into a tensor."""
    tensor.view(-1)[0] = float("nan")


def test_a_healthy_file_has_no_finding(tmp_path: Path) -> None:
    """Counts, sizes and the verdict say what was read."""
    result = check_checkpoint(saved(tmp_path / "model.safetensors", conv_net()))
    assert (result.findings, result.tensors, result.read) == ((), 8, 8)
    assert result.worst is None
    assert result.verdict("warning") == (0, "no finding at or above warning")


@pytest.mark.parametrize(("fail_on", "code"), [("critical", 0), ("warning", 1), ("never", 0)])
def test_the_gate_decides_on_the_exit_code(tmp_path: Path, fail_on: str, code: int) -> None:
    """A warning passes a gate for critical findings only."""
    path = saved(tmp_path / "a.safetensors", conv_net(), **{"0__weight": lambda t: t.fill_(0)})
    result = check_checkpoint(path)
    assert codes(result) == ["zero-weights"]
    assert result.counts == {"critical": 0, "warning": 1, "info": 0}
    assert result.verdict(fail_on)[0] == code  # type: ignore[arg-type]


def test_critical_findings_come_first(tmp_path: Path) -> None:
    """And what the verdict names is the first of them."""
    changes = {"0__weight": lambda t: t.fill_(0), "4__bias": poison}
    result = check_checkpoint(saved(tmp_path / "a.safetensors", conv_net(), **changes))
    assert codes(result) == ["nonfinite", "zero-weights"]
    sentence = "2 findings at or above warning, the first: nonfinite in 4.bias"
    assert result.verdict("warning") == (1, sentence)


def test_a_broken_shard_hides_nothing_of_the_others(tmp_path: Path) -> None:
    """The NaN in the whole shard is reported beside the cut one."""
    state = conv_net()
    first = {name: state[name] for name in ("4.weight", "4.bias")}
    rest = {name: tensor for name, tensor in state.items() if name not in first}
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    saved(tmp_path / names[0], first, **{"4__bias": poison})
    cut = saved(tmp_path / names[1], rest)
    cut.write_bytes(cut.read_bytes()[:-100])
    places = {**dict.fromkeys(first, names[0]), **dict.fromkeys(rest, names[1])}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    result = check_checkpoint(tmp_path)
    assert {"nonfinite", "unreadable"} <= set(codes(result))
    assert codes(result).count("unreadable") == 1
    assert result.verdict()[0] == 1


def test_a_tensor_in_two_shards_is_no_copy_of_another_layer(tmp_path: Path) -> None:
    """One cause, one finding."""
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    saved(tmp_path / names[0], conv_net())
    saved(tmp_path / names[1], {"4.weight": conv_net()["4.weight"]})
    places = {**dict.fromkeys(conv_net(), names[0]), "4.weight": names[1]}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert codes(check_checkpoint(tmp_path)) == ["index-disagreement"]


def test_what_cannot_be_read_at_all_is_no_pass(tmp_path: Path) -> None:
    """Exit 2 whatever the gate, with the reason as a finding."""
    (tmp_path / "model.safetensors").write_text("<!DOCTYPE html><html></html>")
    result = check_checkpoint(tmp_path / "model.safetensors")
    assert codes(result) == ["unreadable"]
    assert [result.verdict(gate)[0] for gate in ("critical", "warning", "never")] == [2, 2, 2]


def test_all_that_a_pickle_would_import_is_listed(tmp_path: Path) -> None:
    """The finding names the first few, the result every one."""
    names = [f"module{i}.Thing" for i in range(20)]
    asked = "".join(f"c{name.replace('.', chr(10))}{chr(10)}" for name in names)
    (tmp_path / "args.pkl").write_bytes(b"\x80\x02(" + asked.encode() + b"l.")
    assert set(names) <= set(check_checkpoint(tmp_path / "args.pkl").globals)


def test_options_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    """Before anything is read."""
    path = saved(tmp_path / "model.safetensors", conv_net())
    with pytest.raises(ConfigError, match="needs an architecture"):
        check_checkpoint(path, prove=True)
    with pytest.raises(ConfigError, match="name its run folder"):
        check_checkpoint(path, key=tmp_path / "key.pub")
    with pytest.raises(CheckpointError, match=r"record\.jsonl"):
        check_checkpoint(path, record=tmp_path)
    with pytest.raises(CheckpointError):
        check_checkpoint(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="torchvision:NAME"):
        check_checkpoint(path, arch="resnet18")
    with pytest.raises(ConfigError, match=r"config\.json"):
        check_checkpoint(path, arch="hf")


def test_a_base_is_compared(tmp_path: Path) -> None:
    """One finding where nothing moved, whatever the type it was saved in."""
    state = conv_net()
    base = saved(tmp_path / "base.safetensors", state)
    same = saved(tmp_path / "same.safetensors", state)
    half = {n: t.bfloat16() if t.is_floating_point() else t for n, t in state.items()}
    cast = saved(tmp_path / "cast.safetensors", half)
    moved = saved(tmp_path / "m.safetensors", state, **{"4__weight": lambda t: t.add_(0.1)})
    assert codes(check_checkpoint(same, base)) == ["identical-to-base"]
    assert codes(check_checkpoint(cast, base)) == ["identical-to-base"]
    assert codes(check_checkpoint(base, cast)) == ["identical-to-base"]
    assert codes(check_checkpoint(moved, base)) == ["frozen-tensors"]


def test_a_folder_with_batch_norms_is_wired_by_itself(tmp_path: Path) -> None:
    """What follows a layer decides what a constant channel is called."""
    result = check_checkpoint(resnet_folder(tmp_path / "model"))
    assert result.wiring == "ResNetForImageClassification: 8 of 8 norms of the file matched"
    said = {one.where: one for one in result.findings}
    assert said[f"{STEM}.normalization"].code == "dead-channels"
    assert said[f"{STEM}.normalization"].units == (2,)
    assert said[f"{FILTERS}.weight"].code == "dead-channels"
    assert said[RESIDUAL].code == "flat-channels"
    assert not any("if a ReLU" in one.detail for one in result.findings)


def test_a_proof_stands_for_what_it_proves(tmp_path: Path) -> None:
    """The two dead channels are certified, and said once."""
    result = check_checkpoint(resnet_folder(tmp_path / "model"), arch="hf", prove=True)
    proven = {one.where: one.units for one in result.findings if one.code == "certified-dead"}
    assert proven == {f"{STEM}.convolution": (2,), FILTERS: (4,)}
    assert "dead-channels" not in codes(result)
    assert all("closed_now" in o.detail for o in result.findings if o.code == "certified-dead")


def test_another_architecture_is_an_error_after_the_findings(tmp_path: Path) -> None:
    """Exit 2, and the NaN is reported all the same."""
    folder = resnet_folder(tmp_path / "model")
    saved(folder / "model.safetensors", conv_net(), **{"4__bias": poison})
    asked = check_checkpoint(folder, arch="hf")
    assert "nonfinite" in codes(asked)
    code, why = asked.verdict("never")
    assert code == 2
    assert "0 of 1 norms of the file matched" in why
    by_itself = check_checkpoint(folder)
    assert by_itself.errors == ()


def test_an_architecture_that_covers_a_part_is_a_warning(tmp_path: Path) -> None:
    """Which norms it lacks is said, and so are tensors that the file lacks."""
    folder = resnet_folder(tmp_path / "model")
    from safetensors.torch import load_file

    state = load_file(folder / "model.safetensors")
    extra = {f"extra.{name.partition('.')[2]}": t for name, t in conv_net().items() if "1." in name}
    lost = {name: tensor for name, tensor in state.items() if name != "classifier.1.bias"}
    saved(folder / "model.safetensors", {**lost, **extra})
    result = check_checkpoint(folder, arch="hf")
    found = {one.code: one.detail for one in result.findings}
    assert "classifier.1.bias" in found["missing-tensors"]
    assert found["partial-wiring"].startswith("1 norms of the file are not in the architecture")
    assert result.errors == ()


def test_a_signed_record_vouches_for_the_files(tmp_path: Path) -> None:
    """The same bytes pass; one more byte is a digest mismatch, whatever the numbers say."""
    run, path = tmp_path / "run", saved(tmp_path / "model.safetensors", conv_net())
    write_run(run)
    unsigned = check_checkpoint(path, record=run)
    assert "not-compared" in codes(unsigned)
    make_keys(tmp_path / "key")
    sign_record(run, tmp_path / "key", models=[path])
    sound = check_checkpoint(path, record=run, key=tmp_path / "key.pub")
    assert sound.findings == ()
    assert "1 model files are the ones that the seal names" in sound.record
    shutil.copy(path, tmp_path / "copy.safetensors")
    saved(path, conv_net(), **{"4__weight": lambda t: t.add_(1e-6)})
    changed = check_checkpoint(path, record=run, key=tmp_path / "key.pub")
    assert codes(changed) == ["digest-mismatch"]
    assert changed.verdict()[0] == 1
