"""Networks with planted units, and the check that what was certified stays still. No test here."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ormas_core import Certificates, certify
from ormas_core.claims import CertificateClass, Claim, Fact, StepKind, TraceStep, UnitKind

Found = tuple[str, tuple[int, ...], str, str]
Losses = Callable[[], Tensor]

STEPS = 5
_TRUE = {
    Fact.ZERO: torch.eq,
    Fact.NONPOSITIVE: torch.le,
    Fact.NONNEGATIVE: torch.ge,
}


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    """Return the optimizer of most tests."""
    return torch.optim.SGD(model.parameters(), lr)


def found(certificates: Certificates) -> set[Found]:
    """Return what is certified: layer, units, class and kind."""
    return {(c.layer, c.units, c.cls.value, c.kind.value) for c in certificates}


def refused(certificates: Certificates) -> dict[tuple[str, int], str]:
    """Return the reason for each refused unit: (layer, unit) -> text."""
    return {(r.layer, unit): r.reason for r in certificates.refused for unit in r.units}


def absorbing(kind: str, **units: Sequence[int]) -> set[Found]:
    """Return the claims of one kind: layer (with `__` for its dots) -> its units."""
    return {
        (layer.replace("__", "."), tuple(own), "absorbing", kind) for layer, own in units.items()
    }


def certified(
    model: nn.Module, optimizer: Any, loss_of: Losses, expected: set[Found], **options: Any
) -> Certificates:
    """Check that just these units are certified, and that what is certified is true."""
    loss = loss_of()
    loss.backward()
    certificates = certify(model, optimizer, loss, **options)
    assert found(certificates) == expected, str(certificates)
    stays(model, optimizer, loss_of, certificates)
    return certificates


def closed_now(model: nn.Module, optimizer: Any, loss_of: Losses) -> dict[tuple[str, int], str]:
    """Check that the planted channels are closed now and no more; return the reasons."""
    certificates = certify(model, optimizer, loss_of())
    assert found(certificates) == {
        ("layer", (3,), "closed_now", "channel"),
        ("layer", (5,), "closed_now", "channel"),
    }
    reasons = refused(certificates)
    assert set(reasons) == {("layer", unit) for unit in (2, 3, 5, 6)}
    return reasons


def stays(model: nn.Module, optimizer: Any, loss_of: Losses, certificates: Certificates) -> None:
    """Train on; the certified gradients must be exactly zero and the proven facts still hold.

    What is closed now is checked at the present weights only.
    """
    parameters = dict(model.named_parameters())
    lasting = [c for c in certificates if c.cls is not CertificateClass.CLOSED_NOW]
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of().backward()
        for claim in lasting if step else certificates:
            _check_gradients(parameters, claim)
        optimizer.step()
        for claim in lasting:
            _check_values(parameters, claim)


def _check_gradients(parameters: dict[str, nn.Parameter], claim: Claim) -> None:
    own = [s for s in claim.trace if s.kind is StepKind.GRADIENT and s.op == "parameter"]
    assert own, claim
    for step in own:
        gradient = parameters[step.name].grad
        assert gradient is not None, step.name
        assert not _cut(gradient, step).any(), (claim.layer, claim.units, step.name, step.box)
    if claim.kind is not UnitKind.HEAD:  # The units of a head are no rows; its proof names those.
        weight = next(s for s in reversed(own) if s.name.startswith(claim.layer))
        gradient = parameters[weight.name].grad
        assert gradient is not None
        cut = [a for a, (start, stop, size) in enumerate(weight.box) if stop - start == 1 < size]
        rows = [
            gradient.index_select(axis, torch.tensor(claim.units, device=gradient.device))
            for axis in cut
        ]
        assert any(not row.any() for row in rows), (claim.layer, claim.units)


def _check_values(parameters: dict[str, nn.Parameter], claim: Claim) -> None:
    for step in claim.trace:
        # The magnitudes of a bounded sum may shrink; that they do not grow shows in its output.
        if step.kind is StepKind.PARAMETER and step.fact is not Fact.MAGNITUDE:
            assert step.fact is not None
            values = _cut(parameters[step.name].detach(), step)
            holds = _TRUE[step.fact](values, torch.zeros((), device=values.device))
            assert holds.all(), (claim.layer, claim.units, step.name, step.box)


def _cut(tensor: Tensor, step: TraceStep) -> Tensor:
    """Return the elements that a line of a proof is about."""
    for axis, (start, stop, period) in enumerate(step.box):
        place = torch.arange(tensor.shape[axis], device=tensor.device) % period
        tensor = tensor.index_select(axis, ((start <= place) & (place < stop)).nonzero()[:, 0])
    return tensor


class Gated(nn.Module):
    """layer -> lay -> norm -> gate -> head: the classical pattern, each part to be chosen."""

    def __init__(
        self,
        layer: nn.Module,
        norm: nn.Module | None = None,
        gate: Callable[[Tensor], Tensor] = torch.relu,
        lay: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.layer = layer
        self.norm = norm if norm is not None else nn.Identity()
        self.head = nn.Linear(8, 3)
        self.gate = gate
        self.lay = lay if lay is not None else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.gate(self.norm(self.lay(self.layer(x))))
        return self.head(hidden.flatten(2).mean(2) if hidden.dim() > 2 else hidden)


def conv_net(gate: Callable[[Tensor], Tensor] = torch.relu, *, bias: bool = False) -> Gated:
    """Return the classical pattern with the channels of `plant_channels`."""
    net = Gated(nn.Conv2d(3, 8, 3, bias=bias), nn.BatchNorm2d(8), gate)
    plant_channels(net)
    return net


IMAGES = (2, 3, 8, 8)
"""A batch for `conv_net`."""

CHANNELS = absorbing("channel", layer=(3,)) | absorbing("channel", layer=(5,))
"""What `plant_channels` plants: two claims, since one has zero weights and one a zero scale."""


@torch.no_grad()
def plant_channels(net: Any) -> None:
    """Plant two dead channels, and beside each a near miss with a shift of 1e-9.

    3 has a zero filter and 5 a zero scale; 2 and 6 are the near misses.
    """
    scale, shift, bias = net.norm.weight, net.norm.bias, net.layer.bias
    scale.copy_(1 + torch.rand(8))
    shift.copy_(0.1 + torch.rand(8))
    net.layer.weight[[2, 3]] = 0
    if bias is not None:
        bias[[2, 3]] = 0
    scale[[5, 6]] = 0
    shift[[2, 3, 5, 6]] = torch.tensor([1e-9, -0.1, -0.2, 1e-9])


def classes(model: nn.Module, *shape: int) -> Losses:
    """Return a source of classification losses over fresh random inputs of a shape."""

    def loss() -> Tensor:
        return functional.cross_entropy(
            model(3 * torch.randn(shape)), torch.randint(0, 3, shape[:1])
        )

    return loss


@torch.no_grad()
def zero_rows(layer: Any, *rows: int, bias: float = 0.0) -> None:
    """Set output features of a layer to zero; also of a transposed one, as in GPT-2."""
    layer.weight[(slice(None), list(rows)) if _transposed(layer) else list(rows)] = 0
    if getattr(layer, "bias", None) is not None:
        layer.bias[list(rows)] = bias


@torch.no_grad()
def zero_columns(layer: Any, *columns: int) -> None:
    """Set the weights of input features of a layer to zero."""
    layer.weight[list(columns) if _transposed(layer) else (slice(None), list(columns))] = 0


def _transposed(layer: Any) -> bool:
    return type(layer).__name__ == "Conv1D"
