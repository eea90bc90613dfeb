"""Modules that go into evaluation mode on the way, as after a validation by hand."""

from collections.abc import Iterator

from ormas_core.alarms.rule import State
from ormas_core.config import MonitorConfig
from ormas_core.events import Event, Measurement
from ormas_core.model_events import EvalMode, SwitchedToEval


class ModeRule:
    """What is in evaluation mode at the first check is meant to be; what joins later is not.

    Dropout is off in such modules, and batch norms use and keep the statistics they have. One
    check is enough. An episode ends, without an event, when the modules train again.
    """

    def __init__(self, config: MonitorConfig) -> None:
        self._first: list[str] | None = None
        self._now: list[str] = []
        self._step = 0

    def update(self, measurement: Measurement, /) -> Iterator[Event]:
        """Compare the modes of this check with those of the first one and the last one."""
        found = list(measurement.evaluating)
        if self._first is None:
            self._first = found
            if found:
                yield EvalMode(step=measurement.step, modules=tuple(found))
        else:
            fresh = [name for name in found if name not in self._first and name not in self._now]
            if fresh:
                yield SwitchedToEval(step=measurement.step, modules=tuple(fresh), before=self._step)
        self._now, self._step = found, measurement.step

    def state_dict(self) -> State:
        """Return the modes of the first check and of the last one."""
        return {"first": self._first, "now": self._now, "step": self._step}

    def load_state_dict(self, state: State, /) -> None:
        """Continue from a state that `state_dict` returned."""
        self._first, self._now, self._step = state["first"], state["now"], state["step"]
