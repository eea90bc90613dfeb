"""Files of `torch.save`: the tensors that torch reads, without torch and without running them."""

import argparse
import collections
import subprocess
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_builders import codes, details, read_all
from torch import nn

from ormas_core.checkpoints import Kind, State, TensorFacts, open_checkpoint

LEGACY = {"_use_new_zipfile_serialization": False}


def agree(facts: dict[str, TensorFacts], tensors: dict[str, torch.Tensor]) -> None:
    """Compare facts with tensors by name, shape and row magnitude."""
    assert list(facts) == list(tensors)
    for name, tensor in tensors.items():
        assert facts[name].state is State.READ, facts[name].reason
        assert facts[name].shape == tuple(tensor.shape)
        rows = tensor.detach().to(torch.float64).abs().reshape(max(len(tensor.reshape(-1)), 1), -1)
        if tensor.dim() > 1:
            rows = tensor.detach().to(torch.float64).abs().reshape(tensor.shape[0], -1)
        np.testing.assert_array_equal(facts[name].magnitude, rows.amax(dim=1).numpy())


def model() -> nn.Module:
    """Return a model with weights, buffers and integers."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 4))


@pytest.mark.parametrize("options", [{}, LEGACY], ids=["zip", "legacy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_state_dict_is_read(dtype: torch.dtype, options: Any, tmp_path: Path) -> None:
    """In both formats that torch has written for years."""
    state = model().to(dtype).state_dict()
    torch.save(state, tmp_path / "w.pt", **options)
    found, facts = read_all(tmp_path / "w.pt")
    assert found.problems == ()
    assert found.kind is (Kind.LEGACY if options else Kind.ZIP)
    agree(facts, dict(state))


@pytest.mark.parametrize("options", [{}, LEGACY], ids=["zip", "legacy"])
def test_views_share_and_strides_are_followed(options: Any, tmp_path: Path) -> None:
    """Transposed, sliced, expanded and tied tensors, each as torch sees it."""
    whole = torch.arange(24, dtype=torch.float32).reshape(4, 6) - 5
    state = {
        "whole": whole,
        "transposed": whole.t(),
        "slice": whole[1:3, 2:5],
        "tied": whole,
        "expanded": whole[:, :1].expand(4, 7),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
    }
    torch.save(state, tmp_path / "w.pt", **options)
    _, facts = read_all(tmp_path / "w.pt")
    empty = facts.pop("empty")
    assert empty.shape == (0, 3)
    agree(facts, {name: state[name] for name in facts})
    assert {name: f.shares for name, f in facts.items() if f.shares} == {"tied": "whole"}


def test_parameters_complex_and_small_floats_are_read(tmp_path: Path) -> None:
    """What torch pickles in other ways than plain tensors."""
    state = {
        "parameter": nn.Parameter(torch.ones(2, 3)),
        "complex": torch.tensor([1 + 2j, complex(0, float("nan"))]),
        "fp8": torch.tensor([1.0, 448.0]).to(torch.float8_e4m3fn),
        "flags": torch.tensor([True, False]),
        "unsigned": torch.tensor([1, 2], dtype=torch.uint16),
    }
    torch.save(state, tmp_path / "w.pt")
    found, facts = read_all(tmp_path / "w.pt")
    assert found.problems == ()
    assert {f.state for f in facts.values()} == {State.READ}
    assert facts["complex"].nan == 1
    assert facts["complex"].first == (1,)
    assert facts["fp8"].magnitude.tolist() == [1.0, 448.0]
    assert [facts[name].dtype for name in state] == ["F32", "C64", "F8_E4M3", "BOOL", "U16"]


def test_placeholders_have_no_data(tmp_path: Path) -> None:
    """Tensors of the meta device, and nothing crashes over them."""
    state = {"a": torch.ones(2), "b": torch.empty(3, 4, device="meta")}
    torch.save(state, tmp_path / "w.pt")
    _, facts = read_all(tmp_path / "w.pt")
    assert (facts["b"].state, facts["b"].shape) == (State.NO_DATA, (3, 4))
    assert facts["a"].state is State.READ


@pytest.mark.parametrize("wrapper", ["state_dict", "model", "ema", "module"])
def test_a_wrapper_leaves_the_names_as_they_are(wrapper: str, tmp_path: Path) -> None:
    """And what else a trainer saves is not judged."""
    content = {
        wrapper: {"module.layer.weight": torch.ones(2, 2)},
        "optimizer_states": [{"state": {0: {"exp_avg": torch.full((2, 2), float("nan"))}}}],
        "rng_state": torch.zeros(8, dtype=torch.uint8),
        "epoch": 3,
        "lr_schedulers": [],
    }
    torch.save(content, tmp_path / "last.ckpt")
    found, facts = read_all(tmp_path / "last.ckpt")
    assert list(facts) == ["module.layer.weight"]
    assert found.names == ("layer.weight",)
    assert codes(found) == ["not-judged"]
    assert "optimizer_states" in details(found)


def test_of_two_sets_of_weights_the_second_keeps_its_name(tmp_path: Path) -> None:
    """The running average is judged beside the model."""
    torch.save({"model": {"w": torch.ones(2)}, "ema": {"w": torch.zeros(2)}}, tmp_path / "w.pt")
    _, facts = read_all(tmp_path / "w.pt")
    assert list(facts) == ["w", "ema.w"]


def test_an_optimizer_alone_is_no_model(tmp_path: Path) -> None:
    """Its moments, zero at the start, are not taken for dead weights."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(2, 3, 3, 3)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    found, facts = read_all(tmp_path / "optimizer.pt")
    assert facts == {}
    assert codes(found) == ["not-judged", "no-tensors"]


