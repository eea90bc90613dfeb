"""Gradients that a proof says are zero and that are not: something outside the graph wrote them."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ormas_core.certificates import masks
from ormas_core.certificates.graph import Graph
from ormas_core.certificates.ownership import Owner
from ormas_core.certificates.place import Place
from ormas_core.certificates.prover import Proof
from ormas_core.claims import Box, CertificateClass, Claim, StepKind

Proofs = Mapping[CertificateClass, Proof]


def contradicted(
    claims: Sequence[tuple[Claim, Place]],
    graphs: Sequence[Graph],
    owners: Mapping[int, Owner],
    proofs: Proofs,
) -> list[str]:
    """Return, for each claim, a parameter whose gradient is not zero where its proof needs it.

    Looked at are the elements that the proof of the first unit assumes, and those of the other
    units where they lie alike; the units' own weights have a guard of their own. "" if all is
    well. One copy to the host for all.
    """
    tensors = {
        owners[id(parameter)].name: parameter
        for graph in graphs
        for parameter in graph.parameters
        if id(parameter) in owners
    }
    about: list[tuple[int, str]] = []
    flags: list[Tensor] = []
    for number, (claim, place) in enumerate(claims):
        for name, parameter, box in _assumed(claim, place, tensors):
            assert parameter.grad is not None  # noqa: S101 - looked at before
            about.append((number, name))
            flags.append((_cut(parameter.grad, box) != 0).any())
            rows = _alike(claim, place, parameter, box, proofs)
            if rows is not None:
                about.append((number, name))
                flags.append((parameter.grad.index_select(0, rows) != 0).any())
    found = [""] * len(claims)
    if flags:
        host = torch.stack([flag.to(flags[0].device) for flag in flags]).cpu().tolist()
        for (number, name), flag in zip(about, host, strict=True):
            found[number] = found[number] or (name if flag else "")
    return found


def _assumed(
    claim: Claim, place: Place, tensors: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor, Box]]:
    """Yield the elements that a proof assumes, where they have a gradient."""
    for step in claim.trace:
        parameter = tensors.get(step.name)
        if step.kind is StepKind.PARAMETER and parameter is not None:
            gradient = parameter.grad
            if parameter is not place.parameter and gradient is not None:
                yield step.name, parameter, step.box


def _cut(gradient: Tensor, box: Box) -> Tensor:
    if gradient.layout is not torch.strided:
        gradient = gradient.to_dense()
    for axis, (start, stop, period) in enumerate(box):
        size = gradient.shape[axis]
        if period == size:
            gradient = gradient.narrow(axis, start, stop - start)
        else:
            index = torch.arange(size, device=gradient.device) % period
            inside = ((index >= start) & (index < stop)).nonzero()[:, 0]
            gradient = gradient.index_select(axis, inside)
    return gradient


def _alike(
    claim: Claim, place: Place, parameter: Tensor, box: Box, proofs: Proofs
) -> Tensor | None:
    """Return the elements of a bias, scale or shift that belong to the claim's other units.

    Only those that the fixpoint uses: another unit may be closed for another reason.
    """
    rows, units = place.indices(), place.parameter.shape[place.axis]
    first = (int(rows[0]), int(rows[0]) + 1, units)
    facts = proofs[claim.cls].facts.get(id(parameter)) if claim.cls in proofs else None
    if facts is None or len(rows) == 1 or box != (first,):
        return None
    used = np.zeros(units, np.bool_)
    for mask in (facts.zero, facts.neg, facts.pos):
        used |= np.broadcast_to(masks.all_over(mask, ()).dense(), (units,))
    return torch.from_numpy(rows[used[rows]]).to(parameter.device)
