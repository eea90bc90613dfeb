"""From a loss, a model and its optimizer to a proof: what `certify` does, without its judgement."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from ormas_core.certificates import graph, leaves, masks, prover
from ormas_core.certificates.graph import Graph
from ormas_core.certificates.leaves import Leaf
from ormas_core.certificates.masks import Mask
from ormas_core.certificates.optimizers import Slot
from ormas_core.certificates.prover import Proof
from ormas_core.certificates.rules import SETTINGS


class Proven(NamedTuple):
    """A proof with what it is about.

    Attributes:
        parameters: by name.
        graphs: one for each loss.
        leaves: by name; only of parameters that a graph reached.
        proof: from the lasting facts.
    """

    parameters: Mapping[str, Tensor]
    graphs: Sequence[Graph]
    leaves: Mapping[str, Leaf]
    proof: Proof


class Held(NamedTuple):
    """What a proof says of one parameter, as dense tensors of its shape."""

    closed: Tensor
    zero: Tensor
    neg: Tensor
    pos: Tensor


def slots(optimizer: Optimizer, lr_max: float) -> dict[int, Slot]:
    """Return the place of each parameter, by id."""
    return {
        id(parameter): Slot(type(optimizer), group, optimizer.state.get(parameter, {}), lr_max)
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def read(losses: Sequence[Tensor], parameters: Mapping[str, Tensor]) -> list[Graph]:
    """Return the graph of each loss, or of an output that any loss may be computed from."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    return [graph.read([loss], SETTINGS, names) for loss in losses]


def prove(
    losses: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    optimizer: Optimizer,
    lr_max: float,
    dense: int = leaves.DENSE_ELEMENTS,
) -> Proven:
    """Prove what lasts, from facts that the optimizer keeps."""
    graphs = read(losses, parameters)
    places = slots(optimizer, lr_max)
    found = {
        name: leaves.leaf(name, one, leaves.read_now(one, dense), places.get(id(one)), "")
        for name, one in parameters.items()
    }
    start = {id(parameters[name]): leaf.lasting for name, leaf in found.items()}
    return Proven(parameters, graphs, found, prover.prove(graphs, start))


def dense(mask: Mask) -> Tensor:
    """Return the mask as a tensor of its shape."""
    return torch.from_numpy(np.broadcast_to(mask.dense(), mask.shape).copy())


def held(proven: Proven) -> dict[str, Held]:
    """Return what the proof says of each parameter that it says something of."""
    said = {}
    for name, parameter in proven.parameters.items():
        facts = proven.proof.facts[id(parameter)]
        closed = proven.proof.closed.get(id(parameter), masks.none(facts.shape))
        if closed.parts or facts.known:
            said[name] = Held(*(dense(m) for m in (closed, facts.zero, facts.neg, facts.pos)))
    return said


def unsupported(said: Mapping[str, Held]) -> list[str]:
    """Return the parameters of which a fact is used although its own gradient is not masked."""
    return [
        name
        for name, one in said.items()
        if bool(((one.zero | one.neg | one.pos) & ~one.closed).any())
    ]
