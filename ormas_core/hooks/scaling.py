"""What a loss scaler did between two checks, from its scale alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class ScaleLedger:
    """Counts skipped updates without looking at unsampled steps.

    A `GradScaler` multiplies its scale by the backoff factor at every skipped update and by the
    growth factor after `growth_interval` good ones in a row, and counts those in its growth
    tracker. From scale and tracker at two checks the number of skips between them follows; it is
    exact while fewer than `growth_interval` good updates can lie in between, and the least number
    that explains the scale otherwise.

    Attributes:
        skipped: updates skipped so far.
        in_a_row: updates skipped right before the current attempt, at least.
    """

    skipped: int = 0
    in_a_row: int = 0
    _attempt: int = 0
    _scale: float | None = None
    _tracker: int = 0

    def observe(self, scaler: Any, attempt: int, scale: float, tracker: int) -> None:
        """Take the scaler's state as it is before the update of `attempt`."""
        if self._scale is not None and attempt > self._attempt:
            attempts = attempt - self._attempt
            skips = _skips(scaler, attempts, self._scale, scale, self._tracker)
            self.skipped += skips
            if skips == attempts:
                self.in_a_row += attempts
            else:
                self.in_a_row = 1 if skips and tracker == 0 else 0
        self._attempt, self._scale, self._tracker = attempt, scale, tracker

    def state_dict(self) -> dict[str, Any]:
        """Return what was seen last, in plain numbers."""
        return {
            "skipped": self.skipped,
            "in_a_row": self.in_a_row,
            "attempt": self._attempt,
            "scale": self._scale,
            "tracker": self._tracker,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state_dict` returned, or leave everything as it is."""
        scale = state["scale"]
        whole = [int(state[name]) for name in ("skipped", "in_a_row", "attempt", "tracker")]
        self._scale = None if scale is None else float(scale)
        self.skipped, self.in_a_row, self._attempt, self._tracker = whole


def _skips(scaler: Any, attempts: int, before: float, after: float, tracker: int) -> int:
    if before <= 0.0:
        return attempts  # a scale of zero never recovers: every gradient is 0 or NaN
    if after <= 0.0:
        return attempts
    backoff = math.log(scaler.get_backoff_factor())
    growth = math.log(scaler.get_growth_factor())
    change = math.log(after / before)
    most_growths = (tracker + attempts) // max(1, scaler.get_growth_interval())
    for growths in range(most_growths + 1):
        skips = (change - growths * growth) / backoff
        whole = round(skips)
        if abs(skips - whole) < 0.01 and 0 <= whole <= attempts - growths:  # noqa: PLR2004 - rounding of the logarithms
            return whole
    return 0
