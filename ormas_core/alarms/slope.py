"""Within one backward pass: gradients that grow or vanish by a steady factor from layer to layer.

The other rules compare a layer with its own past. Here layers of one kind are compared with each
other, so a network that was built wrong shows at the first check, and before anything overflows.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ormas_core.across import GradientSlope
from ormas_core.alarms.rule import State
from ormas_core.config import MonitorConfig
from ormas_core.events import Event, Measurement
from ormas_core.terms import Signal, Trend

_LEAST_RATE: Final = 0.2
"""Decades per layer, a factor of 1.6. Sound networks of any depth were below 0.15."""

_LAG: Final = 4
"""Layers over which a step is averaged: a block's layers differ from each other."""

_LEAST_STEP: Final = _LEAST_RATE / 2
"""Decades per layer over every `_LAG` layers of a run, so that a run is one."""

_MOST_SCATTER: Final = 0.1
"""Median distance from the line, and..."""

_MOST_CLIFF: Final = 0.5
"""...largest single step, as parts of the whole rise: a cliff is no slope."""

_EASED: Final = 0.5
"""Part of the decades that is enough while an episode is open, or where the end was overflow."""

_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "float16": (65504.0, 2.0**-24),
    "bfloat16": (3.3895313892515355e38, 2.0**-133),
    "float32": (3.4028234663852886e38, 2.0**-149),
    "float64": (1.7976931348623157e308, 5e-324),
}
"""Type -> its largest number, and its smallest one above zero."""

_NUMBER: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class _Run:
    """A stretch of a family in which log10 of the signal follows a line.

    Attributes:
        layers: names, going backward.
        values: the signal.
        rate: decades per layer.
        beyond: the next layer of the family, if the type's range was left there.
    """

    signal: Signal
    layers: Sequence[str]
    values: Sequence[float]
    rate: float
    beyond: str | None

    @property
    def trend(self) -> Trend:
        return Trend.GROWING if self.rate > 0.0 else Trend.VANISHING

    @property
    def decades(self) -> float:
        return abs(self.rate) * (len(self.layers) - 1)


class SlopeRule:
    """Fits a line to log10 of the signal against depth, over runs of layers of one kind.

    Layers of one kind are those whose names differ in one number. The signal is the largest
    absolute gradient at each layer's output, which does not depend on the layer's size; where
    outputs are not seen, the norm of the parameters' gradients. A run is reported when it has
    `slope_min_layers` layers, rises or falls by `slope_min_decades` along its line and by a factor
    of 1.6 a layer at least, and when the points are close to the line. One check is enough.

    Accepts every stage: a clipping multiplies all layers alike, and outputs are before it.
    """

    def __init__(self, config: MonitorConfig) -> None:
        self._config = config
        self._open: Trend | None = None

    def update(self, measurement: Measurement, /) -> Iterator[Event]:
        """Look for the longest run of this check."""
        if not measurement.has_gradient and not any(measurement.output_peaks):
            return
        runs = [run for run in self._runs(measurement) if self._counts(run)]
        if not runs:
            self._open = None
            return
        run = max(runs, key=lambda found: (len(found.layers), found.decades))
        if run.trend is not self._open:
            self._open = run.trend
            yield _event(run, measurement)

    def _runs(self, measurement: Measurement) -> Iterator[_Run]:
        least = self._config.slope_min_layers
        for family in _families(measurement.layers, least):
            peaks = [
                (measurement.layers[i], measurement.output_peaks[i])
                for i in family
                if measurement.output_peaks and measurement.output_peaks[i] is not None
            ]
            if len(peaks) >= least:
                yield from _runs(Signal.OUTPUTS, peaks, least)
            else:
                norms = [(measurement.layers[i], measurement.norms[i]) for i in family]
                yield from _runs(Signal.PARAMETERS, norms, least)

    def _counts(self, run: _Run) -> bool:
        eased = run.beyond is not None or run.trend is self._open
        needed = self._config.slope_min_decades * (_EASED if eased else 1.0)
        return abs(run.rate) >= _LEAST_RATE and run.decades >= needed

    def state_dict(self) -> State:
        """Return the open episode."""
        return {"open": self._open.value if self._open else None}

    def load_state_dict(self, state: State, /) -> None:
        """Continue from a state that `state_dict` returned."""
        self._open = Trend(state["open"]) if state["open"] else None


