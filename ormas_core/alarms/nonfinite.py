"""NaN and infinities in the loss and in gradients, told apart from a scaler's overflows."""

import math
from collections.abc import Iterator

from ormas_core.alarms.rule import State
from ormas_core.config import MonitorConfig
from ormas_core.events import (
    Event,
    Measurement,
    NonfiniteGradient,
    NonfiniteLoss,
    NotLearning,
    SkippedStep,
)


class NonfiniteRule:
    """Critical at the check that sees them, with every layer affected and the first one named.

    Where a loss scaler is at work, non-finite gradients are how it finds its scale: the update is
    skipped and said so as information. A scaler that skips `skipped_steps_limit` updates in a row
    is not finding it, and the run is not learning.
    """

    def __init__(self, config: MonitorConfig) -> None:
        self._config = config
        self._loss_open = False
        self._first_layer: str | None = None
        self._overflow_layer: str | None = None
        self._good_scale: float | None = None
        self._stuck = False

    def update(self, measurement: Measurement, /) -> Iterator[Event]:
        """Judge the loss, then the gradients."""
        yield from self._loss(measurement)
        if measurement.scale is None:
            yield from self._gradients(measurement)
        else:
            yield from self._scaled(measurement, measurement.scale)

    def _loss(self, measurement: Measurement) -> Iterator[Event]:
        if measurement.loss is None:
            return
        bad = not math.isfinite(measurement.loss)
        if bad and not self._loss_open:
            yield NonfiniteLoss(
                step=measurement.step,
                value=measurement.loss,
                replaced=measurement.loss_replaced,
            )
        self._loss_open = bad

    def _gradients(self, measurement: Measurement) -> Iterator[Event]:
        if not measurement.nonfinite:
            self._first_layer = None
            return
        first = measurement.nonfinite[0].layer
        if first == self._first_layer:
            return
        self._first_layer = first
        finite = {output.module: output.finite for output in measurement.outputs}
        after, before = _turn(measurement)
        yield NonfiniteGradient(
            step=measurement.step,
            layer=first,
            layers=measurement.nonfinite,
            after=after,
            before=before,
            output_finite=finite.get(first),
            loss=measurement.loss,
        )

    def _scaled(self, measurement: Measurement, scale: float) -> Iterator[Event]:
        if measurement.nonfinite:
            self._overflow_layer = measurement.nonfinite[0].layer
            yield SkippedStep(
                step=measurement.step,
                layer=self._overflow_layer,
                scale=scale,
                in_a_row=measurement.skipped_in_a_row + 1,
            )
        if measurement.skipped_in_a_row == 0:
            self._good_scale = scale
            self._stuck = False
            return
        if measurement.skipped_in_a_row >= self._config.skipped_steps_limit and not self._stuck:
            self._stuck = True
            yield NotLearning(
                step=measurement.step,
                layer=self._overflow_layer,
                skipped=measurement.skipped_in_a_row,
                scale_before=scale if self._good_scale is None else self._good_scale,
                scale=scale,
                since_step=measurement.step,
            )

    def state_dict(self) -> State:
        """Return the open episodes."""
        return {
            "loss_open": self._loss_open,
            "first_layer": self._first_layer,
            "overflow_layer": self._overflow_layer,
            "good_scale": self._good_scale,
            "stuck": self._stuck,
        }

    def load_state_dict(self, state: State, /) -> None:
        """Continue from a state that `state_dict` returned."""
        self._loss_open = state["loss_open"]
        self._first_layer = state["first_layer"]
        self._overflow_layer = state["overflow_layer"]
        self._good_scale = state["good_scale"]
        self._stuck = state["stuck"]


def _turn(measurement: Measurement) -> tuple[str | None, str | None]:
    """Return, going backward, the last module with a finite output gradient and the next one."""
    after: str | None = None
    for output in measurement.outputs:
        if not output.finite:
            return after, output.module
        after = output.module
    return after, None