def test_a_whole_pickled_model_is_read_without_its_code(tmp_path: Path) -> None:
    """The parameters are in the state of its objects; the classes are named and not imported."""
    net = model()
    torch.save(net, tmp_path / "model.pt")
    found, facts = read_all(tmp_path / "model.pt")
    agree(facts, dict(net.state_dict()))
    assert "torch.nn.modules.conv.Conv2d" in found.globals
    assert codes(found) == ["refused-objects"]


def test_objects_beside_the_weights_are_named_and_not_made(tmp_path: Path) -> None:
    """The weights are read all the same, where the safe loader of torch gives up."""
    content = {"state_dict": {"w": torch.ones(2)}, "hparams": argparse.Namespace(lr=1)}
    torch.save(content, tmp_path / "w.pt")
    found, facts = read_all(tmp_path / "w.pt")
    assert list(facts) == ["w"]
    assert codes(found) == ["refused-objects"]
    assert "argparse.Namespace" in details(found)


@pytest.mark.parametrize("setting", [Path("here"), types.SimpleNamespace(lr=1)])
def test_settings_that_hold_values_are_objects_and_no_danger(setting: Any, tmp_path: Path) -> None:
    """Such as the name of a file; a method of a path that is asked for by its name is one."""
    torch.save({"state_dict": {"w": torch.ones(2)}, "data": setting}, tmp_path / "w.pt")
    assert codes(open_checkpoint(tmp_path / "w.pt")) == ["refused-objects"]
    raw = b"\x80\x04\x8c\x07pathlib\x8c\x0aPath.touch\x93\x8c\x04true\x85R."
    (tmp_path / "x.pt").write_bytes(raw)
    assert "dangerous-objects" in codes(open_checkpoint(tmp_path / "x.pt"))


class _Evil:
    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('it ran')",))


@pytest.mark.parametrize("options", [{}, LEGACY], ids=["zip", "legacy"])
def test_code_in_a_pickle_is_listed_and_never_run(options: Any, tmp_path: Path) -> None:
    """The tensors beside it are still checked."""
    content = collections.OrderedDict(w=torch.tensor([float("inf"), 1]), e=_Evil())
    torch.save(content, tmp_path / "w.pt", **options)
    found, facts = read_all(tmp_path / "w.pt")
    assert facts["w"].inf == 1
    assert codes(found) == ["dangerous-objects"]
    assert "builtins.exec" in details(found)
    assert "builtins.exec" in found.globals


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # the format stays in use
def test_torchscript_is_recognised_and_its_weights_read(tmp_path: Path) -> None:
    """It is a zip with the same ending and other content."""
    net = model().eval()
    torch.jit.save(torch.jit.trace(net, torch.ones(2, 3, 3, 3)), str(tmp_path / "m.pt"))
    found, facts = read_all(tmp_path / "m.pt")
    assert found.kind is Kind.TORCHSCRIPT
    assert found.problems == ()
    weights = {name: value for name, value in net.state_dict().items() if name in facts}
    assert {"0.weight", "3.bias"} <= set(weights)
    agree({name: facts[name] for name in weights}, weights)


