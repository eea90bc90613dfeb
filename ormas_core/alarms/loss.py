"""The loss against its own history: loss_spike, loss_recovered, loss_reduced."""

import math
from collections.abc import Iterator

from ormas_core.alarms.baseline import Baseline
from ormas_core.alarms.rule import State
from ormas_core.config import MonitorConfig
from ormas_core.events import Event, LossRecovered, LossReduced, LossSpike, Measurement


class LossRule:
    """A spike is `sigma` deviations and `loss_spike_ratio` times above the baseline.

    A ratio means nothing where the baseline is zero or negative; there the margin is
    `loss_spike_ratio` times the `sigma` deviations, relative to the spread alone. Values of an open
    episode stay out of the baseline.
    """

    def __init__(self, config: MonitorConfig) -> None:
        self._config = config
        self._baseline = Baseline(config.baseline_memory)
        self._open_since: int | None = None
        self._said_reduced = False

    def update(self, measurement: Measurement, /) -> Iterator[Event]:
        """Judge the loss of this check."""
        if measurement.loss_elements > 1 and not self._said_reduced:
            self._said_reduced = True
            yield LossReduced(step=measurement.step, elements=measurement.loss_elements)
        loss = measurement.loss
        if loss is None or not math.isfinite(loss):
            return
        if self._baseline.count >= self._config.warmup and loss > self._limit():
            if self._open_since is None:
                self._open_since = measurement.step
                yield LossSpike(
                    step=measurement.step,
                    value=loss,
                    normal=self._baseline.mean,
                    sigma=self._baseline.sigmas(loss),
                )
            return
        if self._open_since is not None:
            yield LossRecovered(
                step=measurement.step,
                value=loss,
                normal=self._baseline.mean,
                since_step=self._open_since,
            )
            self._open_since = None
        self._baseline.add(loss)

    def _limit(self) -> float:
        mean = self._baseline.mean
        deviations = self._config.sigma * self._baseline.spread
        if mean > 0.0:
            return max(mean + deviations, mean * self._config.loss_spike_ratio)
        return mean + self._config.loss_spike_ratio * deviations

    def state_dict(self) -> State:
        """Return the baseline and the open episode."""
        return {
            "baseline": self._baseline.state(),
            "open_since": self._open_since,
            "said_reduced": self._said_reduced,
        }

    def load_state_dict(self, state: State, /) -> None:
        """Continue from a state that `state_dict` returned."""
        self._baseline.load(state["baseline"])
        self._open_since = state["open_since"]
        self._said_reduced = state["said_reduced"]
