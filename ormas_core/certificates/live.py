"""Certificates over a run: issued once, guarded at every check, revoked when a guard fails."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from ormas_core.certificate_events import Certificate, CertificateRefused, CertificateRevoked
from ormas_core.certificates.candidates import fingerprint, structure
from ormas_core.certificates.engine import Outcome, examine_values
from ormas_core.certificates.graph import Graph, GraphReader, UnreadableGraphError, tensors_in
from ormas_core.certificates.guards import AccumulationCounter, Evidence, broken, unprovable
from ormas_core.certificates.held import Key, Live, keys_of, rows_of
from ormas_core.certificates.limits import MARGINS, is_plain
from ormas_core.certificates.ownership import Owner, owners
from ormas_core.certificates.rules import SETTINGS
from ormas_core.certificates.standing import stands
from ormas_core.certificates.values import values_of
from ormas_core.claims import CertificateClass, UnitKind

MOST_GRAPHS: Final = 64
"""Micro-batches of one step whose graphs are read."""

CertificateEvent = Certificate | CertificateRefused | CertificateRevoked


class CertificateWatch:
    """Holds the certificates of one model over a run.

    Args:
        model: the model.
        layers: its modules with parameters of their own, by name.
        optimizers: all that write the model's parameters.
        lr_max: learning rate that claims must cover; None for ten times the largest seen.
        asserted: class names of optimizers that the user vouches for.

    Attributes:
        live: the claims in force, by unit.
        outcome: what the last proof found; None before the first.
        owners: who owned the parameters at the last check.
        fresh: whether the last check had a graph to prove anything on.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[tuple[str, nn.Module]],
        optimizers: Sequence[Optimizer],
        *,
        lr_max: float | None = None,
        asserted: Sequence[str] = (),
    ) -> None:
        self._model = model
        self._layers = tuple(layers)
        self._optimizers = tuple(optimizers)
        self._lr_max = lr_max
        self._asserted = tuple(asserted)
        self._lr_seen: dict[int, float] = {}
        self._graphs: list[Graph] = []
        self._passes = 0
        self._kept = (0, 0)
        self._unread = ""
        self._counter = AccumulationCounter()
        self._reader = GraphReader(SETTINGS)
        self._names = {
            id(parameter): f"{layer}.{name}"
            for layer, module in self._layers
            for name, parameter in module.named_parameters(recurse=False)
        }
        self._key: Any = None
        self._refused: set[tuple[str, int, str]] = set()
        self._checks = 0
        self._asked = False
        self.live: dict[Key, Live] = {}
        self.outcome: Outcome | None = None
        self.owners: dict[int, Owner] = {}
        self.fresh = False

    def clear(self) -> None:
        """Forget the step: its graphs, and the hooks that count."""
        self._graphs, self._passes, self._kept = [], 0, (0, 0)
        self._unread = ""
        self._counter.stop()

    def pause(self) -> None:
        """End a step without a check: its graphs and counts belong to the next one."""
        self._counter.pause()
        self._kept = len(self._graphs), self._passes

    def skip(self) -> None:
        """Forget what was seen since the last pause."""
        self._counter.forget()
        count, self._passes = self._kept
        del self._graphs[count:]

    def arm(self) -> None:
        """Count, until the check, the backward passes that write gradients of proven weights."""
        places = [held.place for held in self.live.values()]
        if self.outcome is not None:
            places += [place for _, place in self.outcome.claims]
        self._counter.start({id(place.parameter): place.parameter for place in places}.values())

    def note(self, roots: Sequence[Tensor]) -> None:
        """Read the graph of one micro-batch, before or after its backward pass.

        Args:
            roots: the loss, or all outputs that the loss may be computed from.
        """
        self._passes += 1
        if self._passes > MOST_GRAPHS:
            self._unread = f"more than {MOST_GRAPHS} micro-batches in one step"
            return
        try:
            self._graphs.append(self._reader.read(roots, self._names))
        except UnreadableGraphError as error:
            self._unread = str(error)

    @property
    def problem(self) -> str:
        """Why nothing can be proven of the step so far; empty if something can.

        Without the graph of every micro-batch nothing can be said of a step.
        """
        return self._unread or unprovable(self._graphs)

    @property
    def watched_inputs(self) -> frozenset[str]:
        """Layers whose input's size is needed: for a bounded claim, or a candidate for one.

        Only those whose own input is that of the operation: with a `forward` of torch's own.
        """
        plain = {name for name, module in self._layers if is_plain(module)}
        if self.outcome is None:
            # What the starting weights bring along is claimed at the first check.
            return frozenset(() if self._asked else plain)
        return frozenset(plain) & frozenset(
            condition.layer
            for claim in (
                *(c for c, _ in self.outcome.claims),
                *(held.claim for held in self.live.values()),
            )
            for condition in claim.conditions
            if condition.name in MARGINS
        )

    def check(self, step: int, evidence: Evidence) -> Iterator[CertificateEvent]:
        """Guard the claims in force and look for new ones; needs the gradients of the step.

        What is revoked is said even if looking further fails.

        Args:
            step: optimizer updates completed.
            evidence: what the check saw.
        """
        graphs, problem = _distinct(self._graphs), self.problem
        evidence = replace(evidence, passes=self._passes, accumulations=self._counter.stop())
        self.clear()
        self._asked = True
        self.fresh = evidence.finite and not problem
        if problem:
            yield from self.look(step, evidence)
        if not self.fresh:
            return
        found = self.owners = self._find_owners()
        self._checks += 1
        yield from self._guard(step, graphs, found, evidence)
        self._prove(graphs, found)
        yield from self._revoke_unproven(step)
        doubts = self._doubts(graphs, found, evidence)
        yield from self._issue(step, evidence, doubts)
        yield from self._refuse(step, doubts)

    def look(self, step: int, evidence: Evidence) -> Iterator[CertificateRevoked]:
        """Guard the claims by the numbers of a step whose graphs are not all there.

        Nothing is proven without graphs, but gradients and weights may disprove what was. A step
        with NaN or Inf does neither.
        """
        if evidence.finite:
            before = () if self.outcome is None else self.outcome.graphs
            found = self.owners = self._find_owners()
            yield from self._guard(step, before, found, replace(evidence, accumulations=None))

    def _prove(self, graphs: Sequence[Graph], found: Mapping[int, Owner]) -> None:
        """Prove anew, unless all that the last outcome rests on is as it was."""
        forms = [structure(graph) for graph in graphs]
        now = values_of(graphs, forms)
        key = (tuple(map(id, graphs)), [fingerprint(now.likely(), form) for form in forms])
        before = self.outcome
        if before is None or key != self._key or not stands(before, forms, now, found):
            held = self._claimed
            self.outcome, self._key = examine_values(graphs, found, forms, now, held), key

    def _claimed(self, parameter: Tensor, axis: int, cls: CertificateClass) -> NDArray[np.bool_]:
        found = np.zeros(parameter.shape[axis], np.bool_)
        for held in self.live.values():
            if held.claim.cls is cls and held.place.parameter is parameter:
                found[held.place.indices()[held.rows]] = True
        return found

    def certified(self, parameter: Tensor, axis: int) -> NDArray[np.bool_]:
        """Return which output features of a weight have a certificate in force that lasts."""
        return self._claimed(parameter, axis, CertificateClass.ABSORBING) | self._claimed(
            parameter, axis, CertificateClass.BOUNDED
        )

    def withdraw(self, step: int, reason: str) -> Iterator[CertificateEvent]:
        """Revoke all claims, since nothing guards them any more."""
        yield from self._revoke(step, dict.fromkeys(self.live, reason))

    def drop(self, layer: str, units: Collection[int] | None = None) -> None:
        """Forget the claims about a layer whose weights were changed on purpose.

        Args:
            layer: the module.
            units: rows of its weight that were changed; None for all. Heads are forgotten together.
        """
        self.live = {
            key: held
            for key, held in self.live.items()
            if key[0] != layer
            or (units is not None and key[1] is not UnitKind.HEAD and key[3] not in units)
        }
        self._key = None

    def _find_owners(self) -> dict[int, Owner]:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    rate = abs(float(group.get("lr", 0.0)))
                    self._lr_seen[id(parameter)] = max(self._lr_seen.get(id(parameter), 0.0), rate)
        found = owners(
            self._layers,
            self._optimizers,
            tensors=(one for module in self._model.modules() for one in tensors_in(module)),
            lr_max=self._lr_max,
            seen_lr=self._lr_seen,
            asserted=self._asserted,
        )
        self._names = {key: owner.name for key, owner in found.items()}
        return found

    def _guard(
        self,
        step: int,
        graphs: Sequence[Graph],
        found: Mapping[int, Owner],
        evidence: Evidence,
    ) -> Iterator[CertificateRevoked]:
        reasons = broken(
            {
                key: (held.claim, held.place, held.rows, held.rates)
                for key, held in self.live.items()
            },
            graphs,
            found,
            evidence,
            self.outcome.proofs if self.outcome is not None else {},
        )
        yield from self._revoke(step, reasons)

    def _doubts(
        self, graphs: Sequence[Graph], found: Mapping[int, Owner], evidence: Evidence
    ) -> dict[Key, str]:
        """Return what is proven, not yet claimed, and of which a guard fails already."""
        assert self.outcome is not None  # noqa: S101 - set by the caller
        fresh = {
            key: (claim, place, rows, self.outcome.rates)
            for claim, place in self.outcome.claims
            if evidence.allows(claim)
            for key, rows in rows_of(claim)
            if key not in self.live
        }
        doubts = broken(fresh, graphs, found, evidence, self.outcome.proofs)
        if doubts:
            self._key = None  # what these claims remember of the weights will be out of date
        return doubts

    def _revoke(self, step: int, reasons: Mapping[Key, str]) -> Iterator[CertificateRevoked]:
        groups: dict[tuple[str, CertificateClass, str], list[int]] = {}
        for key, reason in reasons.items():
            layer, _, cls, unit = key
            del self.live[key]
            self._key = None
            groups.setdefault((layer, cls, reason), []).append(unit)
        for (layer, cls, reason), units in groups.items():
            yield CertificateRevoked(
                step=step, layer=layer, units=tuple(sorted(units)), cls=cls, reason=reason
            )

    def _revoke_unproven(self, step: int) -> Iterator[CertificateRevoked]:
        assert self.outcome is not None  # noqa: S101 - set by the caller
        proven = {key for claim, _ in self.outcome.claims for key in keys_of(claim)}
        # What is proven absorbing is more than what was claimed before.
        reasons = {}
        for key in self.live:
            layer, kind, _, unit = key
            if key not in proven and (layer, kind, CertificateClass.ABSORBING, unit) not in proven:
                reasons[key] = self._why(layer, unit)
        yield from self._revoke(step, reasons)

    def _why(self, layer: str, unit: int) -> str:
        assert self.outcome is not None  # noqa: S101 - set by the caller
        for refusal, _ in self.outcome.refusals:
            if refusal.layer == layer and unit in refusal.units:
                return refusal.reason
        return "the proof cannot be repeated: the weights, the optimizer or the graph have changed"

    def _issue(
        self, step: int, evidence: Evidence, doubts: Mapping[Key, str]
    ) -> Iterator[Certificate]:
        assert self.outcome is not None  # noqa: S101 - set by the caller
        for claim, place in self.outcome.claims:
            fresh = []
            for key, rows in rows_of(claim):
                if key in self.live:
                    self.live[key].checks += 1
                elif evidence.allows(claim) and key not in doubts:
                    self.live[key] = Live(claim, place, rows, self.outcome.rates, step)
                    fresh.append(key[3])
            if not fresh:
                continue
            yield Certificate(
                step=step,
                layer=claim.layer,
                units=tuple(fresh),
                cls=claim.cls,
                unit_kind=claim.kind,
                optimizer=claim.optimizer,
                conditions=claim.conditions,
                still=claim.still,
                initial=self._checks == 1,
                trace=claim.trace,
                graph=claim.graph,
                engine=claim.engine,
            )

    def _refuse(self, step: int, doubts: Mapping[Key, str]) -> Iterator[CertificateRefused]:
        """Say why units that look dead, or are proven and in doubt, are not certified; once."""
        assert self.outcome is not None  # noqa: S101 - set by the caller
        groups: dict[tuple[str, str], list[int]] = {}
        for (layer, _, _, unit), reason in doubts.items():
            if (layer, unit, reason) not in self._refused:
                groups.setdefault((layer, reason), []).append(unit)
                self._refused.add((layer, unit, reason))
        for (layer, reason), units in groups.items():
            yield CertificateRefused(
                step=step, layer=layer, units=tuple(sorted(units)), reason=reason
            )
        for refusal, place in self.outcome.refusals:
            fresh = [
                unit
                for unit in refusal.units
                if (refusal.layer, unit, refusal.reason) not in self._refused
            ]
            if not fresh or bool(place.gradients().any()):
                continue
            self._refused |= {(refusal.layer, unit, refusal.reason) for unit in fresh}
            yield CertificateRefused(
                step=step, layer=refusal.layer, units=tuple(fresh), reason=refusal.reason
            )


def _distinct(graphs: Sequence[Graph]) -> list[Graph]:
    """Return the graphs that differ: micro-batches of one form are proven once."""
    return list({id(graph): graph for graph in graphs}.values())
