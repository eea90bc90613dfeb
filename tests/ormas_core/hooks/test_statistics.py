"""Tensors to numbers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from ormas_core.hooks import statistics
from ormas_core.hooks.gather import Gather


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20))
def test_a_finite_float32_gradient_has_its_true_finite_norm(values: list[float]) -> None:
    """The norm agrees with exact arithmetic over the whole float32 range."""
    (norm,) = statistics.norms([torch.tensor(values, dtype=torch.float32)])
    assert norm.item() == pytest.approx(math.hypot(*values), rel=1e-12)


def test_norms_keep_their_places_across_types() -> None:
    """Batching by device and type does not reorder the answers."""
    tensors = [
        torch.full((n,), 2.0, dtype=d)
        for n, d in [
            (1, torch.float32),
            (4, torch.bfloat16),
            (9, torch.float64),
            (0, torch.float32),
        ]
    ]
    assert [norm.item() for norm in statistics.norms(tensors)] == [2.0, 4.0, 6.0, 0.0]


def test_sparse_gradients_count_duplicates_once_summed() -> None:
    """An uncoalesced sparse gradient has the norm of its sum."""
    grad = torch.sparse_coo_tensor([[1, 1, 0]], [3.0, 1.0, 3.0], (4,), check_invariants=True)
    assert statistics.gradient_values(grad).norm().item() == 5.0


def test_complex_gradients_have_real_and_imaginary_parts() -> None:
    """The norm of 3+4j is 5."""
    values = statistics.gradient_values(torch.tensor([3 + 4j]))
    assert statistics.norms([values])[0].item() == 5.0


@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_squares_out_of_range_are_rescaled(size: float) -> None:
    """A float64 gradient whose squares leave the range keeps its norm."""
    value = torch.full((4,), size, dtype=torch.float64)
    assert statistics.rescaled_norm(value).item() == pytest.approx(2 * size, rel=1e-12)


def test_nan_and_infinities_are_counted_apart() -> None:
    """Two NaN and one Inf are two and one."""
    value = torch.tensor([math.nan, 1.0, math.inf, math.nan])
    assert statistics.nonfinite(value).tolist() == [2, 1]


@pytest.mark.parametrize(
    ("module", "shape", "channels"),
    [
        (nn.Conv2d(2, 5, 3), (4, 2, 8, 8), 5),
        (nn.Conv2d(2, 5, 3), (2, 8, 8), 5),
        (nn.Conv1d(2, 5, 3), (4, 2, 8), 5),
        (nn.Conv3d(2, 5, 3), (1, 2, 4, 4, 4), 5),
        (nn.ConvTranspose2d(2, 5, 3), (4, 2, 8, 8), 5),
        (nn.Linear(7, 5), (4, 7), 5),
        (nn.Linear(7, 5), (2, 3, 7), 5),
        (nn.Linear(7, 5), (7,), 5),
        (nn.BatchNorm1d(5), (4, 5), 5),
        (nn.BatchNorm1d(5), (4, 5, 3), 5),
        (nn.BatchNorm2d(5), (4, 5, 3, 3), 5),
    ],
)
def test_channel_maxima_are_per_output_channel(
    module: nn.Module, shape: tuple[int, ...], channels: int
) -> None:
    """Each maximum is the largest value of that channel over everything else."""
    torch.manual_seed(0)
    output: Tensor = module(torch.randn(shape))
    dim = {1: 0}.get(output.dim(), statistics.channel_dim(module, output))
    maxima = statistics.channel_maxima(module, output)
    assert maxima is not None
    assert maxima.shape == (channels,)
    expected = [output.select(dim or 0, c).max().item() for c in range(channels)]
    assert maxima.tolist() == expected


@pytest.mark.parametrize(
    ("module", "output"),
    [
        (nn.ReLU(), torch.ones(2, 2)),
        (nn.Linear(2, 2), torch.ones(0, 2)),
        (nn.LayerNorm(2), torch.ones(1, 2)),
    ],
    ids=["no-channels", "empty-batch", "layer-norm"],
)
def test_what_has_no_channels_has_no_maxima(module: nn.Module, output: Tensor) -> None:
    """Other modules and empty batches give None."""
    assert statistics.channel_maxima(module, output) is None


class Elsewhere(Tensor):
    """A tensor that says it lives on another device."""

    # Results of operations are ordinary tensors.
    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 1)


def test_gathering_copies_once_per_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven tensors on two devices come over in two copies, each in its slot."""
    copies = []
    real = Tensor.cpu
    monkeypatch.setattr(Tensor, "cpu", lambda self: copies.append(self.device) or real(self))
    gather = Gather()
    here = [torch.full((n,), float(n)) for n in range(4)]
    there = [torch.full((n,), 10.0 * n).as_subclass(Elsewhere) for n in range(1, 4)]
    slots = [gather.add(t) for pair in zip(here[1:], there, strict=True) for t in pair]
    empty = gather.add(here[0])
    host = gather.fetch()
    assert len(copies) == 2
    assert [host[slot].tolist() for slot in slots] == [
        [1.0],
        [10.0],
        [2.0] * 2,
        [20.0] * 2,
        [3.0] * 3,
        [30.0] * 3,
    ]
    assert host[empty].size == 0
