"""Graphs and owners in, claims and refusals out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ormas_core.certificates import bounded, conditions, leaves, masks, units
from ormas_core.certificates.boxes import box_of, holds
from ormas_core.certificates.candidates import Structure, structure
from ormas_core.certificates.checker import check_claim
from ormas_core.certificates.explain import Explanation
from ormas_core.certificates.graph import Graph, parameters_of
from ormas_core.certificates.leaves import DENSE_ELEMENTS, Leaf
from ormas_core.certificates.limits import Bound, Limits
from ormas_core.certificates.optimizers import Refused, Slot
from ormas_core.certificates.ownership import UNOWNED, Owner
from ormas_core.certificates.place import Place
from ormas_core.certificates.premises import Unexplainable
from ormas_core.certificates.prover import Pass, Proof, prove
from ormas_core.certificates.signs import Signs
from ormas_core.certificates.suspects import open_units, parameter_of
from ormas_core.certificates.units import Weight
from ormas_core.certificates.values import Values, values_of
from ormas_core.claims import (
    CertificateClass,
    Claim,
    Condition,
    Fact,
    Refusal,
    StepKind,
    TraceStep,
    UnitKind,
)

_UNKNOWN: Final = Owner("", "", None, UNOWNED)
_Rows = NDArray[np.bool_]
Held = Callable[[Tensor, int, CertificateClass], NDArray[np.bool_]]
"""(weight, axis of output features, class) -> which of them have such a claim in force."""


def _nothing_held(parameter: Tensor, axis: int, cls: CertificateClass) -> _Rows:
    return np.zeros(parameter.shape[axis], np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What one proof attempt found.

    Attributes:
        claims: the certified units, with the place of their weights; one entry for each layer,
            class and reason.
        refusals: units that look dead and could not be certified, likewise.
        leaves: the parameters as the prover saw them, by id.
        proofs: the fixpoint of each class that was tried.
        graphs: the graphs they are about.
        rates: parameter id -> (learning rate, decay) that the claims cover, for the parameters
            that they rest on.
        limits: the conditional facts that were tried, or None.
    """

    claims: tuple[tuple[Claim, Place], ...]
    refusals: tuple[tuple[Refusal, Place], ...]
    leaves: Mapping[int, Leaf]
    proofs: Mapping[CertificateClass, Proof]
    graphs: tuple[Graph, ...]
    rates: Mapping[int, tuple[float, float]]
    limits: Limits | None = None


def examine(
    graphs: Sequence[Graph], owners: Mapping[int, Owner], *, dense: int = DENSE_ELEMENTS
) -> Outcome:
    """Prove what can be proven about the parameters of one optimizer step.

    Args:
        graphs: the graph of every loss whose gradients the step uses.
        owners: parameter id -> who owns it.
        dense: see `leaves.DENSE_ELEMENTS`.
    """
    forms = [structure(graph) for graph in graphs]
    return examine_values(graphs, owners, forms, values_of(graphs, forms, dense))


def examine_values(
    graphs: Sequence[Graph],
    owners: Mapping[int, Owner],
    forms: Sequence[Structure],
    now: Values,
    held: Held = _nothing_held,
) -> Outcome:
    """Do `examine` with values that were looked at already.

    Args:
        graphs: see `examine`.
        owners: see `examine`.
        forms: what the form of each graph says.
        now: the values of all parameters in the graphs.
        held: units that are claimed already, whose claims are kept apart from new ones, so that
            each new claim has a proof of its own first unit.
    """
    found = bounded.find_limits(graphs, forms, owners)
    facts = now.every()
    if not now.likely() and found is None:
        bare = {key: leaves.bare(owners.get(key, _UNKNOWN).name, one) for key, one in facts.items()}
        return Outcome((), (), bare, {}, tuple(graphs), {})
    return _Examination(graphs, owners, facts, found, held).outcome()


def lasting_leaf(parameter: Tensor, now: Signs, owners: Mapping[int, Owner]) -> Leaf:
    """Return what is known of one parameter, now and for ever; it may be of no layer."""
    owner = owners.get(id(parameter), _UNKNOWN)
    return leaves.leaf(owner.name, parameter, now, owner.slot, owner.refusal)


