"""What feeds what, watched on the meta device, and names that are matched with those of a file."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_models import conv_net, saved
from torch import Tensor, nn

from ormas_core import ConfigError, MissingExtraError, check_checkpoint
from ormas_core.checkpoints import open_checkpoint, wiring
from ormas_core.checkpoints.wire import Plan, aligned, match


class Block(nn.Module):
    """A residual block with every way that an output can go."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(8)
        self.bn3 = nn.BatchNorm2d(8)
        self.bn4 = nn.BatchNorm2d(8)
        self.bn5 = nn.BatchNorm2d(8)
        self.six = nn.ReLU6(inplace=True)
        self.tanh = nn.Hardtanh()
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.relu(self.bn1(self.conv(x)), inplace=True)
        y = self.bn2(self.conv2(x)) + x
        y = torch.relu(self.drop(self.bn3(y)))
        y = self.tanh(self.bn5(self.six(self.bn4(y))))
        out: Tensor = self.fc(y.mean((2, 3)))
        return out


class Stubborn(Block):
    """A model that takes no input that anyone would guess."""

    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError(f"no {x.shape}")


def offer(monkeypatch: pytest.MonkeyPatch, model: type[nn.Module]) -> None:
    """Put a stand-in for torchvision in place that has this model only, as `block`."""

    def get_model(name: str, weights: Any) -> nn.Module:
        assert weights is None  # nothing may be downloaded
        if name != "block":
            raise ValueError(f"Unknown model {name}")
        return model()

    package, models = types.ModuleType("torchvision"), types.ModuleType("torchvision.models")
    models.get_model = get_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)


def test_what_takes_the_output_of_each_layer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules, functions, in place or not, through a dropout, and into a norm by name."""
    offer(monkeypatch, Block)
    plan = wiring.plan("torchvision:block", None, 10)
    assert plan.untraced == ""
    assert plan.followers["conv"] == ("norm:bn1",)
    assert plan.followers["bn1"] == ("relu",)
    assert plan.followers["conv2"] == ("norm:bn2",)
    assert plan.followers["bn2"] == ("add",)
    assert plan.followers["bn3"] == ("relu",)
    assert plan.followers["bn4"] == ("relu6",)
    assert plan.followers["bn5"] == ("hardtanh",)


def test_building_draws_no_number_and_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The random state is as before; parameters are on the meta device."""
    made: list[nn.Module] = []

    class Noted(Block):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    offer(monkeypatch, Noted)
    before = torch.get_rng_state()
    wiring.plan("torchvision:block", None, 10)
    assert torch.equal(before, torch.get_rng_state())
    assert {p.device.type for p in made[0].parameters()} == {"meta"}


def test_a_model_that_does_not_run_is_said_and_still_matched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The wording stays conditional."""
    offer(monkeypatch, Stubborn)
    change = {"bn1__weight": lambda t: t[:2].zero_(), "bn1__bias": lambda t: t.sub_(1)}
    path = saved(tmp_path / "a.safetensors", Stubborn().state_dict(), **change)
    result = check_checkpoint(path, arch="torchvision:block")
    assert "5 of 5 norms" in result.wiring
    assert "does not run on a guessed input (RuntimeError" in result.wiring
    (one,) = [one for one in result.findings if one.code == "dead-channels"]
    assert "if a ReLU directly follows" in one.detail


def test_architectures_that_do_not_exist_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, before anything is read."""
    offer(monkeypatch, Block)
    with pytest.raises(ConfigError, match="'nothing'"):
        wiring.plan("torchvision:nothing", None, 10)
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(MissingExtraError, match="pip install torchvision"):
        wiring.plan("torchvision:block", None, 10)


def test_only_classes_of_transformers_are_built() -> None:
    """Code that a folder brings along is not run, and a config of strangers breaks nothing."""
    for name in ("Evil", "AutoModel", "BertConfig", ["list"], None):
        with pytest.raises(ConfigError, match="does not have; code of the folder is not run"):
            wiring.plan("hf", {"architectures": [name], "auto_map": {"AutoModel": "x.Evil"}}, 10)
    with pytest.raises(ConfigError, match="cannot be built"):
        wiring.plan("hf", {"architectures": ["BertModel"], "hidden_size": "wide"}, 10)


def test_names_are_matched_with_and_without_the_part_that_holds_them() -> None:
    """A base model is saved with its place in the whole, or without."""
    whole = {"bert.a.weight": (1,), "bert.b.weight": (1,), "head.weight": (1,)}
    bare = {"a.weight": (1,), "b.weight": (1,)}
    assert aligned(bare, whole) == {"a.weight": "bert.a.weight", "b.weight": "bert.b.weight"}
    assert aligned(whole, bare) == {"bert.a.weight": "a.weight", "bert.b.weight": "b.weight"}


@pytest.mark.parametrize(("known", "error"), [(0, True), (1, True), (2, False), (4, False)])
def test_under_half_of_the_norms_is_another_architecture(
    known: int, error: bool, tmp_path: Path
) -> None:
    """An error if it was asked for, and no wiring in any case."""
    norm = {n.partition(".")[2]: t for n, t in conv_net().items() if n.startswith("1.")}
    state = {f"n{i}.{name}": tensor for i in range(4) for name, tensor in norm.items()}
    checkpoint = open_checkpoint(saved(tmp_path / "a.safetensors", state))
    shapes = {f"n{i}.{name}": tuple(t.shape) for i in range(known) for name, t in norm.items()}
    plan = Plan(name="it", shapes=shapes, followers={"n0": ("relu",)})
    asked, by_itself = (match(checkpoint, plan, asked=asked) for asked in (True, False))
    assert bool(asked.error) is error
    assert by_itself.error == ""
    assert (asked.followers is None) is error
    partial = [one.code for one in asked.findings]
    assert partial == (["partial-wiring"] if known == 2 else [])
