"""One check: everything read on the device, brought over once, returned as values."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ormas_core.events import Event, Measurement
from ormas_core.hooks import _torch, statistics
from ormas_core.hooks.attach import ForwardWatch
from ormas_core.hooks.gather import Gather
from ormas_core.hooks.lanes import Lane
from ormas_core.hooks.losses import LossNotes
from ormas_core.hooks.modes import evaluating, starting_state
from ormas_core.hooks.running import RunningStatistics
from ormas_core.hooks.scaling import ScaleLedger
from ormas_core.hooks.select import Selection
from ormas_core.host import PLAIN_LOOP, Host
from ormas_core.ranks import world_size
from ormas_core.terms import ChannelSummary, NonfiniteCount, OutputGradient, Stage

_Values = list[tuple[str, Tensor]]
_ERROR_LIMIT: Final = 200
_CLIP_EPSILON: Final = 1e-6
"""What torch adds to the total norm before it divides by it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one check read.

    Attributes:
        measurement: the numbers the alarm rules judge and the record keeps.
        channel_max: layer -> maximum of each output channel, shape (channels,).
        input_peak: layer -> largest absolute input, for the layers where it was wanted.
        called: watched layers whose forward call was seen.
        loss_problem: why a loss that was given could not be used; empty if none was refused.
        forward_failures: module -> why its output could not be observed.
        unreadable: watched layer -> why its gradient could not be read.
    """

    measurement: Measurement
    channel_max: Mapping[str, NDArray[np.float64]]
    input_peak: Mapping[str, float]
    called: frozenset[str]
    loss_problem: str
    forward_failures: Mapping[str, str]
    unreadable: Mapping[str, str]


@dataclass(slots=True)
class _Gradients:
    """Gradient numbers still on the device."""

    stage: Stage
    layers: list[str] = field(default_factory=list)
    values: _Values = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)


class Collector:
    """Reads a selection of layers, one sampled step at a time.

    Args:
        selection: the layers.
        scaler: a `GradScaler`, or None.
        host: what it does with gradients and losses after the check.
    """

    def __init__(self, selection: Selection, scaler: Any, host: Host = PLAIN_LOOP) -> None:
        self._selection = selection
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._ledger = ScaleLedger()
        self._host = host
        # The total norm is that of all parameters that the optimizer moves.
        self._whole = len(selection.layers) == len(selection.owners) and not selection.sharded
        # A process-wide hook is a reason for compiled code to be compiled again: stay away from it.
        self.watch = ForwardWatch(
            () if selection.compiled else selection.modules,
            (layer.name for layer in selection.layers),
            selection.experts,
        )
        self.losses = LossNotes()
        self._running = RunningStatistics(selection.owners)

    @property
    def skipped(self) -> int:
        """Updates that the loss scaler is known to have skipped."""
        return self._ledger.skipped

    @property
    def ledger(self) -> ScaleLedger:
        """What the loss scaler is known to have done."""
        return self._ledger

    def settle(self, attempt: int) -> None:
        """Ask the loss scaler, if there is one, what it did since the last check.

        Args:
            attempt: calls of `step()` so far; the update of each is over.
        """
        if self._scaler is not None:
            gather = Gather()
            slots = self._add_scale(gather)
            host = gather.fetch()
            self._observe_scale(attempt, [float(host[slot][0]) for slot in slots])

    def first_events(self) -> Iterator[Event]:
        """Return what can be said of the model's values before the first step."""
        return starting_state(self._selection)

    def arm(self) -> None:
        """Observe the forward passes from here on, until `read` or `disarm`.

        Unless a module has been compiled since: its code would be compiled again for the hook.
        """
        if not any(_torch.is_compiled(module) for _, module in self._selection.modules):
            self.watch.attach()

    def disarm(self) -> None:
        """Stop observing and forget."""
        self.watch.detach()
        self.watch.clear()
        self.losses.clear()

    def read(self, attempt: int, stage: Stage, lane: Lane) -> Reading:
        """Read the gradients as they are now and finish the check: one host copy per device.

        Args:
            attempt: calls of `step()` before this one.
            stage: what the host says of the gradients; `scaled` is found out here.
            lane: whose parameters are read.
        """
        began = time.perf_counter_ns()
        self.watch.detach()
        try:
            reading = self._finish(attempt, self._gradients(stage, lane))
            reading = _of_lane(reading, lane.name)
            cost_ns = time.perf_counter_ns() - began
            return replace(reading, measurement=replace(reading.measurement, cost_ns=cost_ns))
        finally:
            self.disarm()

    def read_again(self, before: Reading, stage: Stage, lane: Lane) -> Reading:
        """Return a reading of this step with the gradients as they are now, and all else as it was.

        For a step of several backward passes, of which the first was taken for the only one.
        """
        gradients, gather = self._gradients(stage, lane), Gather()
        slots = [gather.add(norm) for norm in gradients.norms]
        host, measured = gather.fetch(), before.measurement
        exact, bad = self._examine(gradients, [float(host[slot][0]) for slot in slots])
        scale = measured.scale if gradients.stage is Stage.SCALED else None
        norms = _layer_norms(gradients, exact, 1.0 if scale is None else scale)
        measurement = replace(
            measured,
            norms=tuple(norms.get(name) for name in measured.layers),
            nonfinite=tuple(bad[name] for name in measured.layers if name in bad),
            clip_factor=self._clip_factor(gradients, norms.values()),
        )
        return replace(before, measurement=measurement)

    def _gradients(self, stage: Stage, lane: Lane) -> _Gradients:
        found = _Gradients(stage=self._stage(stage, lane.optimizer))
        owned = lane.parameters()
        for layer, trainable in self._selection.readable():
            own = [p for p in trainable if owned is None or id(p) in owned]
            if not own:
                continue
            try:
                values = [statistics.gradient_values(p.grad) for p in own if p.grad is not None]
            except (RuntimeError, NotImplementedError) as error:  # a layout that torch cannot open
                found.unreadable[layer.name] = f"{type(error).__name__}: {error}"[:_ERROR_LIMIT]
                continue
            found.layers.append(layer.name)
            found.values += [(layer.name, value) for value in values]
        found.norms = statistics.norms([value for _, value in found.values])
        return found

    def _stage(self, stage: Stage, optimizer: Any) -> Stage:
        if self._scaler is not None and not _torch.has_unscaled(self._scaler, optimizer):
            return Stage.SCALED
        return stage

    def _finish(self, attempt: int, gradients: _Gradients) -> Reading:
        gather = Gather()
        norm_slots = [gather.add(norm) for norm in gradients.norms]
        loss_slots = self.losses.add_to(gather)
        maxima = dict(self.watch.channel_max)
        maxima_slots = [gather.add(value) for value in maxima.values()]
        inputs = dict(self.watch.input_peak)
        input_slots = [gather.add(value) for value in inputs.values()]
        peaks = dict(self.watch.output_peak)
        peak_slots = [gather.add(value) for value in peaks.values()]
        scaler_slots = self._add_scale(gather)
        running_slots = self._running.add_to(gather)
        host = gather.fetch()

        self._running.take(host, running_slots)
        scale = self._observe_scale(attempt, [float(host[slot][0]) for slot in scaler_slots])
        divisor = scale if scale is not None and gradients.stage is Stage.SCALED else 1.0
        exact, bad = self._examine(gradients, [float(host[slot][0]) for slot in norm_slots])
        order = self._backward_order(gradients.layers)
        norms = _layer_norms(gradients, exact, divisor)
        loss = self.losses.value(host, loss_slots, scale)
        found = {name: float(host[at][0]) for name, at in zip(peaks, peak_slots, strict=True)}
        channel_max = dict(zip(maxima, (host[slot] for slot in maxima_slots), strict=True))
        measurement = Measurement(
            step=attempt - self._ledger.skipped,
            attempt=attempt,
            stage=gradients.stage,
            scale=scale,
            skipped_in_a_row=self._ledger.in_a_row,
            loss=loss,
            loss_elements=self.losses.elements,
            loss_replaced=self._host.replaces_loss and loss is not None and not math.isfinite(loss),
            layers=tuple(order),
            norms=tuple(norms[name] for name in order),
            nonfinite=tuple(bad[name] for name in order if name in bad),
            outputs=self._outputs(found) if bad else (),
            output_peaks=_layer_peaks(order, found, 1.0 if scale is None else scale),
            gradient_type=statistics.narrowest(
                self.watch.types or {value.dtype for _, value in gradients.values}
            ),
            experts=self.watch.rows.take(),
            channels=tuple(_summary(name, values) for name, values in channel_max.items()),
            evaluating=evaluating(self._selection.model),
            drifting=self._running.drifting,
            untouched=self._running.untouched,
            clip_norm=self._host.clip_norm,
            clip_factor=self._clip_factor(gradients, norms.values()),
        )
        return Reading(
            measurement,
            channel_max,
            {name: float(host[slot][0]) for name, slot in zip(inputs, input_slots, strict=True)},
            frozenset(self.watch.called),
            loss_problem=self.losses.problem,
            forward_failures=dict(self.watch.failures),
            unreadable=gradients.unreadable,
        )

    def _add_scale(self, gather: Gather) -> list[int]:
        tensors = _torch.scaler_tensors(self._scaler)
        return [gather.add(t) for t in tensors if isinstance(t, Tensor)]

    def _observe_scale(self, attempt: int, found: Sequence[float]) -> float | None:
        if self._scaler is None:
            return None
        if not found:
            return float(self._scaler.get_scale())  # no loss was scaled yet
        scale, tracker = found[0], int(found[1]) if len(found) > 1 else 0
        self._ledger.observe(self._scaler, attempt, scale, tracker)
        return scale

    def _examine(
        self, gradients: _Gradients, found: list[float]
    ) -> tuple[list[float], dict[str, NonfiniteCount]]:
        """Look again at norms that may lie: overflow and underflow are not Inf and zero.

        One more copy to the host, made only when something is non-finite, or exactly zero in a type
        as wide as the accumulator.
        """
        suspects = [
            i
            for i, norm in enumerate(found)
            if not math.isfinite(norm) or (norm == 0.0 and _as_wide(gradients.values[i][1]))
        ]
        if not suspects:
            return found, {}
        gather = Gather()
        for i in suspects:
            value = gradients.values[i][1]
            gather.add(statistics.nonfinite(value))
            gather.add(statistics.magnitude(value))
            gather.add(statistics.rescaled_norm(value))
        host = gather.fetch()
        counts: dict[str, tuple[int, int]] = {}
        for at, i in enumerate(suspects):
            (nan, inf), peak, norm = host[3 * at : 3 * at + 3]
            if nan or inf:
                layer = gradients.values[i][0]
                before = counts.get(layer, (0, 0))
                counts[layer] = (before[0] + int(nan), before[1] + int(inf))
            else:
                found[i] = float(norm[0]) if peak[0] > 0.0 else 0.0
        return found, {
            layer: NonfiniteCount(layer=layer, nan=nan, inf=inf)
            for layer, (nan, inf) in counts.items()
        }

    def _clip_factor(self, gradients: _Gradients, norms: Iterable[float | None]) -> float | None:
        """Return what the host's clipping will multiply by, as `clip_grad_norm_` works it out."""
        clip_norm = self._host.clip_norm
        if clip_norm is None or gradients.stage is Stage.CLIPPED:
            return None
        if not self._whole or gradients.unreadable:
            return None
        total = math.hypot(*(norm for norm in norms if norm is not None))
        return min(1.0, clip_norm / (total + _CLIP_EPSILON)) if math.isfinite(total) else None

    def _backward_order(self, layers: Sequence[str]) -> list[str]:
        """Sort by the last completed call, latest first.

        A layer whose own call has no place (its parameters are used directly, or it was only
        recomputed) takes that of the layer before it in the model.
        """
        place, places = 0, {}
        for index, name in enumerate(layers):
            place = self.watch.order.get(name, place)
            places[name] = (place, index)
        return sorted(layers, key=places.__getitem__, reverse=True)

    def _outputs(self, peaks: Mapping[str, float]) -> tuple[OutputGradient, ...]:
        order = self.watch.order
        names = list(peaks)  # as the gradients arrived
        if all(name in order for name in names):
            # Of modules that share an output tensor, the inner one comes later going backward.
            names.sort(key=order.__getitem__, reverse=True)
        # One that is finite here proves nothing: the gradient may come from another process.
        several = world_size() > 1
        found = (OutputGradient(module=name, finite=math.isfinite(peaks[name])) for name in names)
        return tuple(output for output in found if not (several and output.finite))


