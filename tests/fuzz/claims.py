"""What `certify` reports for a network, to be attacked like the proof it rests on."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ormas_core import certify
from ormas_core.claims import Box, CertificateClass, Claim, Fact, StepKind, UnitKind

_HOLDS: Final = {Fact.ZERO: torch.eq, Fact.NONPOSITIVE: torch.le, Fact.NONNEGATIVE: torch.ge}


class Holder(nn.Module):
    """A model of one layer for each parameter, since the networks are written as functions."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        for name, parameter in parameters.items():
            layer = nn.Module()
            layer.register_parameter("weight", parameter)
            self.add_module(name, layer)


def absorbing(
    parameters: Mapping[str, nn.Parameter],
    optimizer: Optimizer,
    losses: Sequence[Tensor],
    lr_max: float,
) -> list[Claim]:
    """Return the claims that hold for ever and for every input."""
    found = certify(Holder(parameters), optimizer, losses, lr_max=lr_max)
    return [claim for claim in found if claim.cls is CertificateClass.ABSORBING]


def moving(
    parameters: Mapping[str, nn.Parameter], claims: Sequence[Claim]
) -> Iterator[tuple[str, str]]:
    """Yield the certified units that have a gradient."""
    for claim in claims:
        own = [s for s in claim.trace if s.kind is StepKind.GRADIENT and s.op == "parameter"]
        for step in own:
            gradient = _gradient(parameters, step.name)
            if bool(_cut(gradient, step.box).any()):
                yield (
                    claim.layer,
                    f"{claim.kind} {claim.units}: {step.name} {step.box} has a gradient",
                )
        if claim.kind is UnitKind.HEAD:
            continue  # The units of a head are no rows; its proof names those.
        gradient = _gradient(parameters, f"{claim.layer}.weight")
        lines = [
            gradient.index_select(axis, torch.tensor(claim.units))
            for axis in range(gradient.dim())
            if max(claim.units) < gradient.shape[axis]
        ]
        if all(bool(one.any()) for one in lines):
            yield claim.layer, f"{claim.kind} {claim.units} has a gradient"


def changed(
    parameters: Mapping[str, nn.Parameter], claims: Sequence[Claim]
) -> Iterator[tuple[str, str]]:
    """Yield the facts about parameters that a claim rests on and that hold no more."""
    for claim in claims:
        for step in claim.trace:
            if step.kind is StepKind.PARAMETER and step.fact is not None:
                values = _cut(_parameter(parameters, step.name).detach(), step.box)
                if not bool(_HOLDS[step.fact](values, torch.zeros(())).all()):
                    yield claim.layer, f"{claim.kind} {claim.units}: {step.name} is not {step.fact}"


def _parameter(parameters: Mapping[str, nn.Parameter], name: str) -> Tensor:
    return parameters[name.removesuffix(".weight")]


def _gradient(parameters: Mapping[str, nn.Parameter], name: str) -> Tensor:
    parameter = _parameter(parameters, name)
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _cut(tensor: Tensor, box: Box) -> Tensor:
    """Return the elements in a region."""
    for axis, (start, stop, period) in enumerate(box):
        place = torch.arange(tensor.shape[axis]) % period
        tensor = tensor.index_select(axis, ((start <= place) & (place < stop)).nonzero()[:, 0])
    return tensor
