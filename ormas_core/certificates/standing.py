"""Whether what an earlier proof rests on is still so, which saves proving it again."""

from collections.abc import Mapping, Sequence

from ormas_core.certificates.bounded import find_limits
from ormas_core.certificates.candidates import Structure
from ormas_core.certificates.engine import Outcome, lasting_leaf
from ormas_core.certificates.graph import parameters_of
from ormas_core.certificates.masks import Mask, meet
from ormas_core.certificates.ownership import Owner
from ormas_core.certificates.values import Values
from ormas_core.claims import CertificateClass


def stands(
    outcome: Outcome,
    forms: Sequence[Structure],
    now: Values,
    owners: Mapping[int, Owner],
) -> bool:
    """Whether the facts that an outcome rests on still hold, and last as they did.

    The graphs and the candidates are the same, so only the parameters of its proofs matter. With
    limits, which depend on numbers, it is proven anew.
    """
    bounded = CertificateClass.BOUNDED in outcome.proofs
    if bounded or find_limits(outcome.graphs, forms, owners) is not None:
        return False
    ideal = outcome.proofs.get(CertificateClass.CLOSED_NOW)
    if ideal is None:
        return True  # nothing was worth a proof, and still is not
    parameters = parameters_of(outcome.graphs)
    used = {key: facts for key, facts in ideal.facts.items() if facts.known}
    for key, held in now.of(used).items():
        leaf, before = lasting_leaf(parameters[key], held, owners), outcome.leaves[key]
        if leaf.reason != before.reason:
            return False
        for name in ("zero", "neg", "pos"):
            needed: Mask = getattr(used[key], name)
            held_now, held_then = getattr(leaf.now, name), getattr(before.now, name)
            if not meet(held_now, needed).same(meet(held_then, needed)):
                return False
            lasts, lasted = getattr(leaf.lasting, name), getattr(before.lasting, name)
            if not meet(lasts, needed).same(meet(lasted, needed)):
                return False
    return True
