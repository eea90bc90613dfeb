"""Modules that share rows between them: which of them get none, and which get few."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Final

from ormas_core.across import ExpertsStarving, ExpertUsage
from ormas_core.alarms.rule import State
from ormas_core.config import MonitorConfig
from ormas_core.events import Event, Measurement
from ormas_core.terms import ExpertRows, ExpertShare

_LEAST_ROWS: Final = 100
"""Rows that each expert would have had at equal shares, before one is said to starve."""

_RARE: Final = 0.2
_RARE_NO_MORE: Final = 0.3
"""Parts of an equal share below which an expert is rare, and above which it no longer is."""

_CHANCE: Final = 1e-4
"""A gap is starving when the frequency with which the expert was seen makes it less likely..."""

_DOUBT: Final = 4
"""...that frequency taken as if so many more checks had been without the expert..."""

_GAP_FACTOR: Final = 3
"""...and when it is this many times as long as the longest one before."""


@dataclass(slots=True)
class _Expert:
    """What is remembered of one expert.

    Attributes:
        share: running mean of its share of the rows.
        seen: running mean of whether it had any.
        past: that mean when it last had any, lowered for doubt.
        gap: checks since then.
        gap_rows: rows of all experts since then.
        longest: longest gap that ended.
        since: step of the last check in which it had any.
    """

    share: float = 0.0
    seen: float = 0.0
    past: float = 0.0
    gap: int = 0
    gap_rows: int = 0
    longest: int = 0
    since: int | None = None
    starving: bool = False
    rare: bool = False


@dataclass(slots=True)
class _Container:
    """What is remembered of the experts of one container."""

    checks: int = 0
    rows: int = 0
    experts: dict[str, _Expert] = field(default_factory=dict)

    def starving(self) -> list[str]:
        """Return who starves."""
        return [key for key, expert in self.experts.items() if expert.starving]

    def rare(self) -> list[str]:
        """Return who is rare and does not starve."""
        return [key for key, expert in self.experts.items() if expert.rare and not expert.starving]


class ExpertRule:
    """Tells starving experts from rare ones, by the rows that the checks have seen.

    An expert starves when it had no row in `patience` checks in a row in which equal shares would
    have given it 100 rows, and when its own past does not explain the gap: at the frequency it had
    before, so long a gap has a chance below 1 in 10,000, and it is three times as long as any
    before. It is rare below a fifth of an equal share, averaged over the checks. Rows are those of
    this process: an expert whose parameters have a gradient all the same is taken as seen.

    An observation of samples, and no proof.
    """

    def __init__(self, config: MonitorConfig) -> None:
        self._config = config
        self._containers: dict[str, _Container] = {}

    def update(self, measurement: Measurement, /) -> Iterator[Event]:
        """Take the rows of this check, container by container."""
        for found in measurement.experts:
            if sum(found.rows) > 0:
                container = self._containers.setdefault(found.container, _Container())
                yield from self._take(found, container, measurement)

    def _take(
        self, found: ExpertRows, container: _Container, measurement: Measurement
    ) -> Iterator[Event]:
        total, step = sum(found.rows), measurement.step
        starved, rare = container.starving(), container.rare()
        reached = _with_gradient(found, measurement)
        container.checks += 1
        container.rows += total
        count = min(container.checks, self._config.baseline_memory)
        for key, own in zip(found.experts, found.rows, strict=True):
            expert = container.experts.setdefault(key, _Expert())
            seen = own > 0 or key in reached
            expert.share += (own / total - expert.share) / count
            expert.seen += (seen - expert.seen) / count
            if seen:
                expert.longest = max(expert.longest, expert.gap)
                expert.past = expert.seen * count / (count + _DOUBT)
                expert.gap, expert.gap_rows, expert.since = 0, 0, step
            else:
                expert.gap += 1
                expert.gap_rows += total
            self._judge(expert, container, len(found.rows))
        if (starved, rare) == (container.starving(), container.rare()):
            return
        anew = set(container.starving()) - set(starved)
        kind = ExpertsStarving if anew else ExpertUsage
        yield kind(
            step=step,
            container=found.container,
            experts=len(found.rows),
            starving=_shares(container, container.starving()),
            rare=_shares(container, container.rare()),
            checks=count,
        )

    def _judge(self, expert: _Expert, container: _Container, experts: int) -> None:
        least = _LEAST_ROWS * experts
        if container.rows >= least and container.checks >= self._config.patience:
            expert.rare = expert.share * experts < (_RARE_NO_MORE if expert.rare else _RARE)
        if expert.gap == 0:
            expert.starving = False
        elif expert.gap_rows >= least and expert.gap >= self._needed_gap(expert):
            expert.starving = True

    def _needed_gap(self, expert: _Expert) -> float:
        needed = max(self._config.patience, _GAP_FACTOR * expert.longest)
        if expert.since is None:
            return needed
        return max(needed, math.log(_CHANCE) / math.log1p(-expert.past))

    def state_dict(self) -> State:
        """Return what is remembered of every container."""
        return {name: asdict(container) for name, container in self._containers.items()}

    def load_state_dict(self, state: State, /) -> None:
        """Continue from a state that `state_dict` returned."""
        self._containers = {
            name: _Container(
                checks=saved["checks"],
                rows=saved["rows"],
                experts={key: _Expert(**expert) for key, expert in saved["experts"].items()},
            )
            for name, saved in state.items()
        }


def without_rows(measurement: Measurement) -> frozenset[str]:
    """Return the layers of experts that had no row in this check: no gradient is due to them."""
    return frozenset(
        layer
        for found in measurement.experts
        for key, rows in zip(found.experts, found.rows, strict=True)
        if not rows
        for layer in _layers(measurement, found.container, key)
    )


def _with_gradient(found: ExpertRows, measurement: Measurement) -> set[str]:
    """Return the experts without rows that have a gradient: another process had rows for them."""
    norms = dict(zip(measurement.layers, measurement.norms, strict=True))
    return {
        key
        for key, rows in zip(found.experts, found.rows, strict=True)
        if not rows and any(norms[name] for name in _layers(measurement, found.container, key))
    }


def _layers(measurement: Measurement, container: str, key: str) -> list[str]:
    own = f"{container}.{key}"
    return [name for name in measurement.layers if name == own or name.startswith(f"{own}.")]


def _shares(container: _Container, keys: list[str]) -> tuple[ExpertShare, ...]:
    experts = container.experts
    return tuple(
        ExpertShare(
            expert=key,
            share=experts[key].share,
            seen=experts[key].seen,
            since_step=experts[key].since,
        )
        for key in keys
    )
