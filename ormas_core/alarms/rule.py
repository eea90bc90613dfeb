"""What an alarm rule is."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from ormas_core.events import Event, Measurement

State = Mapping[str, Any]
"""Plain numbers, strings, lists and mappings, so that any checkpoint format can hold it."""


class Rule(Protocol):
    """A pure judge of measurements: same measurements in, same events out.

    A rule reads nothing but the measurement and its own state, so a recorded run can be replayed
    through it with other thresholds.
    """

    def update(self, measurement: Measurement, /) -> Iterable[Event]:
        """Return what this measurement shows. Called once per check, in order."""

    def state_dict(self) -> State:
        """Return the state to continue from."""

    def load_state_dict(self, state: State, /) -> None:
        """Continue from a state that `state_dict` returned."""
