"""The monitor: hooks, rules and sinks around one training loop."""

import logging
import os
import platform
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import torch
from torch import nn

from ormas_core import manifest, ranks
from ormas_core.alarms import AlarmEngine
from ormas_core.config import MonitorConfig
from ormas_core.events import Event, Manifest, Mechanism, MonitorError, RunEnd, RunStart, Stage
from ormas_core.facts import FactsFold, RunFacts
from ormas_core.hooks import Collector, Reading, Reduction, Selection, after_backward, select
from ormas_core.host import PLAIN_LOOP, Host
from ormas_core.options import DEFAULTS, check_out, check_repair, check_sinks, make_config
from ormas_core.record import RecordWriter
from ormas_core.sinks import Fanout, LoggingSink, Sink
from ormas_core.version import RECORD_SCHEMA, VERSION

_LOG: Final = logging.getLogger("ormas")


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
        repair: must be False in this version.
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
        repair: bool = False,
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
        shortcuts = {
            "layers": layers,
            "check_every": check_every,
            "patience": patience,
            "sigma": sigma,
            "warmup": warmup,
        }
        self.config = make_config(config, shortcuts)
        check_repair(repair)
        check_out(out)
        extra = check_sinks(sinks)
        selection = select(model, self.config.layers, compiled=host.compiled)
        optimizer = _inner_optimizer(optimizer)
        self._host = host
        self._every = self.config.check_every
        self._attempt = 0
        self._reading: Reading | None = None
        self._closed = False
        # An exception already being handled when the run began is not the one that ends it.
        self._handled = id(sys.exc_info()[1])
        self._collector: Collector | None = Collector(selection, optimizer, scaler)
        self._alarms = AlarmEngine(self.config)
        self._facts = FactsFold()
        self._idle = {layer.name for layer in selection.layers} - set(selection.sharded)
        self._uncalled = set(self._idle)
        self._loss_seen = False
        self._loss_problem = ""

        self._record: RecordWriter | None = None
        if ranks.rank() == 0:
            self._record = RecordWriter(out, overwrite=overwrite, append=host.segment > 0)
            log = (LoggingSink(),) if verbose else ()
            self._fanout = Fanout((self._record, *extra, *log), clock)
        else:
            self._fanout = Fanout((), clock)
        self._manifest = manifest.first_lines(
            selection, host, optimizer, scaler, ranks.world_size()
        )
        self._emit(_run_start(selection, self.config, host, optimizer, name))
        self._emit(Manifest(step=0, mechanisms=self._manifest))
        if not host.prepares:
            self.prepare()

    @property
    def facts(self) -> RunFacts:
        """What is known of the run so far."""
        return self._facts.facts(finished=False)

    @property
    def sampling(self) -> bool:
        """Whether the optimizer step in progress is a sampled one."""
        return self._collector is not None and self._attempt % self._every == 0

    def prepare(self) -> None:
        """Observe the forward passes from here on, if this optimizer step is sampled.

        For hosts with `prepares`: call it before the first forward pass of each optimizer step.
        """
        if self._collector is not None and self._attempt % self._every == 0:
            self._collector.arm()

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
        if self._collector is None or self._attempt % self._every:
            return
        try:
            self._collector.losses.add(loss, reduction=reduction, scaled=scaled, fallback=fallback)
        except Exception as error:  # noqa: BLE001 - never raise into training
            self._fail(error)

    def capture(self, stage: Stage) -> None:
        """Make the check of this optimizer step now; the next `step()` only judges it.

        For hosts that see the gradients at a better moment than `step()`, such as before clipping.
        """
        if self._collector is None or self._attempt % self._every or self._reading is not None:
            return
        try:
            self._reading = self._read(stage)
        except Exception as error:  # noqa: BLE001 - never raise into training
            self._fail(error)

    def capture_after_backward(self, loss: Any, stage: Stage) -> None:
        """Do `capture` at the end of the next backward pass through `loss`, a tensor with a graph.

        That is after data-parallel reduction and before the host can clip.
        """
        if self.sampling and isinstance(loss, torch.Tensor) and loss.requires_grad:
            after_backward(loss, partial(self.capture, stage))

    def step(self, loss: Any = None) -> None:
        """Tell the monitor that an optimizer step is due: after backward(), before the update.

        Args:
            loss: the loss of the step, if it was not noted: a tensor or a number.
        """
        if self._collector is None:
            return
        if self._attempt % self._every == 0:
            try:
                self._check(loss)
            except Exception as error:  # noqa: BLE001 - never raise into training
                self._fail(error)
        self._attempt += 1
        if not self._host.prepares:
            self.prepare()

    def close(self, error: BaseException | None = None) -> None:
        """End the run and the record. Idempotent; never raises.

        Args:
            error: the exception that ends the run, if one does; in a `finally:` block it is found
                without being passed. Only its type is recorded.
        """
        if self._closed:
            return
        self._closed = True
        pending = sys.exc_info()[1]
        if error is None and id(pending) != self._handled:
            error = pending
        try:
            self._end(type(error).__name__ if error is not None else None)
        except Exception as failure:  # noqa: BLE001 - the user's exception must not be masked
            _LOG.warning("The monitor could not close its record: %s", failure)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(error)

    def _read(self, stage: Stage) -> Reading:
        assert self._collector is not None  # noqa: S101 - both callers have looked
        self._loss_problem = self._collector.losses.problem or self._loss_problem
        hook_error = self._collector.watch.error
        if hook_error is not None:
            raise hook_error
        began = time.perf_counter_ns()
        reading = self._collector.read(self._attempt, stage)
        cost_ns = time.perf_counter_ns() - began
        return replace(reading, measurement=replace(reading.measurement, cost_ns=cost_ns))

    def _check(self, loss: Any) -> None:
        if loss is not None:
            self.note_loss(loss)
        reading, self._reading = self._reading or self._read(self._host.stage), None
        measurement = reading.measurement
        self._emit(measurement)
        for event in self._alarms.update(measurement):
            self._emit(event)
        self._observe(reading)
        if self._record is not None and self._facts.checks % self.config.anchor_every == 0:
            self._emit(self._record.anchor(measurement.step))

    def _observe(self, reading: Reading) -> None:
        """Note what has shown up; when the warm-up is over, say what has not."""
        measurement = reading.measurement
        self._idle.difference_update(
            name
            for name, norm in zip(measurement.layers, measurement.norms, strict=True)
            if norm is not None
        )
        self._uncalled -= reading.called
        self._loss_seen = self._loss_seen or measurement.loss is not None
        if self._facts.checks == self.config.warmup:
            self._emit(
                Manifest(step=measurement.step, mechanisms=self._observed(measurement.layers))
            )

    def _observed(self, trainable: Sequence[str]) -> tuple[Mechanism, ...]:
        compiled = any(m.name == "channel_maxima" and m.layers for m in self._manifest)
        return manifest.observed_lines(
            self._manifest,
            idle=[name for name in trainable if name in self._idle],
            uncalled=[
                name
                for name in trainable
                if name in self._uncalled and name not in self._idle and not compiled
            ],
            checks=self._facts.checks,
            loss_seen=self._loss_seen,
            loss_problem=self._loss_problem,
        )

    def _emit(self, event: Event) -> None:
        self._facts.add(event)
        for failure in self._fanout.emit(event):
            self._facts.add(failure)

    def _fail(self, error: Exception) -> None:
        """Stop watching over a failure of the monitor's own; training goes on."""
        self._release()
        text = f"{type(error).__name__}: {error}"
        self._emit(MonitorError(step=self._attempt, error=text[:500]))

    def _release(self) -> None:
        """Let go of the model."""
        if self._collector is not None:
            self._collector.disarm()
            self._collector = None
        self._reading = None

    def _end(self, error: str | None) -> None:
        skipped = self._collector.skipped if self._collector is not None else 0
        self._release()
        steps = self._attempt - skipped
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
        for failure in self._fanout.close(steps):
            self._facts.add(failure)


def _inner_optimizer(optimizer: Any) -> Any:
    """Return the torch optimizer inside the wrappers of Lightning and accelerate."""
    while optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = getattr(optimizer, "optimizer", None)
    # accelerate's wrapper is itself an Optimizer.
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else optimizer


def _run_start(
    selection: Selection, config: MonitorConfig, host: Host, optimizer: Any, name: str | None
) -> RunStart:
    parameters = [p for p in selection.model.parameters() if not nn.parameter.is_lazy(p)]
    return RunStart(
        step=0,
        run_id=uuid.uuid4().hex,
        name=name,
        framework=host.framework,
        model=type(selection.model).__name__,
        optimizer=type(optimizer).__name__ if optimizer is not None else None,
        layers=tuple(layer.name for layer in selection.layers),
        parameters=sum(p.numel() for p in parameters),
        trainable=sum(p.numel() for p in parameters if p.requires_grad),
        world_size=ranks.world_size(),
        segment=host.segment,
        schema=RECORD_SCHEMA,
        versions={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "ormas": VERSION,
        },
        config=config,
    )
