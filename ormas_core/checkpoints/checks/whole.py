"""Tensors as wholes: not finite, not there, zero throughout, constant, never written to."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from ormas_core.checkpoints.findings import Finding, finding, listed
from ormas_core.checkpoints.roles import is_adapter, is_buffer, is_embedding, is_matrix, layer
from ormas_core.checkpoints.seen import Looked, Seen
from ormas_core.checkpoints.tensors import State

_FEWEST: Final = 4
"""Elements below which that all are equal says nothing."""

_MOST_GROUPS: Final = 8
"""Groups of identical layers that are reported one by one."""

_UNTOUCHED: Final = {
    State.NO_DATA: "no-data",
    State.UNREADABLE: "unreadable",
    State.UNKNOWN: "not-inspected",
    State.PACKED: "packed",
}


def nonfinite(seen: Seen) -> Iterator[Finding]:
    """Yield the tensors with NaN or infinite elements, the worst first."""
    bad = [looked.facts for looked in seen.tensors if looked.facts.nan or looked.facts.inf]
    bad.sort(key=lambda facts: (facts.nan + facts.inf) / facts.elements, reverse=True)
    for facts in bad:
        if not facts.nan and is_buffer(facts) and "mask" in facts.clean.lower():
            detail = f"{facts.inf:,} infinite elements, as masks have"
            yield finding(
                "idle-by-design", facts.clean, detail, file=facts.file, tensors=[facts.name]
            )
            continue
        share = (facts.nan + facts.inf) / facts.elements
        counts = [(facts.nan, "NaN"), (facts.inf, "infinite")]
        what = " and ".join(f"{count:,} {word}" for count, word in counts if count)
        first = ", ".join(map(str, facts.first or ()))
        yield finding(
            "nonfinite",
            facts.clean,
            f"{what} of {facts.elements:,} elements ({share:.2%}), in {facts.bad_rows:,} of "
            f"{facts.rows:,} rows; the first at [{first}]",
            file=facts.file,
            tensors=[facts.name],
        )


def untouched(seen: Seen) -> Iterator[Finding]:
    """Yield one finding for each reason for which tensors were not looked at."""
    groups: dict[tuple[State, str], list[Looked]] = defaultdict(list)
    for looked in seen.tensors:
        facts = looked.facts
        if facts.state in _UNTOUCHED:
            groups[facts.state, facts.reason].append(looked)
    for (state, reason), group in groups.items():
        names = [looked.facts.clean for looked in group]
        yield finding(
            _UNTOUCHED[state],
            names[0] if len(names) == 1 else f"{len(names)} tensors",
            f"{len(names)} of {len(seen.tensors)} tensors"
            f"{' have no data' if state is State.NO_DATA else ''}"
            f"{f': {reason}' if reason else ''} ({listed(names)})",
            file=group[0].facts.file if len({one.facts.file for one in group}) == 1 else "",
            tensors=[looked.facts.name for looked in group],
        )


def zero(seen: Seen) -> Iterator[Finding]:
    """Yield weights that are zero throughout, and other tables that are.

    Biases and vectors start at zero by right, normalisations and adapters have checks of their own.
    """
    for looked in seen.tensors:
        facts, rows = looked.facts, looked.rows
        if rows is None or not looked.clean or not rows.all_zero or not rows.count:
            continue
        if len(facts.shape) < 2 or is_adapter(facts) or is_buffer(facts):  # noqa: PLR2004
            continue
        code = "zero-weights" if is_matrix(facts) else "zero-tensor"
        yield finding(
            code,
            facts.clean,
            f"all {facts.elements:,} elements are zero",
            file=facts.file,
            tensors=[facts.name],
        )


def constant(seen: Seen) -> Iterator[Finding]:
    """Yield weights that have one value everywhere, other than zero."""
    for looked in seen.tensors:
        facts = looked.facts
        if looked.clean and facts.constant and is_matrix(facts) and facts.elements >= _FEWEST:
            yield finding(
                "constant-tensor",
                facts.clean,
                f"all {facts.elements:,} elements are {facts.constant:g}",
                file=facts.file,
                tensors=[facts.name],
            )


def uninitialised(seen: Seen) -> Iterator[Finding]:
    """Yield weights most of whose rows are of a size that only chance gives."""
    for looked in seen.tensors:
        facts = looked.facts
        if is_uninitialised(looked):
            yield finding(
                "uninitialised",
                facts.clean,
                f"in {looked.wild:.0%} of the {facts.rows:,} rows that are not zero the largest "
                "element is below the normal numbers of float32, or above 1e15",
                file=facts.file,
                tensors=[facts.name],
            )


def is_uninitialised(looked: Looked) -> bool:
    """Whether most rows of a weight are of a size that only chance gives."""
    return looked.clean and looked.wild > 0.5 and is_matrix(looked.facts)  # noqa: PLR2004


def duplicates(seen: Seen) -> Iterator[Finding]:
    """Yield groups of weights of different layers that are equal bit by bit."""
    groups: dict[bytes, list[Looked]] = defaultdict(list)
    for looked in seen.tensors:
        if _is_distinct(looked):
            groups[looked.facts.fingerprint].append(looked)
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for group in groups.values():
        names = list(dict.fromkeys(o.facts.name for o in group))  # once, if two files hold it
        names = [names[0], *(name for name in names[1:] if seen.same(names[0], name))]
        if len(names) > 1:
            found[tuple(map(layer, names))].extend(names)
    if len(found) > _MOST_GROUPS:  # copies of whole parts, such as a teacher: one cause
        names = [name for group in found.values() for name in group]
        yield finding(
            "duplicate-tensors",
            f"{len(found)} groups of layers",
            f"{len(names)} weights are bit-identical to those of another layer: {listed(names)}",
            tensors=names,
        )
        return
    for layers, names in found.items():
        yield finding(
            "duplicate-tensors",
            listed(layers),
            f"{len(names)} weights of {len(layers)} layers are bit-identical: {listed(names)}",
            tensors=names,
        )


def _is_distinct(looked: Looked) -> bool:
    """Whether a tensor is one that no other layer has by right.

    Embeddings are tied and fixed tables are repeated; what was never trained has its own finding.
    """
    facts, rows = looked.facts, looked.rows
    return (
        looked.clean
        and rows is not None
        and not rows.all_zero
        and facts.constant is None
        and is_matrix(facts)
        and "emb" not in facts.clean
        and not is_embedding(facts)
        and not is_uninitialised(looked)
        and facts.elements >= _FEWEST
        and facts.fingerprint != b""
    )