def test_a_cut_zip_is_named(tmp_path: Path) -> None:
    """A full disk leaves one without its directory."""
    torch.save(model().state_dict(), tmp_path / "w.pt")
    raw = (tmp_path / "w.pt").read_bytes()
    (tmp_path / "w.pt").write_bytes(raw[: len(raw) // 2])
    found, facts = read_all(tmp_path / "w.pt")
    assert (codes(found)[0], facts) == ("truncated", {})
    assert "cut off" in details(found)


def test_a_cut_legacy_file_names_what_is_beyond_its_end(tmp_path: Path) -> None:
    """The tensors before are read."""
    torch.save({"a": torch.ones(8), "b": torch.ones(800)}, tmp_path / "w.pt", **LEGACY)
    raw = (tmp_path / "w.pt").read_bytes()
    (tmp_path / "w.pt").write_bytes(raw[:-64])
    found, facts = read_all(tmp_path / "w.pt")
    assert codes(found) == ["truncated"]
    assert sum(f.state is State.UNREADABLE for f in facts.values()) >= 1


def test_a_lost_storage_is_a_tensor_that_cannot_be_read(tmp_path: Path) -> None:
    """The others are."""
    torch.save({"a": torch.ones(8), "b": torch.ones(9)}, tmp_path / "w.pt")
    with (
        zipfile.ZipFile(tmp_path / "w.pt") as old,
        zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_STORED) as new,
    ):
        for name in old.namelist():
            if not name.endswith("/data/0"):
                new.writestr(name, old.read(name))
    _, facts = read_all(tmp_path / "x.pt")
    assert (facts["a"].state, facts["b"].state) == (State.UNREADABLE, State.READ)
    assert "data/0 is not in the file" in facts["a"].reason


def test_a_compressed_zip_is_explained(tmp_path: Path) -> None:
    """PyTorch does not read such files either."""
    torch.save({"a": torch.ones(8)}, tmp_path / "w.pt")
    with (
        zipfile.ZipFile(tmp_path / "w.pt") as old,
        zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    found, facts = read_all(tmp_path / "x.pt")
    assert facts == {}
    assert "compressed" in details(found)


def test_trust_runs_what_is_refused_else(tmp_path: Path) -> None:
    """Tensors that only code can make are read, and only then."""
    torch.save({"w": _Made()}, tmp_path / "w.pt")
    found, facts = read_all(tmp_path / "w.pt")
    assert facts == {}
    assert "refused-tensors" in codes(found)
    trusted, facts = read_all(tmp_path / "w.pt", trust=True)
    assert facts["w"].magnitude.tolist() == [3.0, 3.0]
    assert "refused-tensors" not in codes(trusted)


def _rebuild_by_own_code() -> torch.Tensor:
    return torch.full((2,), 3.0)


class _Made:
    def __reduce__(self) -> Any:
        return (_rebuild_by_own_code, ())


def test_torch_is_not_imported_for_its_own_files(tmp_path: Path) -> None:
    """Reading needs neither the library nor its unpickler."""
    torch.save(model().state_dict(), tmp_path / "w.pt")
    code = (
        "import sys\nfrom ormas_core.checkpoints.open import open_checkpoint\n"
        f"assert len(list(open_checkpoint({str(tmp_path / 'w.pt')!r}).tensors())) == 9\n"
        "assert not {'torch', 'pickle5'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_quantised_tensors_are_packed(tmp_path: Path) -> None:
    """Their integers are not taken for weights."""
    with pytest.warns(UserWarning, match="quantize_per_tensor"):
        quantised = torch.quantize_per_tensor(torch.randn(4, 4), 0.1, 0, torch.qint8)
    torch.save({"w": quantised}, tmp_path / "w.pt")
    _, facts = read_all(tmp_path / "w.pt")
    assert facts["w"].state is State.PACKED
    assert open_checkpoint(tmp_path / "w.pt").problems == ()