class _Examination:
    """One run of the engine; holds what its steps share."""

    def __init__(
        self,
        graphs: Sequence[Graph],
        owners: Mapping[int, Owner],
        now: Mapping[int, Signs],
        limits: Limits | None,
        held: Held,
    ) -> None:
        self._graphs = tuple(graphs)
        self._owners = owners
        self._now = now
        self._leaves: dict[int, Leaf] = {}
        self._names = {key: owners.get(key, _UNKNOWN).name for key in now}
        self._weights = [
            {id(parameter_of(graph, weight)): weight for weight in units.weights(graph)}
            for graph in self._graphs
        ]
        self._proofs: dict[CertificateClass, Proof] = {}
        self._limits = limits
        self._held = held
        self._claims: list[tuple[Claim, Place]] = []
        self._refusals: list[tuple[Refusal, Place]] = []

    def outcome(self) -> Outcome:
        """Prove each class, and judge every weight by what was proven."""
        ideal = prove(self._graphs, self._now)
        self._proofs[CertificateClass.CLOSED_NOW] = ideal
        self._leaves = self._find_leaves(ideal)
        closed = {key: self._closed(ideal, weight) for key, weight in self._weights[0].items()}
        # What holds itself up for ever also does now: the search can start from there.
        lasting = {key: _both(leaf.lasting, ideal.facts[key]) for key, leaf in self._leaves.items()}
        if any(rows.any() for rows in closed.values()):
            same = all(lasting[key].same(facts) for key, facts in ideal.facts.items())
            self._proofs[CertificateClass.ABSORBING] = (
                ideal if same else prove(self._graphs, lasting)
            )
        if self._limits is not None:
            start = {key: leaf.lasting for key, leaf in self._leaves.items()}
            self._proofs[CertificateClass.BOUNDED] = prove(self._graphs, start, self._limits)
        for key, weight in self._weights[0].items():
            self._judge(weight, closed[key])
        # What the first loss does not reach is not proven, and it is said why.
        others = {
            key: (weight, home)
            for home, known in enumerate(self._weights)
            for key, weight in known.items()
            if key not in closed
        }
        for weight, home in others.values():
            self._refuse_open(weight, np.zeros((), np.bool_), home)
        return Outcome(
            tuple(self._claims),
            tuple(self._refusals),
            self._leaves,
            self._proofs,
            self._graphs,
            {
                key: (slot.lr_max, conditions.decay(slot))
                for cls in self._proofs.keys() - {CertificateClass.CLOSED_NOW}
                for key, slot in self._rests_on(cls).items()
            },
            self._limits,
        )

    def _find_leaves(self, ideal: Proof) -> dict[int, Leaf]:
        """Ask what lasts, of the facts that a proof may use.

        What lasts is among what holds now; only limits close more than that.
        """
        parameters = parameters_of(self._graphs)
        found = {}
        for key, held in self._now.items():
            wanted = self._limits is not None or ideal.facts[key].known
            found[key] = (
                lasting_leaf(parameters[key], held, self._owners)
                if wanted
                else leaves.bare(self._names[key], held)
            )
        return found

    def _closed(self, proof: Proof, weight: Weight) -> _Rows:
        """Return which units of a weight a proof closes, in every graph."""
        key = id(parameter_of(self._graphs[0], weight))
        found: _Rows | None = None
        for graph, seen, known in zip(self._graphs, proof.passes, self._weights, strict=True):
            own = known.get(key)
            rows = (
                units.closed_units(graph, seen, own)
                if own is not None
                else np.zeros(() if found is None else found.shape, np.bool_)
            )
            found = rows if found is None else found & rows
        assert found is not None  # noqa: S101 - there is at least one graph
        return found

    def _judge(self, weight: Weight, now: _Rows) -> None:
        """Add the claims and refusals about one weight."""
        left = now
        for cls in (CertificateClass.ABSORBING, CertificateClass.BOUNDED):
            if cls in self._proofs:
                rows = self._closed(self._proofs[cls], weight)
                if cls is CertificateClass.BOUNDED:
                    rows = rows & ~self._claimed(weight)
                self._claim_all(weight, rows, cls)
                left = left & ~rows
        self._claim_all(weight, left, CertificateClass.CLOSED_NOW)
        self._refuse_open(weight, now | self._claimed(weight))

    def _refuse_open(self, weight: Weight, closed: _Rows, home: int = 0) -> None:
        """Say of the units that look dead, and that no proof closes, why; `home` has the weight."""
        ideal = self._proofs[CertificateClass.CLOSED_NOW]
        for reason, rows in open_units(self._graphs, weight, self._leaves, ideal, closed, home):
            self._refuse(weight, rows, reason, home)

    def _claimed(self, weight: Weight) -> _Rows:
        """Return the units of a weight that were claimed so far."""
        parameter = parameter_of(self._graphs[0], weight)
        found = np.zeros(parameter.shape[weight.axis], np.bool_)
        for _, place in self._claims:
            if place.parameter is parameter:
                found[place.indices()] = True
        return found

    def _claim_all(self, weight: Weight, rows: _Rows, cls: CertificateClass) -> None:
        parameter = parameter_of(self._graphs[0], weight)
        for group in self._groups(weight, rows, cls):
            try:
                claim = self._claim(weight, group, cls)
            except Unexplainable as error:
                self._refuse(weight, group, f"the proof cannot be written down: {error}")
                continue
            # A second pair of eyes: whoever verifies the record will look with these.
            doubt = check_claim(claim)
            if doubt is not None:
                self._refuse(weight, group, f"the proof does not pass its check: {doubt}")
                continue
            place = Place.of(parameter, weight.axis, group)
            if any(_same(claim, made) for made, _ in self._claims):
                continue  # a head by its value rows, and again by its query and key rows
            self._claims.append((claim, place))
            if cls is CertificateClass.CLOSED_NOW:
                refusal = Refusal(
                    layer=claim.layer, units=claim.units, reason=self._not_lasting(claim)
                )
                self._refusals.append((refusal, place))

    def _refuse(self, weight: Weight, group: _Rows, reason: str, home: int = 0) -> None:
        layer = self._owner(weight, home).layer
        refusal = Refusal(layer=layer, units=_indices(group), reason=reason)
        place = Place.of(parameter_of(self._graphs[home], weight), weight.axis, group)
        self._refusals.append((refusal, place))

    def _groups(self, weight: Weight, rows: _Rows, cls: CertificateClass) -> Iterator[_Rows]:
        """Split units by what makes them dead, as far as their own weights tell."""
        if not rows.any():
            return
        graph = self._graphs[0]
        now = self._leaves[id(parameter_of(graph, weight))].now
        zero = units.zero_units(graph, now.zero, weight)
        held = self._held(parameter_of(graph, weight), weight.axis, cls)
        own = self._own_bound(weight) if cls is CertificateClass.BOUNDED else None
        split = conditions.by_size(own, rows & ~zero) if own is not None else (rows & ~zero,)
        for alike in (rows & zero, *split):
            yield from (group for group in (alike & held, alike & ~held) if group.any())

    def _claim(self, weight: Weight, group: _Rows, cls: CertificateClass) -> Claim:
        graph, owner = self._graphs[0], self._owner(weight)
        first = int(np.flatnonzero(group)[0])
        proofs = [
            self._explained(number, found, weight, first, cls)
            for number, found in enumerate(self._proofs[cls].passes)
        ]
        explanation, trace = proofs[0]
        kind = units.kind_of(graph, explanation.closings, trace)
        indices = _indices(group)
        if kind is UnitKind.HEAD:
            heads = units.heads(group, trace)
            # Dead features that are no whole heads are single units.
            kind, indices = (kind, heads[1]) if heads else (UnitKind.UNIT, indices)
        return Claim(
            layer=owner.layer,
            units=indices,
            cls=cls,
            kind=kind,
            optimizer=owner.slot.kind.__name__ if owner.slot is not None else "",
            conditions=tuple(self._conditions(weight, group, trace, cls)),
            still=cls is not CertificateClass.CLOSED_NOW and self._still(weight, group),
            trace=trace,
            graph=graph.digest,
        )

    def _explained(
        self, number: int, found: Pass, weight: Weight, unit: int, cls: CertificateClass
    ) -> tuple[Explanation, tuple[TraceStep, ...]]:
        graph = self._graphs[number]
        own = self._weights[number][id(parameter_of(self._graphs[0], weight))]
        shape = graph.nodes[own.leaf].out_shapes[0]
        conditional = self._limits if cls is CertificateClass.BOUNDED else None
        explanation = Explanation.of(graph, found, self._names, conditional)
        return explanation, explanation.close(own.leaf, box_of(shape, own.axis, unit, unit + 1))

    def _owner(self, weight: Weight, home: int = 0) -> Owner:
        return self._owners.get(id(parameter_of(self._graphs[home], weight)), _UNKNOWN)

    def _still(self, weight: Weight, group: _Rows) -> bool:
        """Whether the units' own weights are proven not to move at all."""
        parameter, owner = parameter_of(self._graphs[0], weight), self._owner(weight)
        if owner.slot is None or owner.refusal:
            return False
        index = Place.of(parameter, weight.axis, group).rows
        try:
            rest = leaves.rest_of(parameter, owner.slot, index, weight.axis)
        except Refused:
            return False
        values = parameter.detach().index_select(weight.axis, index)
        at_rest = (rest.drift == 0) & rest.keeps_sign
        return bool((at_rest if not rest.shrinks else at_rest & (values == 0)).all())

    def _rests_on(self, cls: CertificateClass) -> dict[int, Slot]:
        """Return the parameters of which a proof uses facts, with their places in optimizers."""
        limits = self._limits if cls is CertificateClass.BOUNDED else None
        measured = limits.parameters() if limits is not None else ()
        slots = {
            key: self._owners.get(key, _UNKNOWN).slot
            for key, facts in self._proofs[cls].facts.items()
            if facts.known or key in measured
        }
        return {key: slot for key, slot in slots.items() if slot is not None}

    def _own_bound(self, weight: Weight) -> Bound | None:
        """Return the limits of the one sum that a weight is used in."""
        if self._limits is None or len(weight.consumers) != 1:
            return None
        return self._limits.bounds.get(id(self._graphs[0].nodes[weight.consumers[0].node]))

    def _conditions(
        self, weight: Weight, group: _Rows, trace: Sequence[TraceStep], cls: CertificateClass
    ) -> Iterator[Condition]:
        if cls is CertificateClass.CLOSED_NOW:
            return
        slots = self._rests_on(cls)
        yield from conditions.of_optimizers(slots, self._owners)
        limits = self._limits if cls is CertificateClass.BOUNDED else None
        floor = max((self._leaves[key].floor for key in slots), default=0.0)
        if limits is not None:
            floor = max(floor, *(bound.floor for bound in limits.bounds.values()))
        if floor:
            yield Condition(name="value_min", value=floor)
        if limits is not None:
            own = self._own_bound(weight)
            yield from conditions.of_limits(self._graphs[0], trace, limits, own, group)

    def _not_lasting(self, claim: Claim) -> str:
        """Say which parameter keeps a unit that is closed now from being closed for ever."""
        by_name = {leaf.name: leaf for leaf in self._leaves.values()}
        for step in claim.trace:
            if step.kind is not StepKind.PARAMETER or step.fact is None:
                continue
            leaf = by_name[step.name]
            held = {
                Fact.ZERO: leaf.lasting.zero,
                Fact.NONPOSITIVE: leaf.lasting.neg,
                Fact.NONNEGATIVE: leaf.lasting.pos,
            }[step.fact]
            if not holds(held, step.box):
                return f"{leaf.name}: {leaf.reason or 'its values do not last'}"
        return "what keeps it closed now does not last"


def _both(a: Signs, b: Signs) -> Signs:
    return Signs(masks.meet(a.zero, b.zero), masks.meet(a.neg, b.neg), masks.meet(a.pos, b.pos))


def _same(a: Claim, b: Claim) -> bool:
    return (a.layer, a.units, a.cls, a.kind) == (b.layer, b.units, b.cls, b.kind)


def _indices(group: _Rows) -> tuple[int, ...]:
    return tuple(int(unit) for unit in np.flatnonzero(group))
