"""Guards: what must still be seen at every check for a claim to stay in force."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ormas_core.certificates import norm_limits
from ormas_core.certificates.contradictions import Proofs, contradicted
from ormas_core.certificates.graph import CountingHook, Graph, is_here
from ormas_core.certificates.limits import MARGINS
from ormas_core.certificates.ownership import Owner
from ormas_core.certificates.place import Place
from ormas_core.claims import CertificateClass, Claim, Fact, StepKind

_OUTPUTS = frozenset({"AddmmBackward0", "ConvolutionBackward0"})
"""Operations, besides norms, that take a parameter and give a module's output."""
if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

K = TypeVar("K")
Rates = Mapping[int, tuple[float, float]]
Held = tuple[Claim, Place, slice, Rates]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one check saw of the step, besides graphs and gradients.

    Attributes:
        finite: whether loss and gradients are finite.
        channel_max: layer -> largest output of each channel, shape (channels,).
        input_peak: layer -> largest absolute input.
        accumulations: parameter id -> backward passes that wrote its gradient; None if not counted.
        passes: micro-batches whose graphs were read.
        whole: False for one step of several, in which not every layer need have been called.
    """

    finite: bool = True
    channel_max: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    input_peak: Mapping[str, float] = field(default_factory=dict)
    accumulations: Mapping[int, int] | None = None
    passes: int = 1
    whole: bool = True

    def allows(self, claim: Claim) -> bool:
        """Whether the limits on input sizes, which only a run can measure, are kept."""
        return all(
            condition.layer in self.input_peak
            and self.input_peak[condition.layer] < condition.value / MARGINS[condition.name]
            for condition in claim.conditions
            if condition.name in MARGINS
        )


def unprovable(graphs: Iterable[Graph]) -> str:
    """Return why nothing can be said of a step with these graphs; empty if something can."""
    parameters = [one for graph in graphs for one in graph.parameters]
    if not parameters:
        return "no loss with a graph was given"
    if all(map(is_here, parameters)):
        return ""
    return "sharded: this process holds only a part of the parameters behind the loss"


class AccumulationCounter:
    """Counts how often backward passes write the gradients of some parameters, in one step.

    Its hooks are on the parameters between `start` and `stop` only.
    """

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self._counts: dict[int, int] | None = None
        self._paused: dict[int, int] = {}

    def start(self, parameters: Iterable[Tensor]) -> None:
        """Begin to count; a count that goes on is begun anew, one that was paused is continued."""
        self._unhook()
        self._counts = dict(self._paused)
        note = CountingHook(self._counts)
        self._handles = [
            p.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
            for p in parameters
            if p.requires_grad
        ]

    def pause(self) -> None:
        """Take the hooks off until the next `start`; the counts are kept."""
        self._unhook()
        if self._counts is not None:
            self._paused = self._counts

    def forget(self) -> None:
        """Take the hooks off, and forget what was counted since the last `start`."""
        self._unhook()
        self._counts = None

    def stop(self) -> dict[int, int] | None:
        """Return the counts by parameter id, None where none were made, and take the hooks off."""
        self._unhook()
        found, self._counts, self._paused = self._counts, None, {}
        return found

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def broken(
    held: Mapping[K, Held],
    graphs: Sequence[Graph],
    owners: Mapping[int, Owner],
    evidence: Evidence,
    proofs: Proofs,
) -> dict[K, str]:
    """Return the claims of which a guard fails, with the reason.

    Args:
        held: the claims in force, each with the place of its group, its own rows there, and the
            learning rates and decays that it covers.
        graphs: the graphs of the step.
        owners: who owns the parameters now.
        evidence: what else the check saw.
        proofs: the fixpoints that the claims are from.
    """
    found = {
        key: f"{claim.layer} has another size now"
        for key, (claim, place, _, _) in held.items()
        if not place.is_there
    }
    held = {key: one for key, one in held.items() if key not in found}
    if not held:
        return found
    groups = {id(place): (claim, place, rates) for claim, place, _, rates in held.values()}
    shared = {
        key: next(iter(_reasons(claim, place, rates, graphs, owners, evidence)), "")
        for key, (claim, place, rates) in groups.items()
    }
    written = contradicted(
        [(claim, place) for claim, place, _ in groups.values()], graphs, owners, proofs
    )
    for group, name in zip(groups, written, strict=True):
        if name and not shared[group]:
            shared[group] = f"the gradient of {name} is not zero where the proof needs it"
    moved = _gradients([place for _, place, _ in groups.values()])
    changed = {key: place.changed() for key, (claim, place, _) in groups.items() if claim.still}
    for key, (claim, place, rows, _) in held.items():
        reason = shared[id(place)]
        if not reason and bool(moved[id(place)][rows].any()):
            reason = f"the gradient of {claim.layer} is not zero there"
        elif not reason and id(place) in changed and bool(changed[id(place)][rows].any()):
            reason = "its weights were changed from outside the optimizer"
        if reason:
            found[key] = reason
    return found


def _gradients(places: Sequence[Place]) -> dict[int, NDArray[np.bool_]]:
    """Return which rows of each place have a gradient; one copy to the host for all."""
    flags = [place.gradients() for place in places]
    if not flags:
        return {}
    host = torch.cat([flag.to(flags[0].device) for flag in flags]).cpu().numpy()
    ends = np.cumsum([flag.numel() for flag in flags])
    parts = np.split(host, ends[:-1])
    return {id(place): part for place, part in zip(places, parts, strict=True)}


def _reasons(
    claim: Claim,
    place: Place,
    rates: Rates,
    graphs: Sequence[Graph],
    owners: Mapping[int, Owner],
    evidence: Evidence,
) -> Iterator[str]:
    counted = evidence.accumulations
    if counted is not None and counted.get(id(place.parameter), 0) > evidence.passes:
        yield (
            f"{counted[id(place.parameter)]} backward passes wrote its gradient, and the graphs of "
            f"{evidence.passes} were seen: another loss reaches it"
        )
    for key, (lr_max, decay_max) in rates.items():
        owner = owners.get(key)
        if owner is None or owner.slot is None:
            continue
        lr = abs(float(owner.slot.group.get("lr", 0.0)))
        if lr > lr_max:
            yield f"the learning rate of {owner.name} is {lr:.3g}; it covers up to {lr_max:.3g}"
        decay = float(owner.slot.group.get("weight_decay", 0.0) or 0.0)
        if decay > decay_max:
            yield f"the decay of {owner.name} is {decay:.3g}; it covers up to {decay_max:.3g}"
    yield from _bounds(claim, graphs, owners, evidence)
    yield from _facts(claim, evidence)


def _bounds(
    claim: Claim, graphs: Sequence[Graph], owners: Mapping[int, Owner], evidence: Evidence
) -> Iterator[str]:
    if claim.cls is not CertificateClass.BOUNDED:
        return
    sizes = _batch_sizes(graphs, owners)
    for condition in claim.conditions:
        seen = sizes.get(condition.layer, 0)
        if condition.name == "m_max" and seen > condition.value:
            yield (
                f"{condition.layer} saw {seen} elements in a channel; it covers "
                f"{condition.value:.6g}"
            )
        margin = MARGINS.get(condition.name, 0.0)
        if not margin:
            continue
        peak = evidence.input_peak.get(condition.layer)
        if peak is None and evidence.whole:
            yield f"the input of {condition.layer} was not seen: {condition.name} is not checked"
        if peak is not None and not peak < condition.value / margin:
            yield (
                f"the input of {condition.layer} reached {peak:.3g}; it covers "
                f"{condition.value / margin:.3g} ({condition.name} / {margin:g})"
            )


def _batch_sizes(graphs: Sequence[Graph], owners: Mapping[int, Owner]) -> dict[str, int]:
    """Return the elements of each channel that each batch norm saw, by layer."""
    sizes: dict[str, int] = {}
    for graph in graphs:
        for node in graph.nodes:
            if (
                node.name in norm_limits.NORMS
                and len(node.inputs) > 1
                and node.inputs[1] is not None
            ):
                leaf = graph.nodes[node.inputs[1][0]].parameter
                owner = owners.get(id(graph.parameters[leaf])) if leaf is not None else None
                if owner is not None:
                    sizes[owner.layer] = max(sizes.get(owner.layer, 0), norm_limits.elements(node))
    return sizes


def _facts(claim: Claim, evidence: Evidence) -> Iterator[str]:
    """Compare what the proof says of a module's outputs with the outputs that were seen."""
    for step in claim.trace:
        if step.kind not in {StepKind.VALUE, StepKind.LIMIT} or step.fact is Fact.NONNEGATIVE:
            continue
        # A weight that is transposed, cast or cut is no output yet.
        if step.op not in _OUTPUTS and "Norm" not in step.op:
            continue
        for use in step.uses:
            premise = claim.trace[use.step]
            axis = 1 if len(step.box) > 2 or "Norm" in step.op else -1  # noqa: PLR2004
            layer = premise.name.rpartition(".")[0]
            seen = evidence.channel_max.get(layer)
            if premise.kind is not StepKind.PARAMETER or seen is None or not step.box:
                continue
            start, stop, period = step.box[axis]
            if period == seen.size and bool((seen[start:stop] > 0).any()):
                yield f"{layer} put out {float(seen[start:stop].max()):.3g} in a closed channel"
