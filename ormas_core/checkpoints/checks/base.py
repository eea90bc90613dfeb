"""A checkpoint beside its base: what is the same, what did not move, what only one of them has."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ormas_core.checkpoints.findings import Finding, finding, listed, spans
from ormas_core.checkpoints.roles import is_buffer, is_vocabulary
from ormas_core.checkpoints.seen import Looked, Seen
from ormas_core.checkpoints.tensors import Against, TensorFacts

_EQUAL: Final = (Against.SAME, Against.CAST)


def against(seen: Seen) -> Iterator[Finding]:
    """Yield what the comparison shows; nothing where no base was given."""
    if seen.base is None:
        return
    compared = [o.facts for o in seen.tensors if o.facts.base is not None]
    common = [f for f in compared if _verdict(f) is not Against.ABSENT]
    unknown = [f for f in common if _verdict(f) is Against.UNKNOWN]
    known = [f for f in common if _verdict(f) is not Against.UNKNOWN]
    judged = [f for f in known if f.floating and not is_buffer(f)]
    same = [f for f in judged if _verdict(f) in _EQUAL]
    if not common:
        detail = f"no tensor of {len(seen.tensors)} has a name that the base has too"
        yield finding("not-compared", "the base", detail)
    elif judged and len(same) == len(judged):
        yield _all_same(same)
    else:
        yield from _frozen(same, len(judged))
        yield from _unmoved(seen)
    if unknown:
        names = [f.clean for f in unknown]
        detail = f"{len(names)} tensors could not be compared: {listed(names)}"
        yield finding("not-compared", "the base", detail, tensors=[f.name for f in unknown])
    if common:
        yield from _structure(seen)


def _verdict(facts: TensorFacts) -> Against:
    return facts.base.verdict if facts.base is not None else Against.UNKNOWN


def _all_same(same: list[TensorFacts]) -> Finding:
    cast = sum(_verdict(f) is Against.CAST for f in same)
    how = f"equal, {cast} of them after rounding to the narrower type" if cast else "bit-identical"
    detail = f"all {len(same)} tensors are {how}: nothing that trained was saved"
    return finding("identical-to-base", "all tensors", detail, tensors=[f.name for f in same])


def _frozen(same: list[TensorFacts], count: int) -> Iterator[Finding]:
    if same:
        names = [f.clean for f in same]
        yield finding(
            "frozen-tensors",
            names[0] if len(names) == 1 else f"{len(names)} tensors",
            f"{len(names)} of {count} tensors are those of the base: {listed(names)}",
            tensors=[f.name for f in same],
        )


def _unmoved(seen: Seen) -> Iterator[Finding]:
    """Yield rows of vocabularies that are those of the base, told apart by the tokenizers."""
    for looked in seen.tensors:
        facts = looked.facts
        if facts.base is None or facts.base.moved is None or _verdict(facts) in _EQUAL:
            continue
        still = np.flatnonzero(~np.asarray(facts.base.moved, dtype=bool))
        if not len(still) or not is_vocabulary(facts):
            continue
        yield from _rows(looked, still, seen)


def _rows(looked: Looked, still: Any, seen: Seen) -> Iterator[Finding]:
    facts, vocabulary = looked.facts, seen.vocabulary()
    size = vocabulary.size if vocabulary is not None else facts.shape[0]
    surplus, inside = still[still >= size], still[still < size]
    before = seen.base_vocabulary()
    new = inside[inside >= before.size] if before is not None else inside[:0]
    known = np.setdiff1d(inside, new)
    parts = (
        ("unmoved-rows", known, "tokens never moved from the base: not in the training data"),
        ("unmoved-rows", new, "new tokens still have the values that the base had there"),
        (
            "untrained-vocabulary",
            surplus,
            f"rows beyond the tokenizer's {size:,} tokens never moved, as expected",
        ),
    )
    for code, units, text in parts:
        if len(units):
            detail = f"{len(units):,} {text} ({spans(units)})"
            yield finding(
                code, facts.clean, detail, file=facts.file, tensors=[facts.name], units=units
            )


def _structure(seen: Seen) -> Iterator[Finding]:
    own = {looked.facts.clean for looked in seen.tensors}
    base = seen.base or frozenset()
    reshaped = [
        o.facts.clean
        for o in seen.tensors
        if o.facts.base is not None and o.facts.base.verdict is Against.RESHAPED
    ]
    parts = (
        (sorted(base - own), "only in the base"),
        (sorted(own - base), "only here"),
        (reshaped, "of another shape"),
    )
    text = "; ".join(f"{len(names)} {what}: {listed(names)}" for names, what in parts if names)
    if text:
        yield finding("structure-differs", "the base", text)
