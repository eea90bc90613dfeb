"""Which modules could be experts, and how the rows of a step are counted."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support import of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ormas_core import Manifest, Measurement, MechanismState, MemorySink, Monitor
from ormas_core.hooks import select
from ormas_core.terms import ExpertRows


class Routed(nn.Module):
    """Sends the first rows to the first expert, and so on, by the given sizes."""

    def __init__(self, name: str = "experts", *, dictionary: bool = False) -> None:
        super().__init__()
        experts = [nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)) for _ in range(3)]
        members: nn.Module = nn.ModuleList(experts)
        if dictionary:
            members = nn.ModuleDict({f"expert_{i}": e for i, e in enumerate(experts)})
        setattr(self, name, members)
        self.members = list(experts)
        self.sizes = [5, 2, 0]
        self.how = "call"

    def forward(self, x: Tensor) -> Tensor:
        parts = []
        for expert, part in zip(self.members, x.split(self.sizes), strict=True):
            if self.how == "checkpoint":
                parts.append(checkpoint(expert, part, use_reentrant=False))
            elif self.how == "reentrant":
                parts.append(checkpoint(expert, part.requires_grad_(), use_reentrant=True))
            elif self.how == "parts":
                parts.append(expert[1](expert[0](part)))
            elif part.shape[0] or self.how == "empty":
                parts.append(expert(part))
        return torch.cat(parts)


def rows_of(net: nn.Module, folder: Path, x: Tensor | None = None) -> list[Measurement]:
    """Return the check of one step."""
    sink = MemorySink()
    with Monitor(net, out=folder, check_every=1, sinks=[sink], verbose=False) as monitor:
        loss = net(torch.randn(7, 4) if x is None else x).square().mean()
        loss.backward()
        monitor.step(loss)
    found: list[Measurement] = of(sink, Measurement)
    return found


@pytest.mark.parametrize("how", ["call", "empty", "parts", "checkpoint", "reentrant"])
def test_rows_are_counted_once_however_experts_are_called(how: str, tmp_path: Path) -> None:
    """Called or skipped without rows, by their parts, or again by checkpointing."""
    net = Routed()
    net.how = how
    (check,) = rows_of(net, tmp_path / "run")
    assert check.experts == (
        ExpertRows(container="experts", experts=("0", "1", "2"), rows=(5, 2, 0)),
    )


def test_experts_of_a_dictionary_have_its_keys(tmp_path: Path) -> None:
    """As in some models of transformers."""
    (check,) = rows_of(Routed(dictionary=True), tmp_path / "run")
    assert check.experts[0].experts == ("expert_0", "expert_1", "expert_2")
    assert check.experts[0].rows == (5, 2, 0)


def test_experts_by_another_name_are_known_by_their_uneven_rows(tmp_path: Path) -> None:
    """Two members with rows, and not the same number; a stack that skips a layer is none."""
    net = Routed("branches")
    (check,) = rows_of(net, tmp_path / "uneven")
    assert check.experts[0].container == "branches"
    net.sizes = [7, 0, 0]
    (check,) = rows_of(net, tmp_path / "one")
    assert check.experts == ()


class Stages(nn.Module):
    """One kind of layer at several resolutions: a feature pyramid."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(
            [level(x[..., :: i + 1, :: i + 1]).mean() for i, level in enumerate(self.levels)]
        )


def test_stages_of_a_network_are_no_experts(tmp_path: Path) -> None:
    """Their rows differ, and their outputs are no matrices."""
    (check,) = rows_of(Stages(), tmp_path / "run", torch.randn(2, 3, 12, 12))
    assert check.experts == ()


def test_a_stack_of_layers_is_no_group_of_experts(tmp_path: Path) -> None:
    """All of them get all rows."""
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    net = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    assert [group.container for group in select(net, None).experts] == ["layers"]
    (check,) = rows_of(net, tmp_path / "run", torch.randn(2, 5, 8))
    assert check.experts == ()


@pytest.mark.parametrize(
    "children",
    [
        [nn.Linear(4, 4)],
        [nn.Linear(4, 4), nn.Linear(4, 5)],
        [nn.Linear(4, 4), nn.Bilinear(4, 4, 4)],
        [nn.ReLU(), nn.ReLU()],
    ],
    ids=["single", "shapes", "classes", "no parameters"],
)
def test_experts_are_alike(children: list[nn.Module]) -> None:
    """At least two, of one class, with parameters of the same shapes."""
    net = nn.Module()
    net.experts = nn.ModuleList(children)
    net.head = nn.Linear(4, 4)
    assert select(net, None).experts == ()


