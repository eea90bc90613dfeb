"""Values before the first step: which of them are looked at, and which are said not to be."""

from pathlib import Path

import torch
from support import of
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from ormas_core import Manifest, MemorySink, Monitor, NonfiniteState


class Own(Tensor):
    """A class as people derive one: it has the values itself."""


def said(net: nn.Module, folder: Path) -> MemorySink:
    """Return what a monitor says before the first step."""
    sink = MemorySink()
    Monitor(net, out=folder, sinks=[sink], verbose=False).close()
    return sink


def test_tensors_of_a_derived_class_are_looked_at(tmp_path: Path) -> None:
    """A NaN in a parameter or buffer of such a class is named like any other."""
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[0].weight = nn.Parameter(torch.full((2, 2), torch.nan).as_subclass(Own))
    net[1].register_buffer("mask", torch.full((3,), torch.inf).as_subclass(Own))
    assert isinstance(net[0].weight, Own)
    sink = said(net, tmp_path)
    (found,) = of(sink, NonfiniteState)
    assert [(c.layer, c.nan, c.inf) for c in found.layers] == [("0", 4, 0), ("1", 0, 3)]
    assert "starting_values" not in {m.name for m in of(sink, Manifest)[0].mechanisms}


def test_what_cannot_be_looked_at_is_named_in_the_manifest(tmp_path: Path) -> None:
    """Values that a class keeps elsewhere, that are not there yet, or are sparse."""
    net = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)), nn.LazyLinear(2), nn.Linear(2, 2))
    bad = torch.full((2, 2), torch.nan)
    net[0].weight = nn.Parameter(TwoTensor(bad, bad.clone()))
    net[1].weight = nn.Parameter(torch.empty(2, 2, device="meta"))
    net[2].register_buffer("sparse", bad.to_sparse())
    net[4].register_buffer("count", torch.zeros((), dtype=torch.int64))
    sink = said(net, tmp_path)
    assert not of(sink, NonfiniteState)
    (line,) = [m for m in of(sink, Manifest)[0].mechanisms if m.name == "starting_values"]
    assert line.layers == ("0", "1", "2", "3")
    assert line.state.value == "unobservable"
    assert "without data yet" in line.reason


def test_a_mask_in_a_buffer_is_no_finding(tmp_path: Path) -> None:
    """Text encoders keep their causal mask as one, and a NaN beside it is found all the same."""
    net = nn.Sequential(nn.Linear(2, 2))
    net[0].register_buffer("attn_mask", torch.full((4, 4), -torch.inf).triu(1))
    assert not of(said(net, tmp_path / "mask"), NonfiniteState)
    net[0].attn_mask[0, 0] = torch.nan
    (found,) = of(said(net, tmp_path / "nan"), NonfiniteState)
    assert [(c.layer, c.nan, c.inf) for c in found.layers] == [("0", 1, 0)]
