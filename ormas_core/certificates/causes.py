"""Which stuck units are stuck through their own weights, and which only through what follows.

Behind a layer that is closed as a whole, everything upstream has a zero gradient too, and is
certified. Re-initialising it would destroy what it has learnt and would not help.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ormas_core.certificates import signs, units
from ormas_core.certificates.engine import Outcome
from ormas_core.certificates.graph import Graph
from ormas_core.certificates.health import ChannelHealth, groups
from ormas_core.certificates.held import Live
from ormas_core.certificates.live import CertificateWatch
from ormas_core.certificates.prover import Proof, prove
from ormas_core.certificates.surroundings import Surroundings, surroundings
from ormas_core.certificates.suspects import parameter_of
from ormas_core.certificates.units import Weight
from ormas_core.claims import CertificateClass, UnitKind

_Rows = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """Units of one weight that a repair would draw anew.

    Attributes:
        layer: the module that owns the weight.
        parameter: the weight.
        axis: its axis of output features.
        rows: which of them, shape (features,).
        around: what else belongs to them.
    """

    layer: str
    parameter: Tensor
    axis: int
    rows: _Rows
    around: Surroundings

    def own(self) -> set[int]:
        """Return the ids of all trainable tensors that a repair would write."""
        pairs = [tensor for pair in self.around.norms for tensor in pair if tensor is not None]
        return {id(tensor) for tensor in (self.parameter, *self.around.biases, *pairs)}


def confirmed(watch: CertificateWatch, checks: int) -> list[Candidate]:
    """Return the units whose certificate has held for some checks, and that are to blame for it.

    Args:
        watch: the certificates, after a check.
        checks: how many checks must have confirmed a certificate, the first one included.
    """
    outcome = watch.outcome
    if outcome is None:
        return []
    rows: dict[int, _Rows] = {}
    first: dict[int, Live] = {}
    for held in watch.live.values():
        if held.claim.cls is CertificateClass.CLOSED_NOW or held.checks < checks:
            continue
        if held.claim.kind is UnitKind.HEAD and not _all_confirmed(watch, held, checks):
            continue
        parameter = held.place.parameter
        key = id(parameter)
        first.setdefault(key, held)
        flags = rows.setdefault(key, np.zeros(parameter.shape[held.place.axis], np.bool_))
        flags[held.place.indices()[held.rows]] = True
    found = []
    for key, held in first.items():
        parameter = held.place.parameter
        around = surroundings(outcome.graphs, parameter)
        found.append(Candidate(held.claim.layer, parameter, held.place.axis, rows[key], around))
    return self_caused(outcome, found)


def counted(watch: CertificateWatch, health: ChannelHealth, cause: str) -> list[Candidate]:
    """Return the channels that the last check counted as `flat`, `decayed` or `silent`."""
    outcome = watch.outcome
    found = []
    for group in groups(outcome.graphs[0], watch.owners) if outcome is not None else ():
        known = health.counted.get(group.layer)
        if outcome is None or known is None or known[0].weight != group.weight:
            continue
        parameter = parameter_of(outcome.graphs[0], group.weight)
        rows = known[1].rows()[cause]
        around = surroundings(outcome.graphs, parameter)
        found.append(Candidate(group.layer, parameter, group.weight.axis, rows, around))
    return found


def self_caused(outcome: Outcome, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Keep the units that would have a gradient if nothing were known of their own tensors.

    Candidates near the loss come first. A unit that would be open once those before it are, and
    whose own weights are nothing special, is left out without a proof of its own.
    """
    if not candidates:
        return []
    prover = _Prover(outcome)
    kept = []
    removed: set[int] = set()
    after: Proof | None = None
    for candidate in sorted(filter(prover.knows, candidates), key=prover.place, reverse=True):
        likely = candidate.rows
        if after is not None:
            likely = likely & (prover.closed(after, candidate) | prover.special(candidate))
        if not likely.any():
            continue
        alone = prover.without(candidate.own())
        rows = likely & ~prover.closed(alone, candidate)
        if rows.any():
            kept.append(replace(candidate, rows=rows))
            after = alone if not removed else prover.without(removed | candidate.own())
            removed |= candidate.own()
    return kept


class _Prover:
    """Proves again with less known."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._limits = outcome.limits
        self._weights = [_weights(graph) for graph in outcome.graphs]

    def without(self, removed: Collection[int]) -> Proof:
        """Return what is closed if nothing is known of some parameters."""
        start = {
            key: signs.unknown(leaf.lasting.shape) if key in removed else leaf.lasting
            for key, leaf in self._outcome.leaves.items()
        }
        limits = self._limits.without(removed) if self._limits is not None else None
        return prove(self._outcome.graphs, start, limits)

    def knows(self, candidate: Candidate) -> bool:
        """Whether a candidate's weight is still the one in the graph."""
        return id(candidate.parameter) in self._weights[0]

    def closed(self, proof: Proof, candidate: Candidate) -> _Rows:
        """Return which units of a candidate's weight a proof closes, in every graph."""
        found = np.ones_like(candidate.rows)
        for graph, seen, known in zip(
            self._outcome.graphs, proof.passes, self._weights, strict=True
        ):
            weight = known.get(id(candidate.parameter))
            if weight is None:
                return np.zeros_like(candidate.rows)
            found = found & units.closed_units(graph, seen, weight)
        return found

    def special(self, candidate: Candidate) -> _Rows:
        """Return which rows are zero or of one sign."""
        now = self._outcome.leaves[id(candidate.parameter)].now
        graph, weight = self._outcome.graphs[0], self._weights[0][id(candidate.parameter)]
        low, high = (units.zero_units(graph, mask, weight) for mask in (now.neg, now.pos))
        return low | high

    def place(self, candidate: Candidate) -> int:
        """Return how near the loss a candidate's weight is used."""
        weight = self._weights[0][id(candidate.parameter)]
        return max((consumer.node for consumer in weight.consumers), default=weight.leaf)


def _weights(graph: Graph) -> dict[int, Weight]:
    return {id(parameter_of(graph, weight)): weight for weight in units.weights(graph)}


def _all_confirmed(watch: CertificateWatch, held: Live, checks: int) -> bool:
    """Whether all heads of a claim are confirmed: the place of one is that of all."""
    claim = held.claim
    keys = [(claim.layer, claim.kind, claim.cls, unit) for unit in claim.units]
    return all(key in watch.live and watch.live[key].checks >= checks for key in keys)
