"""Hidden units, heads and adapters that are planted dead are certified, their near misses not."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from certificate_support import (
    absorbing,
    certified,
    classes,
    found,
    refused,
    sgd,
    zero_columns,
    zero_rows,
)
from torch import Tensor, nn
from torch.nn import functional

from ormas_core import certify


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def _new_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * torch.pow(x, 3.0))))


def _erf_gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / 1.41421356))


class Mlp(nn.Module):
    """A residual block with one hidden layer."""

    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.fc1, self.fc2, self.head = nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 3)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + functional.dropout(self.fc2(self.act(self.fc1(self.norm(x)))), 0.1))


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(functional.gelu, id="gelu, erf"),
        pytest.param(lambda x: functional.gelu(x, approximate="tanh"), id="gelu, tanh"),
        pytest.param(_new_gelu, id="gelu, tanh, written out"),
        pytest.param(_erf_gelu, id="gelu, erf, written out"),
        pytest.param(lambda x: x * torch.sigmoid(1.702 * x), id="gelu, quick"),
        pytest.param(functional.silu, id="silu"),
        pytest.param(functional.mish, id="mish"),
        pytest.param(functional.hardswish, id="hardswish"),
        pytest.param(torch.tanh, id="tanh"),
        pytest.param(functional.elu, id="elu"),
        pytest.param(functional.leaky_relu, id="leaky relu"),
        pytest.param(functional.softsign, id="softsign"),
    ],
)
def test_a_hidden_unit_without_way_in_or_out_is_certified(act: Callable[[Tensor], Tensor]) -> None:
    """Incoming row, bias and outgoing column zero hold each other, for any f with f(0) = 0.

    1 is dead; 2 has an outgoing weight of 1e-9, 3 a bias of 1e-9, 4 and 5 only one side zero.
    """
    net = Mlp(act)
    zero_rows(net.fc1, 1, 2, 4)
    zero_rows(net.fc1, 3, bias=1e-9)
    zero_columns(net.fc2, 1, 2, 3, 5)
    nn.init.constant_(net.fc2.weight[0, 2], 1e-9)
    certificates = certified(net, sgd(net), classes(net, 4, 6), absorbing("unit", fc1=(1,)))
    assert set(refused(certificates)) == {("fc1", 2), ("fc1", 3), ("fc1", 4)}


def test_a_function_that_is_not_zero_at_zero_certifies_no_hidden_unit() -> None:
    """Softplus sends log 2 out of a unit with zero weights, so its outgoing column learns."""
    net = Mlp(functional.softplus)
    zero_rows(net.fc1, 1)
    zero_columns(net.fc2, 1)
    certificates = certify(net, sgd(net), classes(net, 4, 6)())
    assert found(certificates) == set()
    assert set(refused(certificates)) == {("fc1", 1)}


class Glu(nn.Module):
    """A gated hidden layer, its two projections apart or fused in one matrix."""

    def __init__(self, act: Callable[[Tensor], Tensor], *, fused: bool = False) -> None:
        super().__init__()
        self.both = nn.Linear(6, 16, bias=False) if fused else None
        self.gate = nn.Identity() if fused else nn.Linear(6, 8, bias=False)
        self.up = nn.Identity() if fused else nn.Linear(6, 8, bias=False)
        self.down, self.head = nn.Linear(8, 6, bias=False), nn.Linear(6, 3)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        if self.both is not None:
            gate, up = self.both(x).chunk(2, dim=-1)
        else:
            gate, up = self.gate(x), self.up(x)
        return self.head(x + self.down(self.act(gate) * up))


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(functional.silu, id="swiglu"),
        pytest.param(functional.gelu, id="geglu"),
        pytest.param(lambda x: functional.gelu(x, approximate="tanh"), id="geglu, tanh"),
    ],
)
def test_a_gated_unit_of_two_zero_factors_is_certified(act: Callable[[Tensor], Tensor]) -> None:
    """Gate and up rows zero (1), or up row and down column zero (2); one zero alone is alive."""
    net = Glu(act)
    zero_rows(net.gate, 1, 4)
    zero_rows(net.up, 1, 2, 5)
    zero_columns(net.down, 2, 6)
    expected = absorbing("unit", up=(1, 2)) | absorbing("unit", gate=(1,))
    certificates = certified(
        net, sgd(net), classes(net, 4, 6), expected | absorbing("unit", gate=(2,))
    )
    assert set(refused(certificates)) == {("gate", 4), ("up", 5)}


def test_a_gate_that_is_open_at_zero_certifies_no_pair_of_rows() -> None:
    """The sigmoid of a zero gate is one half, so the up row learns."""
    net = Glu(torch.sigmoid)
    zero_rows(net.gate, 1)
    zero_rows(net.up, 1)
    certificates = certify(net, sgd(net), classes(net, 4, 6)())
    assert found(certificates) == set()
    assert set(refused(certificates)) == {("gate", 1), ("up", 1)}


def test_the_halves_of_a_fused_gated_layer_are_told_apart() -> None:
    """Rows 1 and 9 are the gate and up of unit 1, 2 and 10 those of unit 2; 4 is a near miss."""
    net = Glu(functional.silu, fused=True)
    zero_rows(net.both, 1, 9, 10, 4)
    zero_columns(net.down, 2)
    expected = absorbing("unit", both=(1, 9, 10)) | absorbing("unit", both=(2,))
    certificates = certified(net, sgd(net), classes(net, 4, 6), expected)
    assert set(refused(certificates)) == {("both", 4)}


class Attention(nn.Module):
    """Four query heads of two features; `heads` of keys and values."""

    def __init__(
        self,
        *,
        fused: bool,
        heads: int = 4,
        bias: bool = True,
        pool: Callable[[Tensor], Tensor] = lambda x: x.mean(1),
    ) -> None:
        super().__init__()
        self.q, self.o = nn.Linear(8, 8, bias=bias), nn.Linear(8, 8, bias=bias)
        self.k, self.v = (nn.Linear(8, 2 * heads, bias=bias) for _ in range(2))
        self.head = nn.Linear(8, 3)
        self.fused, self.heads, self.pool = fused, heads, pool

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, 2)).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.fused:
            mixed = functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=self.heads < 4
            )
        else:
            k, v = (t.repeat_interleave(4 // self.heads, dim=1) for t in (k, v))
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            scores = (q @ k.transpose(-1, -2)).masked_fill(later, -torch.inf)
            mixed = scores.softmax(-1) @ v
        return self.head(self.pool(x + self.o(mixed.transpose(1, 2).flatten(2))))


FUSED = pytest.mark.parametrize("fused", [True, False], ids=["fused", "explicit"])


@FUSED
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_a_head_of_zero_queries_and_keys_is_certified(fused: bool, bias: bool) -> None:
    """Head 1 has queries and keys zero; head 2 only its queries, and is alive."""
    net = Attention(fused=fused, bias=bias)
    zero_rows(net.q, 2, 3, 4, 5)
    zero_rows(net.k, 2, 3)
    expected = absorbing("head", q=(1,), k=(1,))
    certificates = certified(net, sgd(net), classes(net, 2, 5, 8), expected)
    assert set(refused(certificates)) == {("q", 4), ("q", 5)}


@FUSED
def test_a_head_of_zero_values_and_zero_way_out_is_certified(fused: bool) -> None:
    """Head 1 has values and output columns zero: queries and keys get nothing either.

    Head 2 has zero values only and head 3 zero columns only; both are alive.
    """
    net = Attention(fused=fused)
    zero_rows(net.v, 2, 3, 4, 5)
    zero_columns(net.o, 2, 3, 6, 7)
    expected = absorbing("head", v=(1,), q=(1,), k=(1,))
    certificates = certified(net, sgd(net), classes(net, 2, 5, 8), expected)
    assert set(refused(certificates)) == {("v", 4), ("v", 5)}


@FUSED
def test_grouped_queries_share_one_fate(fused: bool) -> None:
    """Keys of group 0 are dead with both its query heads; group 1 has one live query head."""
    net = Attention(fused=fused, heads=2)
    zero_rows(net.q, 0, 1, 2, 3, 4, 5)
    nn.init.constant_(net.k.weight[2:, :1], 0.3)
    zero_rows(net.k, 0, 1)
    expected = absorbing("head", q=(0, 1), k=(0,))
    certificates = certified(net, sgd(net), classes(net, 2, 5, 8), expected)
    assert set(refused(certificates)) == {("q", 4), ("q", 5)}


@FUSED
def test_grouped_values_need_every_head_of_the_group_shut(fused: bool) -> None:
    """Values of group 0 are dead, both its query heads leading nowhere; group 1 has one way out."""
    net = Attention(fused=fused, heads=2)
    zero_rows(net.v, 0, 1, 2)
    zero_columns(net.o, 0, 1, 2, 3, 4, 5)
    expected = absorbing("head", q=(0, 1), k=(0,), v=(0,))
    certificates = certified(net, sgd(net), classes(net, 2, 5, 8), expected)
    assert set(refused(certificates)) == {("v", 2)}


@FUSED
def test_attention_is_read_alike_before_and_after_backward(fused: bool) -> None:
    """What attention saves as tensors is gone after backward; shapes and settings are not."""
    net = Attention(fused=fused)
    zero_rows(net.v, 2, 3)
    zero_columns(net.o, 2, 3)
    loss = classes(net, 2, 5, 8)()
    before = certify(net, sgd(net), loss)
    loss.backward()
    assert found(before) == absorbing("head", v=(1,), q=(1,), k=(1,))
    assert certify(net, sgd(net), loss) == before


def test_a_single_feature_of_a_head_is_a_unit() -> None:
    """One value row and its output column are no whole head: a hidden unit, named by its row."""
    net = Attention(fused=True)
    zero_rows(net.v, 2)
    zero_columns(net.o, 2)
    certified(net, sgd(net), classes(net, 2, 5, 8), absorbing("unit", v=(2,)))


@FUSED
def test_a_head_that_is_read_at_one_position_is_certified(fused: bool) -> None:
    """A classifier that reads the first position only leaves the others without gradient anyway."""
    net = Attention(fused=fused, pool=lambda x: x[:, 0])
    zero_rows(net.q, 2, 3)
    zero_rows(net.k, 2, 3)
    expected = absorbing("head", q=(1,), k=(1,))
    certified(net, sgd(net), classes(net, 2, 5, 8), expected)


class Adapter(nn.Module):
    """A frozen layer with a low-rank pair beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8).requires_grad_(False)
        self.down, self.up = nn.Linear(8, 4, bias=False), nn.Linear(4, 8, bias=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x) + 2 * self.up(functional.dropout(self.down(x), 0.1)))


