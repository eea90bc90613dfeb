"""The monitor: hooks, rules and sinks around one training loop."""

import logging
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Literal, Self

import torch
from torch import nn

from ormas_core import ranks
from ormas_core.alarms import AlarmEngine
from ormas_core.config import MonitorConfig
from ormas_core.events import Event, Manifest, MonitorError, RunEnd
from ormas_core.facts import FactsFold, RunFacts
from ormas_core.hooks import Collector, Reading, Reduction, after_backward, select, unwrap_optimizer
from ormas_core.host import PLAIN_LOOP, Host
from ormas_core.manifest import Sightings, first_lines, run_start
from ormas_core.options import DEFAULTS, SHORTCUTS, MonitorOptions, check_options, make_config
from ormas_core.proofs import Proofs
from ormas_core.record import RecordWriter
from ormas_core.sinks import Fanout, LoggingSink, Sink
from ormas_core.terms import Stage

_LOG: Final = logging.getLogger("ormas")
_ERROR_LIMIT: Final = 500


class Monitor:
    """Watches one model while it trains.

    Construct it on every rank, after the model is wrapped; only rank 0 writes. Nothing it does
    after construction raises into training: a failure of its own is recorded, and it stops.

    Args:
        model: the model, wrapped or not.
        optimizer: the torch optimizer, or None.
        out: run folder for the record.
        layers: fnmatch pattern of layer names, or a list; None watches every layer that owns
            parameters.
        check_every: optimizer steps between two checks.
        patience: see `MonitorConfig.patience`.
        sigma: see `MonitorConfig.sigma`.
        warmup: see `MonitorConfig.warmup`.
        repair: False only watches; True re-initialises certified, flat and decayed channels, "all"
            silent ones too (one process only). Every change is an event, without a bound.
        scaler: the `GradScaler` in use, if any.
        sinks: further destinations of events; called on rank 0 only.
        name: a name for the run.
        config: all settings; a keyword above counts where it differs from its default.
        overwrite: delete the record of an earlier run in `out`.
        verbose: log warnings and the verdict.
        host: what drives the loop; adapters pass it.
        clock: current unix time in nanoseconds; tests pass it.

    Raises:
        ConfigError: an option cannot be used.
        LayerPatternError: `layers` matches nothing.
        RecordExistsError: `out` holds a record (on rank 0).
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any = None,
        out: str | os.PathLike[str] = "ormas_run",
        layers: str | Sequence[str] | None = DEFAULTS.layers,
        check_every: int = DEFAULTS.check_every,
        patience: int = DEFAULTS.patience,
        sigma: float = DEFAULTS.sigma,
        warmup: int = DEFAULTS.warmup,
        repair: bool | Literal["all"] = False,
        scaler: Any = None,
        sinks: Iterable[Sink] = (),
        name: str | None = None,
        config: MonitorConfig | None = None,
        overwrite: bool = False,
        verbose: bool = True,
        *,
        host: Host = PLAIN_LOOP,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        shortcuts = (layers, check_every, patience, sigma, warmup)
        self.config = make_config(config, dict(zip(SHORTCUTS, shortcuts, strict=True)))
        others = MonitorOptions(out=out, repair=repair, scaler=scaler, sinks=sinks, name=name)
        others = check_options({**others, "overwrite": overwrite, "verbose": verbose})
        extra = tuple(others["sinks"])
        selection = select(model, self.config.layers, compiled=host.compiled)
        optimizer = unwrap_optimizer(optimizer)
        self._host = host
        self._every = self.config.check_every
        self._attempt = self._skipped = 0
        self._reading: Reading | None = None
        self._closed = self._sampling = False
        # An exception already being handled when the run began is not the one that ends it.
        self._handled = sys.exc_info()[1]
        self._collector: Collector | None = Collector(selection, optimizer, scaler)
        # A monitor that is dropped without close() takes its process-wide hook along.
        weakref.finalize(self, self._collector.watch.detach)
        self._alarms = AlarmEngine(self.config)
        optimizers = [optimizer] if optimizer is not None else []
        self._proofs = Proofs(selection, optimizers, self.config, repair)
        self._facts = FactsFold()

        self._record = None
        if ranks.writes():
            self._record = RecordWriter(out, overwrite=overwrite, append=host.segment > 0)
            extra = (self._record, *extra, *([LoggingSink()] if verbose else []))
        self._fanout = Fanout(extra if self._record else (), clock)
        self._emit(start := run_start(selection, self.config, host, optimizer, name))
        self.run_id = start.run_id
        lines = first_lines(selection, host, optimizer, scaler, ranks.world_size())
        self._sightings = Sightings(lines, selection, self.config.warmup)
        self._emit(Manifest(step=0, mechanisms=lines))
        if not host.prepares:
            self.prepare()

    @property
    def facts(self) -> RunFacts:
        """What is known of the run so far."""
        return self._facts.facts(finished=False)

    @property
    def sampling(self) -> bool:
        """Whether the optimizer step in progress is prepared and sampled."""
        return self._sampling

    def prepare(self) -> None:
        """Observe the forward passes from here on, if this optimizer step is sampled.

        For hosts with `prepares`: call it before the first forward pass of each optimizer step.
        """
        if self._collector is not None and self._attempt % self._every == 0:
            self._sampling = True
            self._collector.watch.wanted_inputs = self._proofs.watched_inputs
            self._collector.arm()
            self._proofs.arm()

    def note_loss(
        self,
        loss: Any,
        *,
        reduction: Reduction = "mean",
        scaled: bool = False,
        fallback: bool = False,
    ) -> None:
        """Take the loss where it is computed, for a `step()` elsewhere.

        Args:
            loss: tensor of any shape (its mean counts) or number; nothing of its graph is kept.
            reduction: how several losses of one optimizer step combine: their "mean", or their
                "sum" where each is already divided by the size of the whole step.
            scaled: whether `loss` is multiplied by the loss scale.
            fallback: count it only if the step gets no other loss.
        """
        if self._sampling and self._collector is not None:
            add = self._collector.losses.add
            self._safely(lambda: add(loss, reduction=reduction, scaled=scaled, fallback=fallback))
            if not self._host.gives_outputs:
                self.note_output(loss)

    def note_output(self, output: Any) -> None:
        """Take what one micro-batch's gradients are computed from, for certificates.

        For hosts with `gives_outputs`, whose losses may be computed where they cannot be seen.

        Args:
            output: the loss, or everything the model returned, however nested; its graph is read
                at once and nothing of it is kept.
        """
        if self._sampling and self._reading is None:
            self._safely(lambda: self._proofs.note(output))

    def capture(self, stage: Stage) -> None:
        """Make the check of this optimizer step now; the next `step()` only judges it.

        For hosts that see the gradients at a better moment than `step()`, such as before clipping.
        """
        if self._sampling and self._reading is None:
            self._safely(lambda: self._capture(stage))

    def capture_after_backward(self, loss: Any, stage: Stage) -> None:
        """Do `capture` at the end of the next backward pass through `loss`, a tensor with a graph.

        That is after data-parallel reduction and before the host can clip.
        """
        if self._sampling and isinstance(loss, torch.Tensor) and loss.requires_grad:
            self._safely(lambda: after_backward(loss, lambda: self.capture(stage)))

    def step(self, loss: Any = None) -> None:
        """Tell the monitor that an optimizer step is due: after backward(), before the update.

        Args:
            loss: the loss of the step, if it was not noted: a tensor or a number.
        """
        if self._collector is None:
            return
        if self._attempt % self._every == 0:
            self._safely(lambda: self._check(loss))
            self._sampling = False
        self._attempt += 1
        if not self._host.prepares:
            self.prepare()

    def close(self, error: BaseException | None = None, *, completed: bool = True) -> None:
        """End the run and the record. Idempotent; never raises.

        Args:
            error: the exception that ends the run, if one does; in a `finally:` block it is found
                without being passed. Only its type is recorded.
            completed: False where the host knows that the loop did not come to its end.
        """
        if self._closed:
            return
        self._closed, pending = True, sys.exc_info()[1]
        if error is None and pending is not self._handled:
            error = pending
        self._handled = None
        unknown = None if completed else "unknown"
        try:
            self._end(type(error).__name__ if error is not None else unknown)
        except Exception as failure:  # noqa: BLE001 - the user's exception must not be masked
            _LOG.warning("The monitor could not end its record: %s", failure)
        for sink_error in self._fanout.close(self._attempt - self._skipped):
            self._facts.add(sink_error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(error)

    def _safely(self, call: Callable[[], None]) -> None:
        """Stop watching if `call` fails; training goes on."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - never raise into training
            self._release()
            text = f"{type(error).__name__}: {error}"
            step = self._attempt - self._skipped
            self._emit(MonitorError(step=step, error=text[:_ERROR_LIMIT]))

    def _capture(self, stage: Stage) -> None:
        if self._collector is None:
            return
        began = time.perf_counter_ns()
        reading = self._collector.read(self._attempt, stage)
        cost_ns = time.perf_counter_ns() - began
        self._reading = replace(reading, measurement=replace(reading.measurement, cost_ns=cost_ns))

    def _check(self, loss: Any) -> None:
        if loss is not None:
            self.note_loss(loss)
        if self._reading is None:
            self._capture(self._host.stage)
        assert self._reading is not None  # noqa: S101 - captured one line above
        reading, self._reading = self._reading, None
        measurement = reading.measurement
        self._emit(measurement)
        self._sightings.note(reading)
        for event in (*self._alarms.update(measurement), *self._proofs.check(reading)):
            self._emit(event)
        for manifest in self._sightings.news(measurement.step, self._proofs.mechanisms()):
            self._emit(manifest)
        if self._record is not None and self._facts.checks % self.config.anchor_every == 0:
            self._emit(self._record.anchor(measurement.step))

    def _emit(self, event: Event) -> None:
        self._facts.add(event)
        for failure in self._fanout.emit(event):
            self._facts.add(failure)

    def _release(self) -> None:
        """Let go of the model."""
        if self._collector is not None:
            self._skipped = self._collector.skipped
            self._collector.disarm()
            self._collector = None
        self._proofs.forget()
        self._reading = None
        self._sampling = False

    def _end(self, error: str | None) -> None:
        if self._collector is not None:
            settle = self._collector.settle
            self._safely(lambda: settle(self._attempt))
        self._release()
        steps = self._attempt - self._skipped
        for manifest in self._sightings.news(steps, self._proofs.mechanisms(), ended=True):
            self._emit(manifest)
        self._emit(
            RunEnd(
                step=steps,
                steps=steps,
                checks=self._facts.checks,
                counts={**self._facts.totals(), "attempts": self._attempt},
                status=self._facts.verdict(error=error),
                error=error,
            )
        )
        if self._record is not None:
            self._emit(self._record.anchor(steps))