def _families(layers: Sequence[str], least: int) -> list[list[int]]:
    """Return the places of layers whose names differ in one number, in backward order."""
    found: dict[tuple[str, str], list[int]] = {}
    for place, name in enumerate(layers):
        for number in _NUMBER.finditer(name):
            found.setdefault((name[: number.start()], name[number.end() :]), []).append(place)
    return [places for places in found.values() if len(places) >= least]


def _runs(signal: Signal, series: Sequence[tuple[str, float | None]], least: int) -> Iterator[_Run]:
    """Yield the runs of one family, each within a stretch of finite values above zero."""
    start = 0
    for end in range(len(series) + 1):
        value = series[end][1] if end < len(series) else None
        if value is not None and math.isfinite(value) and value > 0.0:
            continue
        stretch = series[start:end]
        logs = [math.log10(known) for _, known in stretch if known is not None]
        for first, last in _straight(logs):
            fitted = _fit(logs, first, last, least)
            if fitted is None:
                continue
            top, bottom, rate = fitted
            lost = value is not None and (value == 0.0 if rate < 0.0 else not math.isfinite(value))
            yield _Run(
                signal=signal,
                layers=[name for name, _ in stretch[top : bottom + 1]],
                values=[known for _, known in stretch[top : bottom + 1] if known is not None],
                rate=rate,
                beyond=series[end][0] if lost and bottom == len(logs) - 1 else None,
            )
        start = end + 1


def _straight(logs: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Yield first and last place of each longest stretch that goes one way all the time."""
    start, way = 0, 0
    for place in range(max(0, len(logs) - _LAG) + 1):
        step = (logs[place + _LAG] - logs[place]) / _LAG if place + _LAG < len(logs) else 0.0
        now = (step >= _LEAST_STEP) - (step <= -_LEAST_STEP)
        if now != way:
            if way:
                yield start, place - 1 + _LAG
            start, way = place, now


def _fit(logs: Sequence[float], first: int, last: int, least: int) -> tuple[int, int, float] | None:
    """Return a run without the flat layers at its ends, and its rate; None where it is no line."""
    if last - first + 1 < least:
        return None
    rate = _theil(logs[first : last + 1])
    for _ in range(_LAG - 1):
        first += abs(logs[first + 1] - logs[first] - rate) > abs(rate) / 2
        last -= abs(logs[last] - logs[last - 1] - rate) > abs(rate) / 2
    points = logs[first : last + 1]
    if len(points) < least:
        return None
    rate = _theil(points)
    rise = abs(rate) * (len(points) - 1)
    level = median(value - rate * place for place, value in enumerate(points))
    scatter = median(abs(value - rate * at - level) for at, value in enumerate(points))
    cliff = max(abs(b - a) for a, b in itertools.pairwise(points))
    if scatter > _MOST_SCATTER * rise or cliff > _MOST_CLIFF * rise:
        return None
    return first, last, rate


def _theil(points: Sequence[float]) -> float:
    """Return the median of the slopes between each point and the one half the way further on.

    Source: Theil's incomplete method (H. Theil, Proc. KNAW 53, 1950), which a third of bad points
    cannot move far.
    """
    half = len(points) // 2
    return median((points[i + half] - points[i]) / half for i in range(len(points) - half))


def _event(run: _Run, measurement: Measurement) -> GradientSlope:
    return GradientSlope(
        step=measurement.step,
        trend=run.trend,
        signal=run.signal,
        factor=10.0**run.rate,
        first=run.layers[0],
        last=run.layers[-1],
        layers=len(run.layers),
        first_value=run.values[0],
        last_value=run.values[-1],
        gradient_type=measurement.gradient_type,
        layers_left=_layers_left(run, measurement),
        beyond=run.beyond,
    )


def _layers_left(run: _Run, measurement: Measurement) -> float | None:
    """Return for how many more layers the type has room at this rate; a loss scale takes of it."""
    limits = _RANGES.get(measurement.gradient_type)
    if limits is None:
        return None
    limit = limits[0] if run.rate > 0.0 else limits[1]
    scale = measurement.scale if measurement.scale and math.isfinite(measurement.scale) else 1.0
    room = math.log10(limit) - math.log10(run.values[-1]) - math.log10(abs(scale))
    return max(0.0, room / run.rate)
