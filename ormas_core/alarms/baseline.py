"""A running mean and variance that a NaN cannot blind."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Baseline:
    """Mean and variance of the values added so far, forgetting beyond `memory` of them.

    Up to `memory` values it is exactly Welford's recurrence for the population variance
    (B. P. Welford, Technometrics 4(3), 1962); from there on each new value has weight 1/memory,
    which makes it an exponential window. Non-finite values are never added.
    """

    memory: int
    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def add(self, value: float) -> None:
        """Take `value` into the baseline, unless it is NaN or infinite."""
        if not math.isfinite(value):
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
        """Continue from a `state`."""
        count, self.mean, self.variance = state
        self.count = int(count)
