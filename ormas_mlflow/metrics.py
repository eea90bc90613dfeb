"""From measurements to the few metric values that are sent."""

import math
from typing import Final, NamedTuple

from ormas_core import Measurement

LOSS: Final = "ormas.loss"
GRADIENT_NORM: Final = "ormas.gradient_norm"
WITHOUT_GRADIENT: Final = "ormas.layers_without_gradient"


class MetricValue(NamedTuple):
    """One point of a curve, in the order of MLflow's own type.

    Attributes:
        timestamp: unix time in milliseconds.
        step: place on the x axis.
    """

    key: str
    value: float
    timestamp: int
    step: int


class RunMetrics:
    """The points of one segment's curves; several optimizers that step apart have each their own.

    They are placed at the `step` of the measurement. Where that would repeat, because a scaler
    skips updates, they are placed at its `attempt`, so that no two checks share a place.
    """

    def __init__(self) -> None:
        self._last_step = -1

    def rows(self, event: Measurement) -> list[MetricValue]:
        """Return the values of one measurement that are finite.

        A non-finite one is left out: SQL stores hold infinities as 1.8e308, which ruins the curve,
        and the tags say when it happened.
        """
        step = event.step if event.step > self._last_step else event.attempt
        self._last_step = step
        finite = [norm for norm in event.norms if norm is not None and math.isfinite(norm)]
        values = {
            LOSS: event.loss,
            GRADIENT_NORM: math.hypot(*finite) if finite else None,
            WITHOUT_GRADIENT: float(sum(not norm for norm in event.norms)),
        }
        lane = f".{event.lane.replace(':', '_')}" if event.lane else ""  # a colon may be refused
        return [
            MetricValue(f"{key}{lane}", float(value), event.time_ns // 1_000_000, step)
            for key, value in values.items()
            if value is not None and math.isfinite(value)
        ]
