"""Normalisations: scales that are zero or decayed, channels that a ReLU would never let through."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ormas_core.checkpoints.after import after
from ormas_core.checkpoints.findings import Finding, finding, spans
from ormas_core.checkpoints.groups import LONE_GAP, LOW_GAP, RowGroups, median, row_groups
from ormas_core.checkpoints.roles import adds_one, is_adapter, is_norm_name, layer, leaf
from ormas_core.checkpoints.seen import Looked, Seen

DORMANT: Final = 6.0
"""Standard deviations of the normalised input that a channel's shift lies below zero."""

_UNVARYING: Final = 1e-12
"""Of the median variance."""

_SURE: Final = 0.01
"""Of the largest scale: what is above has the sign that it is meant to have."""

_SCALES: Final = ("weight", "gamma", "scale")
_SHIFTS: Final = {"weight": "bias", "gamma": "beta", "scale": "bias"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """A normalisation.

    Attributes:
        name: name of the layer.
        facts: its scale.
        scale, shift: `(channels,)`; the shift is zero where there is none.
        mean, variance: the running statistics, or None.
        batch: whether it is a batch normalisation.
        plain: whether there is no shift.
    """

    name: str
    facts: Looked
    scale: Any
    shift: Any
    mean: Any
    variance: Any
    batch: bool
    plain: bool


def norms_of(seen: Seen) -> Iterator[Norm]:
    """Yield the normalisations whose numbers are known, by names and shapes.

    A vector `weight` belongs to one if there are running statistics, or a `bias` of its length, or
    if the layer is called so: the slopes of a PReLU are a vector too.
    """
    tensors = seen.by_name
    for name, looked in tensors.items():
        scale = _vector(looked)
        if scale is None or leaf(name) not in _SCALES or is_adapter(looked.facts):
            continue
        own = layer(name)
        beside = {
            part: _vector(tensors.get(f"{own}.{part}" if own else part), len(scale))
            for part in (_SHIFTS[leaf(name)], "running_mean", "running_var")
        }
        shift, mean, variance = beside.values()
        if variance is None and shift is None and not is_norm_name(own):
            continue
        yield Norm(
            name=own,
            facts=looked,
            scale=scale,
            shift=np.zeros(len(scale)) if shift is None else shift,
            mean=mean,
            variance=variance,
            batch=variance is not None,
            plain=shift is None,
        )


def _vector(looked: Looked | None, length: int | None = None) -> Any:
    """Return the values of a finite vector of that length, or None."""
    if looked is None or not looked.clean or len(looked.facts.shape) != 1:
        return None
    values = looked.facts.values
    if values is None or (length is not None and len(values) != length):
        return None
    return values


def scales(seen: Seen) -> Iterator[Finding]:
    """Yield what the scales and shifts of the normalisations say of their channels."""
    norms = list(norms_of(seen))
    one = adds_one(seen.config)
    unsure = not one and seen.config is None and _may_add_one(norms)
    for norm in norms:
        if norm.batch:
            yield from _batch(norm, seen)
        elif unsure and norm.plain:
            if not norm.scale.all():
                detail = "scales are zero where the family may store 1 + weight: no config.json"
                yield _of(norm, "idle-by-design", np.flatnonzero(norm.scale == 0), detail)
        else:
            yield from _layer(norm, norm.scale + 1.0 if one else norm.scale)


def _may_add_one(norms: list[Norm]) -> bool:
    """Whether scales without a shift are below zero somewhere, or zero in most: 1 + weight, maybe.

    Scales start at one and hardly ever change sign; numbers around zero are the difference to one.
    """
    plain = [norm.scale for norm in norms if norm.plain and not norm.batch]
    zero = sum(not s.any() for s in plain)  # some layers of such a family may store all of it
    return any((s < 0).any() for s in plain) or 2 * zero > len(plain)


def _layer(norm: Norm, scale: Any) -> Iterator[Finding]:
    groups = _groups(scale)
    zero = tuple(range(groups.count)) if groups.all_zero else groups.zero
    low = groups.low
    if zero or low:
        parts = [(zero, "are zero"), (low, f"are next to zero (median {groups.median:.3g})")]
        what = "; ".join(
            f"{len(units)} of {groups.count} scales {text}: {spans(units)}"
            for units, text in parts
            if units
        )
        yield _of(norm, "norm-scale-zero", sorted((*zero, *low)), what)


def _groups(scale: Any) -> RowGroups:
    """Return scales by size; where they have both signs, some are next to zero by chance."""
    sizes = np.abs(scale)
    large = scale[sizes > _SURE * sizes.max(initial=0.0)]
    both = bool((large < 0).any() and (large > 0).any())
    return row_groups(sizes, LONE_GAP if both else LOW_GAP)


def _batch(norm: Norm, seen: Seen) -> Iterator[Finding]:
    scale, shift = np.abs(norm.scale), norm.shift
    groups = _groups(norm.scale)
    if groups.all_zero:
        detail = (
            f"all {groups.count} scales are zero, as where a residual branch starts at zero and "
            "was not trained"
        )
        yield _of(norm, "norm-scale-zero", range(groups.count), detail)
        return
    zero = np.zeros(len(scale), dtype=bool)
    zero[list(groups.zero)] = True
    low = np.zeros(len(scale), dtype=bool)
    low[list(groups.low)] = True
    follower = after(seen.followers, norm.name)
    dead = zero & (shift <= 0) if follower.may_close else np.zeros_like(zero)
    yield from _said(norm, "dead-channels", dead, f"scale 0 and shift <= 0: {follower.closed}")
    flat = "scale 0, so the output is the shift"
    yield from _said(norm, "flat-channels", zero & ~dead, flat)
    text = f"scale next to zero (median {groups.median:.3g}), so the output is all but the shift"
    yield from _said(norm, "decayed-channels", low, text)
    if follower.may_close:
        dormant = ~zero & ~low & (shift < -DORMANT * scale)
        text = f"shift more than {DORMANT:g} scales below zero: {follower.dormant}"
        yield from _said(norm, "dormant-channels", dormant, text)
    still = norm.variance <= _UNVARYING * median(norm.variance)
    still &= ~zero & ~low
    yield from _said(norm, "unvarying-variance", still, "running variance 0")
    if norm.mean is not None and not norm.mean.any() and (norm.variance == 1).all():
        # Of networks that are built anew shifts are zero; training moves all that are in use.
        trained = np.full(len(shift), 2 * np.count_nonzero(shift) > len(shift))
        text = "running mean 0 and variance 1, as built, though most shifts are not"
        yield from _said(norm, "untouched-statistics", trained, text)


def _said(norm: Norm, code: str, units: Any, text: str) -> Iterator[Finding]:
    if units.any():
        found = np.flatnonzero(units)
        detail = f"{len(found)} of {len(units)} channels: {text} ({spans(found)})"
        yield _of(norm, code, found, detail)


def _of(norm: Norm, code: str, units: Any, detail: str) -> Finding:
    facts = norm.facts.facts
    return finding(code, norm.name, detail, file=facts.file, tensors=[facts.name], units=units)
