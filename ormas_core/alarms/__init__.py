"""The alarm engine: pure rules over measurements, one file per family."""

from collections.abc import Callable, Mapping
from typing import Final

from ormas_core.alarms.baseline import Baseline
from ormas_core.alarms.clipping import ClippingRule
from ormas_core.alarms.coverage import CoverageRule
from ormas_core.alarms.experts import ExpertRule
from ormas_core.alarms.gradient import GradientRule
from ormas_core.alarms.loss import LossRule
from ormas_core.alarms.nonfinite import NonfiniteRule
from ormas_core.alarms.rule import Rule, State
from ormas_core.alarms.slope import SlopeRule
from ormas_core.config import MonitorConfig
from ormas_core.events import Event, Measurement

RULES: Final[Mapping[str, Callable[[MonitorConfig], Rule]]] = {
    "coverage": CoverageRule,
    "nonfinite": NonfiniteRule,
    "gradient": GradientRule,
    "slope": SlopeRule,
    "clipping": ClippingRule,
    "experts": ExpertRule,
    "loss": LossRule,
}
"""Every rule, in the order in which their events of one check are written."""


class AlarmEngine:
    """All rules of a run as one."""

    def __init__(self, config: MonitorConfig) -> None:
        self._config = config
        self._rules = {name: make(config) for name, make in RULES.items()}

    def update(self, measurement: Measurement) -> list[Event]:
        """Return what all rules say about one measurement."""
        return [event for rule in self._rules.values() for event in rule.update(measurement)]

    def state_dict(self) -> State:
        """Return the state of every rule."""
        return {name: rule.state_dict() for name, rule in self._rules.items()}

    def load_state_dict(self, state: State) -> None:
        """Continue from a state that `state_dict` returned, or leave everything as it is.

        Raises:
            Exception: the state is of another kind, whatever its rules make of that.
        """
        rules = {name: make(self._config) for name, make in RULES.items()}
        for name, rule in rules.items():
            rule.load_state_dict(state[name])
        self._rules = rules


__all__ = ["RULES", "AlarmEngine", "Baseline", "Rule", "State"]
