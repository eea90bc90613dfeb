"""Per layer, against its own history: no_gradient, vanishing, exploding."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ormas_core.alarms.baseline import Baseline
from ormas_core.alarms.experts import without_rows
from ormas_core.alarms.rule import State
from ormas_core.config import MonitorConfig
from ormas_core.events import Alarm, AlarmCleared, Event, Measurement
from ormas_core.terms import Diagnosis

_GAP_FACTOR: Final = 3
"""A layer that is idle now and then must be idle this many times longer than ever before."""


@dataclass(slots=True)
class _Layer:
    """What is remembered of one layer."""

    baseline: Baseline
    pending: Diagnosis | None = None
    pending_checks: int = 0
    open: Diagnosis | None = None
    open_since: int = 0
    zeros: int = 0
    longest_zeros: int = 0


class GradientRule:
    """Compares log10 of each layer's gradient norm with the layer's own baseline.

    A value alarms when it is at least `sigma` standard deviations and `alarm_min_decades` off in
    `alarm_confirmations` consecutive checks, or `alarm_decades_at_once` off in one. A norm of
    exactly zero is infinitely many decades off, so one check is enough, unless the layer has been
    idle before (a rare branch, an expert): then the gap must be three times its longest one. Before
    a baseline is made, the gap must be three times the warm-up. Where an expert is seen to get no
    token in a check, that it has no gradient is no gap.

    A gradient may fall with its loss: the decades by which the loss is below its own baseline are
    not held against it, since that is what an easy batch and a fitted model look like.

    Suspicious values, confirmed or not, stay out of the baseline. Accepts every stage.
    """

    def __init__(self, config: MonitorConfig) -> None:
        self._config = config
        self._longest_gap = _GAP_FACTOR * config.warmup
        self._layers: dict[str, _Layer] = {}
        self._loss = Baseline(config.baseline_memory)

    def update(self, measurement: Measurement, /) -> Iterator[Event]:
        """Judge each layer. A check without any gradient says nothing about single layers."""
        if not measurement.has_gradient:
            return
        fallen = self._loss_fallen(measurement.loss)
        idle = without_rows(measurement)
        for name, norm in zip(measurement.layers, measurement.norms, strict=True):
            layer = self._layers.get(name)
            if layer is None:
                layer = self._layers[name] = _Layer(Baseline(self._config.baseline_memory))
            if norm is None or norm == 0.0:
                if name in idle:  # no token came: that is for the rule of experts to judge
                    continue
                yield from self._zero(name, layer, measurement, absent=norm is None)
            elif math.isfinite(norm):
                yield from self._value(name, layer, measurement, norm, fallen)

    def _loss_fallen(self, loss: float | None) -> float:
        """Return the decades by which the loss is below its baseline, and take it into that."""
        if loss is None or not math.isfinite(loss) or loss < 0.0:
            return 0.0
        if loss == 0.0:
            return math.inf
        value = math.log10(loss)
        known = self._loss.count >= self._config.warmup
        fallen = max(0.0, self._loss.mean - value) if known else 0.0
        self._loss.add(value)
        return fallen

    def _zero(
        self, name: str, layer: _Layer, measurement: Measurement, *, absent: bool
    ) -> Iterator[Event]:
        layer.zeros += 1
        layer.pending, layer.pending_checks = None, 0
        if layer.open is Diagnosis.NO_GRADIENT or layer.baseline.count == 0:
            return
        if layer.zeros < self._needed_zeros(layer):
            return
        yield from self._close(name, layer, measurement, 0.0)
        yield self._open(
            name,
            layer,
            measurement,
            Diagnosis.NO_GRADIENT,
            norm=0.0,
            detail="the parameters have no .grad" if absent else "the gradient is exactly zero",
        )

    def _needed_zeros(self, layer: _Layer) -> int:
        warming = layer.baseline.count < self._config.warmup
        least = self._longest_gap if warming else 1
        if layer.longest_zeros == 0:
            return least
        return max(least, self._config.alarm_confirmations, _GAP_FACTOR * layer.longest_zeros)

    def _value(
        self, name: str, layer: _Layer, measurement: Measurement, norm: float, fallen: float
    ) -> Iterator[Event]:
        # A long gap that alarmed is a fault and not learnt; a short one is how this layer works.
        if layer.open is not Diagnosis.NO_GRADIENT or layer.zeros <= self._longest_gap:
            layer.longest_zeros = max(layer.longest_zeros, layer.zeros)
        layer.zeros = 0
        value = math.log10(norm)
        if layer.baseline.count < self._config.warmup:
            yield from self._close(name, layer, measurement, norm)
            layer.baseline.add(value)
            return
        off = value - layer.baseline.mean
        if off < 0.0:
            off = min(0.0, off + fallen)
        found = self._diagnose(layer.baseline, off)
        if found is None:
            layer.pending, layer.pending_checks = None, 0
            yield from self._close(name, layer, measurement, norm)
            layer.baseline.add(value)
            return
        if found is layer.open:
            layer.pending, layer.pending_checks = None, 0
            return
        layer.pending_checks = layer.pending_checks + 1 if found is layer.pending else 1
        layer.pending = found
        if (
            abs(off) >= self._config.alarm_decades_at_once
            or layer.pending_checks >= self._config.alarm_confirmations
        ):
            yield from self._close(name, layer, measurement, norm)
            detail = f"{abs(value - layer.baseline.mean):.1f} decades off"
            yield self._open(name, layer, measurement, found, norm=norm, detail=detail)

    def _diagnose(self, baseline: Baseline, off: float) -> Diagnosis | None:
        sigmas = baseline.sigmas(baseline.mean + off)
        if abs(off) < self._config.alarm_min_decades or sigmas < self._config.sigma:
            return None
        return Diagnosis.EXPLODING if off > 0 else Diagnosis.VANISHING

    def _open(
        self,
        name: str,
        layer: _Layer,
        measurement: Measurement,
        found: Diagnosis,
        *,
        norm: float,
        detail: str,
    ) -> Alarm:
        layer.open, layer.open_since = found, measurement.step
        layer.pending, layer.pending_checks = None, 0
        return Alarm(
            step=measurement.step,
            layer=name,
            diagnosis=found,
            value=norm,
            normal=_power(layer.baseline.mean),
            sigma=layer.baseline.sigmas(math.log10(norm)) if norm > 0.0 else math.inf,
            stage=measurement.stage,
            detail=detail,
        )

    def _close(
        self, name: str, layer: _Layer, measurement: Measurement, norm: float
    ) -> Iterator[AlarmCleared]:
        if layer.open is None:
            return
        yield AlarmCleared(
            step=measurement.step,
            layer=name,
            diagnosis=layer.open,
            value=norm,
            normal=_power(layer.baseline.mean),
            since_step=layer.open_since,
        )
        layer.open = None

    def state_dict(self) -> State:
        """Return each layer's baseline and episode."""
        layers = {name: _dump(layer) for name, layer in self._layers.items()}
        return {"layers": layers, "loss": self._loss.state()}

    def load_state_dict(self, state: State, /) -> None:
        """Continue from a state that `state_dict` returned."""
        self._loss.load(state["loss"])
        self._layers = {name: _load(saved, self._config) for name, saved in state["layers"].items()}


def _power(exponent: float) -> float:
    try:
        return float(10.0**exponent)
    except OverflowError:
        return math.inf


def _dump(layer: _Layer) -> dict[str, Any]:
    return {
        "baseline": layer.baseline.state(),
        "pending": layer.pending.value if layer.pending else None,
        "pending_checks": layer.pending_checks,
        "open": layer.open.value if layer.open else None,
        "open_since": layer.open_since,
        "zeros": layer.zeros,
        "longest_zeros": layer.longest_zeros,
    }


def _load(saved: dict[str, Any], config: MonitorConfig) -> _Layer:
    baseline = Baseline(config.baseline_memory)
    baseline.load(saved["baseline"])
    return _Layer(
        baseline=baseline,
        pending=Diagnosis(saved["pending"]) if saved["pending"] else None,
        pending_checks=saved["pending_checks"],
        open=Diagnosis(saved["open"]) if saved["open"] else None,
        open_since=saved["open_since"],
        zeros=saved["zeros"],
        longest_zeros=saved["longest_zeros"],
    )
