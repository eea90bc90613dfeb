"""A running mean and variance that a NaN cannot blind."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_LARGEST: Final = 1e150
"""Beyond it the square of a difference overflows, and the variance would be inf or NaN for good."""


@dataclass(slots=True)
class Baseline:
    """Mean and variance of the values added so far, forgetting beyond `memory` of them.

    Up to `memory` values it is exactly Welford's recurrence for the population variance
    (B. P. Welford, Technometrics 4(3), 1962); from there on each new value has weight 1/memory,
    which makes it an exponential window. Non-finite values are never added, nor are those beyond
    1e150, whose squares are not finite.
    """

    memory: int
    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def add(self, value: float) -> None:
        """Take `value` into the baseline, unless it is NaN, infinite or beyond 1e150."""
        if math.isnan(value) or abs(value) > _LARGEST:
            return
        self.count += 1
        weight = 1.0 / min(self.count, self.memory)
        off = value - self.mean
        self.mean += weight * off
        self.variance = (1.0 - weight) * (self.variance + weight * off * off)

    @property
    def spread(self) -> float:
        """Standard deviation."""
        return math.sqrt(self.variance)

    def sigmas(self, value: float) -> float:
        """Return how many standard deviations `value` is off; inf where there is no spread."""
        off = abs(value - self.mean)
        if off == 0.0:
            return 0.0
        return off / self.spread if self.spread > 0.0 else math.inf

    def state(self) -> list[float]:
        """Return count, mean and variance."""
        return [float(self.count), self.mean, self.variance]

    def load(self, state: Sequence[float]) -> None:
        """Continue from a `state`.

        Raises:
            ValueError: it holds what `state` never returns; a NaN would blind the rule for good.
        """
        count, mean, variance = map(float, state)
        if not (count >= 0.0 and abs(mean) <= _LARGEST and 0.0 <= variance < math.inf):
            raise ValueError(f"no baseline: count {count}, mean {mean}, variance {variance}")
        self.count, self.mean, self.variance = int(count), mean, variance
