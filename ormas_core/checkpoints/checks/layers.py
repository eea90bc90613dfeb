"""Rows of weights and tables: zero, decayed, out of all proportion, never trained."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ormas_core.checkpoints.after import after, norm_after
from ormas_core.checkpoints.checks.whole import is_uninitialised
from ormas_core.checkpoints.findings import Finding, finding, spans
from ormas_core.checkpoints.groups import RowGroups
from ormas_core.checkpoints.roles import (
    is_adapter,
    is_basis,
    is_buffer,
    is_embedding,
    is_matrix,
    is_vocabulary,
    layer,
    text_setting,
)
from ormas_core.checkpoints.seen import Looked, Seen


def rows(seen: Seen) -> Iterator[Finding]:
    """Yield what the groups of rows of each weight and table say."""
    names = seen.by_name
    for looked in seen.tensors:
        groups = _judged(looked)
        if groups is None:
            continue
        if is_basis(looked.facts):
            idle = (*groups.zero, *groups.low)
            if idle:
                text = f"{_count(idle, groups)} zero, as sines of a fixed transform are"
                yield _of(looked, "idle-by-design", idle, text)
            continue
        if is_embedding(looked.facts):
            yield from _table(looked, groups, seen)
        elif is_matrix(looked.facts):
            yield from _filters(looked, groups, names, seen)
        if groups.high:
            yield _of(
                looked,
                "outlier-rows",
                groups.high,
                f"{_count(groups.high, groups)}: largest elements far above the median of "
                f"{groups.median:.3g}",
            )


def _judged(looked: Looked) -> RowGroups | None:
    """Return the rows of a tensor that has more than one axis and no other finding."""
    facts, groups = looked.facts, looked.rows
    if groups is None or len(facts.shape) < 2 or not groups.count:  # noqa: PLR2004
        return None
    if is_adapter(facts) or is_buffer(facts) or is_uninitialised(looked):
        return None
    # A row of NaN has no finite element that is not zero, and is not dead.
    wholly_bad = facts.nan + facts.inf >= facts.elements // groups.count > 0
    return None if groups.all_zero or wholly_bad else groups


def _filters(
    looked: Looked, groups: RowGroups, names: dict[str, Looked], seen: Seen
) -> Iterator[Finding]:
    if groups.zero:
        own = layer(looked.facts.clean)
        norm = norm_after(seen.followers, own)  # takes off what is constant, and adds its shift
        bias = _bias(names.get(f"{norm or own}.bias"), groups.count)
        zero = np.array(groups.zero)
        closed = after(seen.followers, norm or own)
        dead = zero[bias[zero] <= 0] if closed.may_close else zero[:0]
        flat = np.setdiff1d(zero, dead)
        if len(dead):
            shift = f"shift of {norm}" if norm else "bias"
            text = f"{_count(dead, groups)}: all weights zero, {shift} not above 0: {closed.closed}"
            yield _of(looked, "dead-channels", dead, text)
        if len(flat):
            text = f"{_count(flat, groups)}: all weights zero, so the output is the bias"
            yield _of(looked, "flat-channels", flat, text)
    if groups.low:
        text = f"{_count(groups.low, groups)}: weights next to zero, median {groups.median:.3g}"
        yield _of(looked, "decayed-channels", groups.low, text)


def _bias(looked: Looked | None, count: int) -> Any:
    """Return the bias of a layer, zero where it is unknown or there is none."""
    values = looked.facts.values if looked is not None and looked.clean else None
    fits = values is not None and np.shape(values) == (count,)
    return values if fits else np.zeros(count)


def _table(looked: Looked, groups: RowGroups, seen: Seen) -> Iterator[Finding]:
    """Yield what rows of a table that is looked up say; without a tokenizer nothing is wrong."""
    idle = np.array(sorted((*groups.zero, *groups.low)), dtype=np.int64)
    if not len(idle):
        return
    padding = text_setting(seen.config, "pad_token_id")
    if list(idle) in ([0], [1], [padding]):
        text = f"row {idle[0]} is zero, as that of a padding token is"
        yield _of(looked, "idle-by-design", idle, text)
        return
    vocabulary = seen.vocabulary() if is_vocabulary(looked.facts) else None
    if vocabulary is None:
        where = "the table has no tokenizer beside it to tell which rows are used"
        yield _of(looked, "untrained-vocabulary", idle, f"{_count(idle, groups)} idle: {where}")
        return
    expected = (idle >= vocabulary.size) | np.isin(idle, list(vocabulary.special))
    expected |= idle == padding
    if expected.any():
        text = (
            f"{_count(idle[expected], groups)} idle: beyond the tokenizer's {vocabulary.size:,} "
            "tokens, or reserved"
        )
        yield _of(looked, "untrained-vocabulary", idle[expected], text)
    if not expected.all():
        text = f"{_count(idle[~expected], groups)} next to zero, median {groups.median:.3g}"
        yield _of(looked, "near-zero-rows", idle[~expected], text)


def _count(units: Any, groups: RowGroups) -> str:
    return f"{len(units):,} of {groups.count:,} rows ({spans(units)})"


def _of(looked: Looked, code: str, units: Any, detail: str) -> Finding:
    facts = looked.facts
    return finding(code, facts.clean, detail, file=facts.file, tensors=[facts.name], units=units)
