"""The monitor: hooks, rules and sinks around one training loop."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Self

from torch import nn

from ormas_core import ranks
from ormas_core.alarms import AlarmEngine
from ormas_core.config import MonitorConfig
from ormas_core.events import Manifest
from ormas_core.facts import RunFacts
from ormas_core.hooks import Collector, Lane, Lanes, Reduction, optimizers_of, select
from ormas_core.host import PLAIN_LOOP, Host
from ormas_core.journal import UNKNOWN, Paths, guard
from ormas_core.manifest import Sightings, first_lines, run_start
from ormas_core.options import DEFAULTS, SHORTCUTS, MonitorOptions, check_options, make_config
from ormas_core.proofs import Proofs, hooks_off
from ormas_core.resume import Memory, open_journal
from ormas_core.run_events import MonitorError
from ormas_core.sampling import Sampler
from ormas_core.sinks import Sink
from ormas_core.stopping import Stopping
from ormas_core.terms import Stage

_LOG: Final = logging.getLogger("ormas")
_ERROR_LIMIT: Final = 500


class Monitor:
    """Watches one model while it trains.

    Construct it on every rank, after the model is wrapped; only rank 0 writes. Nothing it does
    after construction raises into training: a failure of its own is recorded, and it stops.

    Args:
        model: the model, wrapped or not.
        optimizer: the torch optimizer, several of them, or None.
        out: run folder for the record.
        layers: fnmatch pattern of layer names, or a list; None watches all that own parameters.
        check_every: steps of an optimizer between two of its checks.
        patience, sigma, warmup, stop_on: see `MonitorConfig`.
        repair: False only watches; True re-initialises certified, flat and decayed channels, "all"
            silent ones too (one process only).
        scaler: the `GradScaler` in use, if any.
        sinks: further destinations of events; called on rank 0 only.
        name: a name for the run.
        config: all settings; a keyword above counts where it differs from its default.
        overwrite: delete the record of an earlier run in `out`.
        verbose: log warnings and the verdict.
        resume: continue the record in `out`, if there is one; see `load_state_dict`.
        host, clock: what drives the loop, unix time in nanoseconds; adapters and tests pass them.

    Raises:
        ConfigError, LayerPatternError: an option cannot be used, or `layers` matches nothing.
        RecordExistsError, RecordLockedError: `out` holds a record, or has a writer (on rank 0).
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
        resume: bool = False,
        stop_on: str | Iterable[str] = DEFAULTS.stop_on,
        host: Host = PLAIN_LOOP,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        shortcuts = (layers, check_every, patience, sigma, warmup, stop_on)
        self.config = make_config(config, dict(zip(SHORTCUTS, shortcuts, strict=True)))
        others = MonitorOptions(out=out, repair=repair, scaler=scaler, sinks=sinks, name=name)
        flags = MonitorOptions(overwrite=overwrite, resume=resume, verbose=verbose)
        others = check_options({**others, **flags})
        selection = select(model, self.config.layers, compiled=host.compiled)
        optimizers = optimizers_of(optimizer)
        self._lanes = Lanes(optimizers, self.config.check_every, host.watched)
        self._skipped, self._closed = 0, False
        # An exception already being handled when the run began is not the one that ends it.
        self._handled = sys.exc_info()[1]
        collector = Collector(selection, scaler, host)
        self._alarms, self._stopping = AlarmEngine(self.config), Stopping(self.config.stop_on)
        self._proofs = Proofs(selection, optimizers, self.config, repair)
        self._others = self._proofs, self._stopping, self._lanes
        self._sampler: Sampler | None = Sampler(collector, self._proofs, self._lanes)
        self._journal, host = open_journal(self.config, host, others, clock)
        self._host, self._emit, self._facts = host, self._journal.say, self._journal.facts
        # A monitor that is dropped, or left open at exit, ends its record and takes its hook along.
        guard(self, hooks_off(collector.watch, self._proofs), self._journal)
        self._emit(start := run_start(selection, self.config, host, optimizers, name))
        self.run_id = start.run_id
        lines = first_lines(selection, host, optimizers, scaler, ranks.world_size())
        self._sightings = Sightings(lines, selection, self.config.warmup, host.loss_hint)
        self._emit(Manifest(step=0, mechanisms=lines))
        for event in self._stopping.remember(collector.first_events()):
            self._emit(event)
        lanes = self._lanes if len(optimizers) > 1 else None
        self._memory = Memory(self._journal, self._alarms, collector.ledger, self._sightings, lanes)
        if host.state is not None:
            self.load_state_dict(host.state)
        elif not host.prepares:
            self.prepare()

    @property
    def facts(self) -> RunFacts:
        """What is known of the run so far."""
        return self._facts.facts(finished=False)

    @property
    def should_stop(self) -> bool:
        """Whether `stop_on` asks the loop to stop, on all ranks alike; `facts.stopped` says why."""
        return self._facts.stopped is not None

    @property
    def sampling(self) -> bool:
        """Whether the optimizer step in progress is prepared and sampled."""
        return self._sampler is not None and self._sampler.active

    def prepare(self) -> None:
        """Observe the forward passes from here on, if this optimizer step is sampled.

        For hosts with `prepares`: call it before the first forward pass of each optimizer step.
        """
        if self._sampler is not None:
            self._sampler.prepare()

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
        self._in_step(lambda s: s.note_loss(loss, reduction, scaled=scaled, fallback=fallback))
        if not self._host.gives_outputs:
            self.note_output(loss)

    def note_output(self, output: Any) -> None:
        """Take what the gradients of one micro-batch are computed from: what proofs are about.

        Args:
            output: the loss, or everything the model returned; only its graph is read, at once.
        """
        self._in_step(lambda sampler: sampler.note_output(output))

    def capture(self, stage: Stage) -> None:
        """Read the gradients now, such as before clipping; the next `step()` only judges them.

        Only where the optimizers step together, or there is one.
        """
        self._in_step(lambda sampler: sampler.capture(stage, self._lanes.together))

    def capture_after_backward(self, loss: Any, stage: Stage) -> None:
        """Do `capture` when a backward pass through `loss` is done and reduced; the last counts."""
        self._in_step(lambda s: s.capture_after_backward(loss, lambda: self.capture(stage)))

    def step(self, loss: Any = None, optimizer: Any = None) -> None:
        """Tell the monitor that an optimizer step is due: after backward(), before the update.

        Args:
            loss: the loss of the step, if it was not noted: a tensor or a number.
            optimizer: which of several steps; None where all do, or there is one.
        """
        if self._sampler is None:
            return
        lane = self._lanes.find(optimizer)
        if lane is not None and self._lanes.due(lane):
            self._safely(lambda: self._check(loss, lane))
        else:  # what was observed was for the step of another optimizer
            self._in_step(lambda sampler: sampler.skip())
        self._lanes.stepped(lane)
        if not self._host.prepares:
            self.prepare()

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training needs, to be saved with its checkpoint: plain values."""
        return self._memory.save(self._lanes.attempt)

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Go on with steps, baselines and open alarms where a `state_dict` was taken.

        Call it before the first `step()`; later it does nothing. A state that cannot be used leaves
        the baselines new, and the record says why. Never raises.
        """
        if self._sampler is None or self._lanes.attempt or self._facts.checks:
            _LOG.warning("load_state_dict() came after the first step(); nothing was restored.")
            return
        self._lanes.go_on(self._memory.load(state))
        self._sampler.disarm()
        if not self._host.prepares:
            self.prepare()

    def close(
        self, error: BaseException | None = None, *, completed: bool = True, models: Paths = ()
    ) -> None:
        """End the run and the record. Idempotent; never raises.

        Args:
            error: the exception that ends the run, if one does; in a `finally:` block it is found
                without being passed. Only its type is recorded.
            completed: False where the host knows that the loop did not come to its end.
            models: files and folders of the model that came of it; their hashes are recorded.
        """
        if self._closed:
            return
        self._closed, pending = True, sys.exc_info()[1]
        if error is None and pending is not self._handled:
            error = pending
        self._handled = None
        unknown = None if completed else UNKNOWN
        try:
            self._end(type(error).__name__ if error is not None else unknown, models)
        except Exception as failure:  # noqa: BLE001 - the user's exception must not be masked
            _LOG.warning("The monitor could not end its record: %s", failure)
        self._journal.close(self._lanes.attempt - self._skipped)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error)

    def _safely(self, call: Callable[[], None]) -> None:
        """Stop watching if `call` fails; training goes on."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - never raise into training
            self._release()
            text = f"{type(error).__name__}: {error}"
            step = self._lanes.attempt - self._skipped
            self._emit(MonitorError(step=step, error=text[:_ERROR_LIMIT]))

    def _in_step(self, call: Callable[[Sampler], None]) -> None:
        """Do something with the step in progress, if it is sampled."""
        sampler = self._sampler
        if sampler is not None and sampler.active:
            self._safely(lambda: call(sampler))

    def _check(self, loss: Any, lane: Lane) -> None:
        assert self._sampler is not None  # noqa: S101 - asked by the caller
        self._memory.settle()
        if loss is not None:
            self.note_loss(loss)
        reading = self._sampler.take(self._host.stage, lane)
        measurement = reading.measurement
        self._emit(measurement)
        self._sightings.note(reading)
        proofs = self._proofs.check(reading, whole=self._lanes.completes(lane))
        events = (*self._alarms.update(measurement), *proofs)
        for event in (*events, *self._stopping.check(measurement.step, events)):
            self._emit(event)
        for manifest in self._sightings.news(measurement.step, *self._others):
            self._emit(manifest)
        self._journal.anchor_if_due(measurement.step)

    def _release(self) -> None:
        """Let go of the model."""
        if self._sampler is not None:
            self._skipped = self._sampler.skipped
            self._sampler.disarm()
            self._sampler = None
        self._proofs.forget()
        self._lanes.forget()

    def _end(self, error: str | None, models: Paths) -> None:
        self._memory.settle()
        if self._sampler is not None:
            self._safely(self._sampler.settle)
        self._release()
        steps = self._lanes.attempt - self._skipped
        for manifest in self._sightings.news(steps, *self._others, ended=True):
            self._emit(manifest)
        self._journal.end(steps, self._lanes.attempt, error, models)
