"""What is read of the stored values: as little as nothing needs, and never less than is asked."""

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from fuzz.build import seeded
from torch import Tensor, nn
from torch.nn import functional

from ormas_core.certificates import leaves
from ormas_core.certificates.candidates import Structure, candidate, structure
from ormas_core.certificates.graph import read
from ormas_core.certificates.rules import SETTINGS
from ormas_core.certificates.values import Values

SHAPES = ((), (6,), (4, 6), (6, 4), (40, 50), (40, 30, 2), (30, 20, 3, 2), (0, 5), (2000,))
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.int64)


def drawn(rng: random.Random) -> Tensor:
    """Return a tensor with zeros and signs: as a whole, by slices, and here and there."""
    shape = rng.choice(SHAPES)
    values = torch.randn(shape)
    for axis in range(min(values.dim(), 2)):
        for _ in range(rng.choice((0, 0, 1, 2))):
            slices = values.transpose(0, axis)
            if slices.shape[0]:
                place = rng.randrange(slices.shape[0])
                slices[place] = slices[place].abs() * rng.choice((0.0, 1.0, -1.0))
    if rng.random() < 0.2:
        values[torch.rand(shape) < 0.3] = 0.0
    if rng.random() < 0.1:
        values.zero_()
    return values.to(rng.choice(DTYPES))


def forms_of(keys: Sequence[int], rng: random.Random) -> list[Structure]:
    """Return one form or two, in which each parameter has any of the uses that matter."""

    def some() -> frozenset[int]:
        return frozenset(key for key in keys if rng.random() < 0.3)

    return [
        Structure(
            scales=some(),
            signed=some() if rng.random() < 0.5 else frozenset(),
            tables=some(),
            outputs={key: rng.randrange(2) for key in some()},
            sums=(),
            norms=(),
        )
        for _ in range(rng.choice((1, 2)))
    ]


@pytest.mark.parametrize("seed", range(100))
def test_a_glance_overlooks_no_candidate(seed: int) -> None:
    """One that matters by itself is seen, and with it all others, with all of their facts."""
    rng = seeded(seed)
    torch.manual_seed(seed)
    keys = range(rng.choice((1, 2, 12)))
    tensors = {number: drawn(rng) for number in keys}
    forms = forms_of(keys, rng)
    signed = frozenset().union(*(form.signed for form in forms))
    whole = {
        key: leaves.read_now(one, signed=key in signed)
        for key, one in tensors.items()
        if one.numel()
    }

    def candidates(*, first: bool) -> set[int]:
        return {
            key
            for key, facts in whole.items()
            for form in forms
            if candidate(key, facts, form, first=first)
        }

    likely = Values(tensors, forms).likely()
    assert bool(likely) == bool(candidates(first=True))
    for key in candidates(first=False) if likely else ():
        assert likely[key].same(whole[key])


@pytest.mark.parametrize("seed", range(20))
def test_all_that_is_read_is_true(seed: int) -> None:
    """Facts of some, and then of all, are among those of a full reading."""
    rng = seeded(seed)
    torch.manual_seed(seed)
    tensors = {number: drawn(rng) for number in range(12)}
    values = Values(tensors, forms_of(range(12), rng))
    assert list(values.of((3, 5))) == [3, 5]
    for key, facts in values.every().items():
        full = leaves.read_now(tensors[key])
        assert facts.shape == tuple(tensors[key].shape)
        for name in ("zero", "neg", "pos"):
            said, held = getattr(facts, name).dense(), getattr(full, name).dense()
            assert not (said & ~held).any()


class Tied(nn.Module):
    """A table that is also the last weight, as in language models, and a layer between."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(300, 16))
        self.up, self.down = nn.Linear(16, 100), nn.Linear(100, 16)

    def forward(self, ids: Tensor) -> Tensor:
        x = functional.layer_norm(functional.embedding(ids, self.table), (16,))
        return self.down(functional.gelu(self.up(x))) @ self.table.t()


class Planted(NamedTuple):
    """Zeros in one parameter of it, and the parameters that are likely to close something."""

    plant: Callable[[Any], Tensor]
    likely: set[str]


@pytest.mark.parametrize(
    "planted",
    [
        Planted(lambda net: net.table[7], set()),
        Planted(lambda net: net.table[:, 5], {"table"}),
        Planted(lambda net: net.up.weight[3], {"up.weight"}),
        Planted(lambda net: net.up.weight[:, 3], set()),
        Planted(lambda net: net.down.weight[3], {"down.weight"}),
        Planted(lambda net: net.down.weight[:, 3], set()),
    ],
)
def test_zeros_matter_in_output_features(planted: Planted) -> None:
    """A row of a table may be picked, and a column lasts only where its input is zero."""
    net = Tied()
    with torch.no_grad():
        planted.plant(net).zero_()
    assert likely_in(net) == planted.likely


def test_with_one_candidate_all_others_are_looked_for() -> None:
    """The zero column that closes a unit together with its zero row is read with that."""
    net = Tied()
    with torch.no_grad():
        net.up.weight[3] = 0
        net.down.weight[:, 3] = 0
    assert likely_in(net) == {"up.weight", "down.weight"}


def likely_in(net: Tied) -> set[str]:
    """Return the names of the parameters that may close something."""
    loss = functional.cross_entropy(net(torch.arange(4)), torch.arange(4))
    graph = read([loss], SETTINGS, {})
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    values = Values({id(one): one for one in graph.parameters}, [structure(graph)])
    return {names[key] for key in values.likely()}
