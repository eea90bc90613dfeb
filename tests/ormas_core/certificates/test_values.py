"""What is read of the stored values: as little as nothing needs, and never less than is asked."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ormas_core.certificates import leaves
from ormas_core.certificates.candidates import Structure, candidate, structure
from ormas_core.certificates.graph import Graph, read
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

    tables = some()
    return [
        Structure(scales=some(), signed=some(), tables=tables, sums=(), norms=())
        for _ in range(rng.choice((1, 2)))
    ]


@pytest.mark.parametrize("seed", range(60))
def test_a_glance_overlooks_no_candidate(seed: int) -> None:
    """Whatever could close something is among what is likely, with the facts of a full reading."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    tensors = {number: drawn(rng) for number in range(12)}
    forms = forms_of(range(12), rng)
    signed = frozenset().union(*(form.signed for form in forms))
    whole = {key: leaves.read_now(one, signed=key in signed) for key, one in tensors.items()}
    likely = Values(tensors, forms).likely()
    for key, facts in whole.items():
        if tensors[key].numel() and any(candidate(key, facts, form) for form in forms):
            assert likely[key].same(facts)


@pytest.mark.parametrize("seed", range(20))
def test_all_that_is_read_is_true(seed: int) -> None:
    """Facts of some, and then of all, are among those of a full reading."""
    rng = random.Random(seed)
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
    """A table that is also the last weight, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(300, 16))
        self.fc = nn.Linear(16, 16)

    def forward(self, ids: Tensor) -> Tensor:
        return functional.gelu(self.fc(functional.embedding(ids, self.table))) @ self.table.t()


def graph_of(net: Any) -> Graph:
    loss = functional.cross_entropy(net(torch.arange(4)), torch.arange(4))
    return read([loss], SETTINGS, {})


def test_rows_of_a_table_are_not_looked_at() -> None:
    """A row that is zero, such as that of a padding token, may be picked: no candidate."""
    net = Tied()
    graph = graph_of(net)
    with torch.no_grad():
        net.table[7] = 0
    values = Values({id(one): one for one in graph.parameters}, [structure(graph)])
    assert id(net.table) not in values.likely()
    with torch.no_grad():
        net.table[:, 5] = 0
    values = Values({id(one): one for one in graph.parameters}, [structure(graph)])
    assert id(net.table) in values.likely()