def test_a_rank_of_an_adapter_with_both_factors_zero_is_certified() -> None:
    """Rank 1 has both factors zero; 2 only the first, 3 only the second, and both can learn."""
    net = Adapter()
    zero_rows(net.down, 1, 2)
    zero_columns(net.up, 1, 3)
    certificates = certified(net, sgd(net), classes(net, 4, 8), absorbing("adapter", down=(1,)))
    assert set(refused(certificates)) == {("down", 2)}


def test_an_adapter_that_is_zero_throughout_is_certified() -> None:
    """Both factors zero in every rank: the adapter never learns anything."""
    net = Adapter()
    nn.init.zeros_(net.down.weight)
    nn.init.zeros_(net.up.weight)
    certified(net, sgd(net), classes(net, 4, 8), absorbing("adapter", down=(0, 1, 2, 3)))


def test_a_fresh_adapter_is_healthy() -> None:
    """One factor zero is how adapters start: neither a finding nor a refusal."""
    net = Adapter()
    nn.init.zeros_(net.up.weight)
    certificates = certify(net, sgd(net), classes(net, 4, 8)())
    assert (certificates.claims, certificates.refused) == ((), ())


class Base(nn.Module):
    """What PEFT adapts."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.fc, self.head = layer, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.fc(x))
        return self.head(hidden.flatten(2).mean(2) if hidden.dim() > 2 else hidden)


def _conv1d() -> nn.Module:
    from transformers.pytorch_utils import Conv1D

    return Conv1D(8, 6)


LORA: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "plain": (lambda: nn.Linear(6, 8), {}),
    "dropout": (lambda: nn.Linear(6, 8), {"lora_dropout": 0.1}),
    "Conv1D": (_conv1d, {"fan_in_fan_out": True}),
    "DoRA": (lambda: nn.Linear(6, 8), {"use_dora": True}),
    "rank-stabilised": (lambda: nn.Linear(6, 8), {"use_rslora": True}),
    "Conv2d": (lambda: nn.Conv2d(6, 8, 3), {}),
}


@pytest.mark.parametrize("variant", LORA)
def test_ranks_of_real_lora_layers_are_certified(variant: str) -> None:
    """PEFT's layers: a fresh one is healthy, rank 1 with both factors zero is dead, 2 is alive."""
    peft = pytest.importorskip("peft")
    make, options = LORA[variant]
    config = peft.LoraConfig(r=4, target_modules=["fc"], modules_to_save=["head"], **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # What PEFT says of its own use is not under test.
        net = peft.get_peft_model(Base(make()), config)
    shape = (4, 6, 5, 5) if variant == "Conv2d" else (4, 6)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad])
    fresh = certify(net, optimizer, classes(net, *shape)())
    assert (fresh.claims, fresh.refused) == ((), ())
    layer = net.base_model.model.fc
    first, second = layer.lora_A["default"], layer.lora_B["default"]
    nn.init.normal_(second.weight)
    zero_rows(first, 1, 2)
    zero_columns(second, 1, 3)
    name = "base_model.model.fc.lora_A.default"
    certificates = certified(
        net, optimizer, classes(net, *shape), {(name, (1,), "absorbing", "adapter")}
    )
    assert set(refused(certificates)) == {(name, 2)}
