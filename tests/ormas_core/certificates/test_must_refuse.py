"""What looks dead in an open or unreadable graph is refused, and the reason names the cause."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from certificate_support import (
    IMAGES,
    Gated,
    Losses,
    absorbing,
    certified,
    classes,
    closed_now,
    conv_net,
    found,
    plant_channels,
    refused,
    sgd,
    zero_rows,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ormas_core import certify


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_batch_norm_in_evaluation_mode_is_refused() -> None:
    """Running statistics make a constant of unknown value; a zero scale still gives the shift."""
    net = conv_net()
    net.norm.eval()
    certificates = certified(net, sgd(net), classes(net, *IMAGES), absorbing("channel", layer=(5,)))
    assert "evaluation mode" in refused(certificates)["layer", 3]


def test_a_producer_bias_that_is_not_zero_is_refused() -> None:
    """The batch mean cancels a constant only up to rounding; a zero scale does so exactly."""
    net = conv_net(bias=True)
    nn.init.constant_(net.layer.bias, 0.1)
    certificates = certified(net, sgd(net), classes(net, *IMAGES), absorbing("channel", layer=(5,)))
    reason = "layer.bias is not zero: batch norm cancels a constant only up to rounding"
    assert refused(certificates)["layer", 3] == reason
    assert "norm.bias is positive there" in refused(certificates)["layer", 6]


class Shared(nn.Module):
    """One layer before two norms; the second is open in channel 5."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Conv2d(3, 8, 3, bias=False), nn.Linear(8, 3)
        self.norm, self.other = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        plant_channels(self)
        self.other.load_state_dict(self.norm.state_dict())
        nn.init.constant_(self.other.bias[5:6], 0.1)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.norm(self.layer(x)), self.other(self.layer(2 * x))
        return self.head((torch.relu(first) + torch.relu(second)).mean((2, 3)))


def test_a_layer_used_twice_is_refused_where_one_use_is_open() -> None:
    """Channel 5 is closed behind one norm and open behind the other."""
    net = Shared()
    certificates = certified(net, sgd(net), classes(net, *IMAGES), absorbing("channel", layer=(3,)))
    assert refused(certificates)["layer", 5].startswith("it is used 2 times, before ")


class Tapped(nn.Module):
    """The classical pattern, with the norm's input or output also read by another head."""

    def __init__(self, *, before: bool) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.head, self.tap = nn.Linear(8, 3), nn.Linear(8, 3)
        self.before = before
        plant_channels(self)

    def forward(self, x: Tensor) -> Tensor:
        made = self.layer(x)
        normed = self.norm(made)
        tapped = made if self.before else normed
        return self.head(torch.relu(normed).mean((2, 3))) + self.tap(tapped.mean((2, 3)))


@pytest.mark.parametrize("before", [True, False], ids=["before the norm", "after the norm"])
def test_an_output_that_is_also_read_elsewhere_is_refused(before: bool) -> None:
    """A second reader sends a gradient past the gate."""
    net = Tapped(before=before)
    certificates = certify(net, sgd(net), classes(net, *IMAGES)())
    assert found(certificates) == set()
    assert "its output is also used by MeanBackward1" in refused(certificates)["layer", 3]


class Relu(torch.autograd.Function):
    """Bears the name of torch's own operation, and passes every gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class SyncBatchNorm(Relu):
    """Bears the name of the function behind torch's layer."""


def _hooked(net: Gated) -> None:
    net.norm.register_full_backward_hook(lambda *_: None)


def _reentrant(x: Tensor) -> Tensor:
    return checkpoint(torch.relu, x, use_reentrant=True)


@pytest.mark.parametrize(
    ("net", "change", "name"),
    [
        pytest.param(lambda: conv_net(Relu.apply), None, "custom ReluBackward", id="function"),
        pytest.param(
            lambda: conv_net(SyncBatchNorm.apply),
            None,
            "custom SyncBatchNormBackward",
            id="namesake",
        ),
        pytest.param(
            lambda: conv_net(_reentrant), None, "custom CheckpointFunctionBackward", id="reentrant"
        ),
        pytest.param(conv_net, _hooked, "custom BackwardHookFunctionBackward", id="backward hook"),
    ],
)
def test_an_opaque_operation_is_named(
    net: Callable[[], Gated], change: Callable[[Gated], None] | None, name: str
) -> None:
    """An operation outside the rule table is unknown, whatever it is called."""
    model = net()
    if change is not None:
        change(model)
    certificates = certify(model, sgd(model), classes(model, *IMAGES)())
    assert found(certificates) == set()
    assert f"the operation {name} is opaque" in refused(certificates)["layer", 3]


def test_parameters_inside_reentrant_checkpointing_are_unobservable() -> None:
    """What runs again in backward is not in the graph: listed as not reached, never as dead."""
    net = conv_net()
    x = torch.randn(IMAGES, requires_grad=True)
    loss = checkpoint(net, x, use_reentrant=True).sum()
    certificates = certify(net, sgd(net), loss)
    assert found(certificates) == set()
    assert set(certificates.unreached) == {name for name, _ in net.named_parameters()}


