"""Which layers are watched, and under which names."""

import copy

import pytest
import torch
from support import ToyNet
from torch import nn

from ormas_core import LayerPatternError
from ormas_core.hooks import select, unwrap


def names(model: nn.Module, patterns: list[str] | None = None) -> list[str]:
    return [layer.name for layer in select(model, patterns).layers]


def test_every_module_that_owns_parameters_is_watched() -> None:
    """Containers and activations own none; layers keep the model's order."""
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Sequential(nn.BatchNorm1d(2)))
    assert names(net) == ["0", "2.0"]


def test_patterns_narrow_and_match_whole_names() -> None:
    """A pattern is an fnmatch pattern of the whole name; a list is a union."""
    assert names(ToyNet(), ["fc[12]"]) == ["fc1", "fc2"]
    assert names(ToyNet(), ["fc1", "*3"]) == ["fc1", "fc3"]


def test_a_pattern_without_match_shows_real_names() -> None:
    """The error is a ValueError that names the pattern and a few layers of the model."""
    with pytest.raises(ValueError, match=r"encoder\.\*.*3 layers.*fc1, fc2, fc3") as caught:
        select(ToyNet(), ["encoder.*"])
    assert isinstance(caught.value, LayerPatternError)


def test_one_idle_pattern_among_others_is_reported_not_refused() -> None:
    """A list with a match keeps working; the idle pattern is in the selection."""
    assert select(ToyNet(), ["fc1", "typo.*"]).unmatched == ("typo.*",)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda net: torch.compile(net, backend="eager"),
        nn.DataParallel,
        lambda net: torch.compile(nn.DataParallel(net), backend="eager"),
        lambda net: nn.DataParallel(torch.compile(net, backend="eager")),
    ],
    ids=["compile", "dataparallel", "compile-outside", "compile-inside"],
)
def test_wrappers_are_looked_through(wrap: object) -> None:
    """Names are those of the user's own model whatever is around it."""
    net = ToyNet()
    assert unwrap(wrap(net)) is net  # type: ignore[operator]
    assert names(wrap(net)) == ["fc1", "fc2", "fc3"]  # type: ignore[operator]
    compiled = () if wrap is nn.DataParallel else ("ToyNet",)
    assert select(wrap(net), None).compiled == compiled  # type: ignore[operator]


def test_a_region_compiled_inside_keeps_the_users_names() -> None:
    """Regional compilation puts a wrapper mid-name, and it is cut out; around a layer too."""
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    for place in (0, 1):
        net[place] = torch.compile(net[place], backend="eager")
    selection = select(net, None)
    assert [layer.name for layer in selection.layers] == ["0", "1.0"]
    assert selection.compiled == ("0", "1")


def test_compiling_in_place_is_seen() -> None:
    """`module.compile()` leaves no wrapper but is compiled code all the same."""
    net = nn.Sequential(nn.Linear(2, 2))
    net.compile(backend="eager")
    assert select(net, None).compiled


def test_a_tied_parameter_belongs_to_its_first_owner() -> None:
    """The second owner is listed as tied."""
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    net[1].weight = net[0].weight
    assert select(net, None).tied == (("1", "0"),)


def test_a_bare_layer_is_called_by_its_class() -> None:
    """The model itself has no name, so its class stands in."""
    assert names(nn.Linear(2, 2)) == ["Linear"]


def test_selecting_leaves_the_model_as_it_was() -> None:
    """The model's attributes are untouched."""
    net = ToyNet()
    before = copy.deepcopy(net.__dict__)
    select(net, None)
    assert net.__dict__.keys() == before.keys()
    assert not any(module._forward_hooks for module in net.modules())
