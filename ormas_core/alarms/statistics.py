"""Batch norms whose running statistics and parameters do not go together."""

from collections import Counter
from collections.abc import Iterator

from ormas_core.alarms.rule import State
from ormas_core.config import MonitorConfig
from ormas_core.events import Event, Measurement
from ormas_core.model_events import StatisticsAtOdds


class StatisticsRule:
    """Statistics that drift where the parameters are frozen, or stand still where they train.

    Drifting ones are named once they have drifted in as many checks as make a baseline: whatever
    moves parameters without a gradient, such as an average of another network, has shown itself by
    then. Untouched ones are named at the first check after an update, since one forward pass in
    training mode moves them. Each is named once.
    """

    def __init__(self, config: MonitorConfig) -> None:
        self._warmup = config.warmup
        self._drifted = Counter[str]()
        self._untouched: set[str] = set()

    def update(self, measurement: Measurement, /) -> Iterator[Event]:
        """Count the drifting ones, and look for untouched ones that train."""
        self._drifted.update(measurement.drifting)
        trained = {
            layer
            for layer, norm in zip(measurement.layers, measurement.norms, strict=True)
            if measurement.step > 0 and norm is not None and norm > 0.0
        }
        drifting = [n for n in measurement.drifting if self._drifted[n] == self._warmup]
        untouched = [n for n in measurement.untouched if n in trained and n not in self._untouched]
        self._untouched.update(untouched)
        if drifting or untouched:
            yield StatisticsAtOdds(
                step=measurement.step, drifting=tuple(drifting), untouched=tuple(untouched)
            )

    def state_dict(self) -> State:
        """Return in how many checks each drifted, and which untouched ones were named."""
        return {"drifted": dict(self._drifted), "untouched": sorted(self._untouched)}

    def load_state_dict(self, state: State, /) -> None:
        """Continue from a state that `state_dict` returned."""
        self._drifted = Counter({str(n): int(count) for n, count in state["drifted"].items()})
        self._untouched = {str(n) for n in state["untouched"]}
