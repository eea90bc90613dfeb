"""All limits that are to be found in some graphs."""

from collections.abc import Mapping, Sequence

from ormas_core.certificates.candidates import Structure
from ormas_core.certificates.graph import Graph
from ormas_core.certificates.limits import Bound, Limits
from ormas_core.certificates.norms import norm_bound
from ormas_core.certificates.ownership import Owner
from ormas_core.certificates.sums import sum_bound


def find_limits(
    graphs: Sequence[Graph], forms: Sequence[Structure], owners: Mapping[int, Owner]
) -> Limits | None:
    """Return the limits of every batch norm and sum with a channel that they might close."""
    found: dict[int, Bound] = {}
    for graph, form in zip(graphs, forms, strict=True):
        for number in form.sums:
            if (bound := sum_bound(graph, number, owners)) is not None:
                found[id(graph.nodes[number])] = bound
        for number in form.norms:
            if (norm := norm_bound(graph, number, owners)) is not None:
                found[id(graph.nodes[number])] = norm
    return Limits(found) if found else None
