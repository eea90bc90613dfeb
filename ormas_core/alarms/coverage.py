"""Says when a check saw no gradient at all: nothing was learnt about the model then."""

from collections.abc import Iterator

from ormas_core.alarms.rule import State
from ormas_core.config import MonitorConfig
from ormas_core.events import Event, Measurement, NoGradients


class CoverageRule:
    """`no_gradients` once, at the first check without any gradient; the run end has the count."""

    def __init__(self, config: MonitorConfig) -> None:
        self._said = False

    def update(self, measurement: Measurement, /) -> Iterator[Event]:
        """Look for any gradient."""
        if measurement.has_gradient or self._said:
            return
        self._said = True
        absent = all(norm is None for norm in measurement.norms)
        yield NoGradients(step=measurement.step, absent=absent, layers=len(measurement.layers))

    def state_dict(self) -> State:
        """Return whether it was said."""
        return {"said": self._said}

    def load_state_dict(self, state: State, /) -> None:
        """Continue from a state that `state_dict` returned."""
        self._said = state["said"]