def test_experts_that_are_not_all_watched_are_no_group() -> None:
    """Shares of a part would be wrong."""
    assert len(select(Routed(), ["experts.*"]).experts) == 1
    assert select(Routed(), ["experts.0.*"]).experts == ()


def lines(net: nn.Module, folder: Path, *, train: bool = True) -> list[tuple[Any, ...]]:
    """Return what the last manifest says of experts."""
    sink = MemorySink()
    with Monitor(net, out=folder, check_every=1, sinks=[sink], verbose=False) as monitor:
        if train:
            loss = net(torch.randn(7, 4)).square().mean()
            loss.backward()
            monitor.step(loss)
    manifest = of(sink, Manifest)[-1]
    found = [line for line in manifest.mechanisms if line.name == "expert_usage"]
    return [(line.state, line.layers) for line in found]


class Fused(nn.Module):
    """Experts in one tensor, as in newer models of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Module()
        self.experts.gate_up = nn.Parameter(torch.randn(3, 4, 4))
        self.experts.bias = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.experts.gate_up[0]


def test_the_manifest_says_whose_experts_are_seen(tmp_path: Path) -> None:
    """Active for a list of them, unobservable for one tensor, and no line for other models."""
    active, blind = MechanismState.ACTIVE, MechanismState.UNOBSERVABLE
    assert lines(Routed(), tmp_path / "list") == [(active, ("experts",))]
    assert lines(Fused(), tmp_path / "fused") == [(blind, ("experts",))]
    assert lines(nn.Linear(4, 4), tmp_path / "plain") == []


def test_experts_that_are_convolutions_are_not_fused() -> None:
    """Their weights have more than two dimensions, one expert each."""
    net = nn.Module()
    net.experts = nn.ModuleList(nn.Conv1d(2, 2, 1) for _ in range(3))
    assert select(net, None).fused == ()
    assert len(select(net, None).experts) == 1


def test_experts_that_are_never_called_are_unobservable(tmp_path: Path) -> None:
    """Their parameters may be used by other ways."""

    class Direct(Routed):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.members[0][0].weight)

    blind = (MechanismState.UNOBSERVABLE, ("experts",))
    assert blind in lines(Direct(), tmp_path / "run")


def test_counting_changes_no_number_and_leaves_no_hook(tmp_path: Path) -> None:
    """Gradients are bit-identical with and without the monitor."""
    torch.manual_seed(0)
    net, x = Routed(), torch.randn(7, 4)
    net(x).square().mean().backward()
    bare = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    rows_of(net, tmp_path / "run", x)
    seen = [p.grad for p in net.parameters() if p.grad is not None]
    assert len(seen) == len(bare) == 8
    assert all(torch.equal(a, b) for a, b in zip(seen, bare, strict=True))
    assert not torch.nn.modules.module._global_forward_hooks


def test_peaks_at_outputs_are_unscaled_and_know_their_type(tmp_path: Path) -> None:
    """In the order of the layers, divided by the loss scale at every stage."""
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    nn.init.eye_(net[0].weight)
    nn.init.constant_(net[1].weight, 3.0)
    peaks = []
    for unscale in (False, True):
        scaler, sink = torch.amp.GradScaler("cpu", init_scale=1024.0), MemorySink()
        optimizer = torch.optim.SGD(net.parameters())
        with Monitor(
            net,
            optimizer,
            out=tmp_path / str(unscale),
            check_every=1,
            scaler=scaler,
            sinks=[sink],
            verbose=False,
        ) as monitor:
            loss = net(torch.ones(1, 2)).sum()
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
            monitor.step(loss)
        (check,) = of(sink, Measurement)
        assert (check.layers, check.gradient_type) == (("1", "0"), "float32")
        peaks.append(check.output_peaks)
        optimizer.zero_grad()
    assert peaks == [(1.0, 6.0), (1.0, 6.0)]


def test_the_narrowest_type_counts(tmp_path: Path) -> None:
    """Under autocast the matrix products have it."""
    net, sink = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), MemorySink()
    with Monitor(net, out=tmp_path / "run", check_every=1, sinks=[sink], verbose=False) as monitor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = net(torch.randn(2, 4)).float().square().mean()
        loss.backward()
        monitor.step(loss)
    (check,) = of(sink, Measurement)
    assert check.gradient_type == "bfloat16"
