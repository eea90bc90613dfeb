"""The alarm engine: pure rules over measurements, one file per family."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from ormas_core.alarms.baseline import Baseline
from ormas_core.alarms.clipping import ClippingRule
from ormas_core.alarms.coverage import CoverageRule
from ormas_core.alarms.experts import ExpertRule
from ormas_core.alarms.gradient import GradientRule
from ormas_core.alarms.loss import LossRule
from ormas_core.alarms.mode import ModeRule
from ormas_core.alarms.nonfinite import NonfiniteRule
from ormas_core.alarms.rule import Rule, State
from ormas_core.alarms.slope import SlopeRule
from ormas_core.alarms.statistics import StatisticsRule
from ormas_core.config import MonitorConfig
from ormas_core.events import Event, Measurement

RULES: Final[Mapping[str, Callable[[MonitorConfig], Rule]]] = {
    "coverage": CoverageRule,
    "mode": ModeRule,
    "statistics": StatisticsRule,
    "nonfinite": NonfiniteRule,
    "gradient": GradientRule,
    "slope": SlopeRule,
    "clipping": ClippingRule,
    "experts": ExpertRule,
    "loss": LossRule,
}
"""Every rule, in the order in which their events of one check are written."""


_LANES: Final = "lanes"


class AlarmEngine:
    """All rules of a run as one.

    Measurements of several lanes (optimizers that step apart) are judged apart, each by rules with
    a memory of their own; what these say bears the lane.
    """

    def __init__(self, config: MonitorConfig) -> None:
        self._config = config
        self._lanes: dict[str, dict[str, Rule]] = {"": self._make()}

    def _make(self) -> dict[str, Rule]:
        return {name: make(self._config) for name, make in RULES.items()}

    def update(self, measurement: Measurement) -> list[Event]:
        """Return what all rules say about one measurement."""
        lane = measurement.lane
        if lane not in self._lanes:
            self._lanes[lane] = self._make()
        rules = self._lanes[lane].values()
        events = [event for rule in rules for event in rule.update(measurement)]
        return [replace(event, lane=lane) for event in events] if lane else events

    def state_dict(self) -> State:
        """Return the state of every rule, and those of further lanes under a name of their own."""
        found: dict[str, Any] = {
            lane: {name: rule.state_dict() for name, rule in rules.items()}
            for lane, rules in self._lanes.items()
        }
        first = found.pop("")
        return {**first, _LANES: found} if found else first

    def load_state_dict(self, state: State) -> None:
        """Continue from a state that `state_dict` returned, or leave everything as it is.

        Raises:
            Exception: the state is of another kind, whatever its rules make of that.
        """
        lanes: dict[str, dict[str, Rule]] = {}
        for lane, saved in {"": state, **state.get(_LANES, {})}.items():
            lanes[str(lane)] = self._make()
            for name, rule in lanes[str(lane)].items():
                rule.load_state_dict(saved[name])
        self._lanes = lanes


__all__ = ["RULES", "AlarmEngine", "Baseline", "Rule", "State"]