def _of_lane(reading: Reading, lane: str) -> Reading:
    """Return what is one optimizer's own: forward passes run through the layers of others too."""
    if not lane:
        return reading
    found = reading.measurement
    own = frozenset(found.layers)
    measurement = replace(
        found,
        lane=lane,
        channels=tuple(summary for summary in found.channels if summary.layer in own),
        experts=tuple(
            rows
            for rows in found.experts
            if any(layer.startswith(f"{rows.container}.") for layer in own)
        ),
    )
    return replace(reading, measurement=measurement)


def _layer_norms(
    gradients: _Gradients, norms: Sequence[float], divisor: float
) -> dict[str, float | None]:
    parts: dict[str, list[float]] = {}
    for (layer, _), norm in zip(gradients.values, norms, strict=True):
        parts.setdefault(layer, []).append(norm)
    return {
        layer: _divide(math.hypot(*parts[layer]), divisor) if layer in parts else None
        for layer in gradients.layers
    }


def _layer_peaks(
    layers: Sequence[str], peaks: Mapping[str, float], scale: float
) -> tuple[float | None, ...]:
    """Return the layers' peaks without the loss scale, which is in them at every stage."""
    found = tuple(_divide(peaks[name], scale) if name in peaks else None for name in layers)
    return found if any(peak is not None for peak in found) else ()


def _divide(norm: float, scale: float) -> float:
    return norm / scale if scale > 0.0 else math.nan


def _as_wide(value: Tensor) -> bool:
    return value.dtype == statistics.wide(value.device)


def _summary(layer: str, maxima: NDArray[np.float64]) -> ChannelSummary:
    return ChannelSummary(
        layer=layer,
        channels=int(maxima.size),
        nonpositive=int((maxima <= 0.0).sum()),
        peak=float(maxima.max()),
    )