def test_a_compiled_region_is_named() -> None:
    """What torch.compile makes of a module is one opaque operation, and its zero rows are seen."""
    net = Gated(nn.Linear(6, 8))
    zero_rows(net.layer, 3, bias=-0.1)
    compiled = torch.compile(net, backend="aot_eager")
    certificates = certify(net, sgd(net), classes(compiled, 4, 6)())
    assert found(certificates) == set()
    name = "custom CompiledFunctionBackward"
    assert f"the operation {name} is opaque" in refused(certificates)["layer", 3]


OWNERSHIP: dict[str, tuple[Callable[[Gated], Any], str]] = {
    "no optimizer": (
        lambda net: torch.optim.SGD([p for p in net.parameters() if p is not net.norm.bias], 0.1),
        "norm.bias: it is in no optimizer",
    ),
    "two optimizers": (
        lambda net: [sgd(net), torch.optim.SGD([net.norm.bias], 0.1)],
        "norm.bias: it is in more than one optimizer",
    ),
    "alias": (
        lambda net: (
            net.register_parameter("alias", nn.Parameter(net.norm.bias.detach())),
            sgd(net),
        )[1],
        "norm.bias: it shares its storage with another tensor",
    ),
    "buffer alias": (
        lambda net: (net.register_buffer("shadow", net.norm.bias.detach()[2:]), sgd(net))[1],
        "norm.bias: it shares its storage with another tensor",
    ),
    "hook": (
        lambda net: (net.norm.bias.register_hook(lambda g: g + 1), sgd(net))[1],
        "norm.bias: a hook on it may change its gradient",
    ),
    "hook after accumulation": (
        lambda net: (
            net.norm.bias.register_post_accumulate_grad_hook(lambda p: p.grad.add_(1)),
            sgd(net),
        )[1],
        "norm.bias: a hook on it may change its gradient",
    ),
}


@pytest.mark.parametrize("case", OWNERSHIP)
def test_a_parameter_that_others_may_write_is_refused(case: str) -> None:
    """A claim needs one optimizer that alone writes the parameter."""
    net = conv_net()
    change, reason = OWNERSHIP[case]
    reasons = closed_now(net, change(net), classes(net, *IMAGES))
    assert reasons["layer", 3].startswith(reason)


def test_without_an_optimizer_nothing_lasts() -> None:
    """A model alone can be closed now; who moves its parameters is unknown."""
    net = conv_net()
    reasons = closed_now(net, None, classes(net, *IMAGES))
    assert "it is in no optimizer" in reasons["layer", 3]


def test_graphs_that_differ_between_micro_batches_are_refused() -> None:
    """A gate that is open in one micro-batch of the step sends its gradient there."""
    net = conv_net()
    losses = [classes(net, *IMAGES)()]
    net.gate = functional.leaky_relu
    losses.append(classes(net, *IMAGES)())
    certificates = certify(net, sgd(net), losses)
    assert found(certificates) == set()
    reason = "the graphs of one step differ: 1 of 2 close it"
    assert refused(certificates)["layer", 3] == reason


class Tokens(nn.Module):
    """A nonnegative table behind which every unit of a layer has died."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(10, 6, **options), nn.Linear(6, 8)
        self.head = nn.Linear(8, 3)
        with torch.no_grad():
            self.table.weight.abs_()
            self.layer.weight.copy_(-self.layer.weight.abs())
            self.layer.bias.fill_(-0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.layer(self.table(x))).mean(1))


def _tokens(net: nn.Module) -> Losses:
    return lambda: functional.cross_entropy(net(torch.randint(0, 10, (2, 4))), torch.tensor([0, 1]))


def test_a_table_that_max_norm_rewrites_is_refused() -> None:
    """`max_norm` moves rows without a gradient; the same table without it is at rest."""
    net = Tokens()
    certified(net, sgd(net), _tokens(net), absorbing("channel", layer=range(8)))
    net = Tokens(max_norm=1.0)
    certificates = certify(net, sgd(net), _tokens(net)())
    assert {claim.cls.value for claim in certificates} == {"closed_now"}
    reason = "table.weight: max_norm rewrites its rows outside the optimizer"
    assert refused(certificates)["layer", 0] == reason


def test_a_padding_row_is_no_finding() -> None:
    """The row at `padding_idx` is zero by design."""
    net = Tokens(padding_idx=0)
    nn.init.uniform_(net.layer.weight)
    certificates = certify(net, sgd(net), _tokens(net)())
    assert (certificates.claims, certificates.refused) == ((), ())


def test_a_frozen_layer_is_no_finding() -> None:
    """Zero filters that need no gradient are meant to be so."""
    net = Gated(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8))
    zero_rows(net.layer, 2, 3)
    nn.init.constant_(net.norm.bias, -0.1)
    net.layer.requires_grad_(requires_grad=False)
    certificates = certify(net, sgd(net), classes(net, *IMAGES)())
    assert (certificates.claims, certificates.refused) == ((), ())


@pytest.mark.parametrize("frozen", ["norm.bias", "norm"])
def test_a_frozen_shift_is_of_unknown_value(frozen: str) -> None:
    """What no optimizer of the step owns may be written by anyone, so it closes nothing."""
    net = conv_net()
    target = net.norm.bias if frozen == "norm.bias" else net.norm
    target.requires_grad_(requires_grad=False)
    certificates = certify(net, sgd(net), classes(net, *IMAGES)())
    assert found(certificates) == set()
    assert "shift is frozen or absent" in refused(certificates)["layer", 3]
