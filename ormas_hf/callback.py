"""Translates the Trainer's events into calls of a `Monitor`."""

import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Literal, Self, Unpack

from accelerate.state import AcceleratorState, GradientState, is_initialized
from accelerate.utils import DynamoBackend
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ormas_core import (
    DEFAULT_OUT,
    Host,
    Mechanism,
    MechanismState,
    Monitor,
    MonitorOptions,
    Stage,
    check_options,
    runs_compiled,
    watch_calls,
)
from ormas_hf.reader import LossReader
from ormas_hf.trials import Runs

_COMPILED: Final = (
    "the model runs compiled code, so that what it returns is not seen: call note_loss(loss) in "
    "compute_loss"
)
_OUTSIDE: Final = (
    "the model returned none: the Trainer computes it itself, as with label_smoothing_factor and "
    "compute_loss_func; call note_loss(loss) where it does"
)


class HFMonitorCallback(TrainerCallback):
    """Watches a training: `Trainer(..., callbacks=[HFMonitorCallback()])`.

    The loss is read from what the model returns, gradients at the end of backward, before the
    Trainer clips them. The Trainer has no hook for exceptions, so close the record yourself::

        try:
            trainer.train()
        finally:
            callback.close()

    or use the callback as a context manager. A second `train()` continues the record as a new
    segment, with new baselines. One that resumes from a checkpoint (`resume_from_checkpoint`) goes
    on with the steps, baselines and open alarms of the checkpoint. Each trial of a hyperparameter
    search has a record of its own, in `trial-0`, `trial-1` and so on in the run folder.

    Args:
        **options: options of `ormas_core.Monitor`, checked here and not when training starts.

    Raises:
        UnknownOptionError: an option does not exist.
        ConfigError: an option has a value that cannot be used.
    """

    def __init__(self, **options: Unpack[MonitorOptions]) -> None:
        self._options = check_options(options)
        out = options.get("out", DEFAULT_OUT)
        self._runs = Runs(out)
        self._key = f"ormas:{os.fspath(out)}"
        self._unwatch: Callable[[], None] | None = None
        self._reader: LossReader | None = None
        self.monitor: Monitor | None = None
        """The monitor of the training that is running, or of the last one."""

    def note_loss(self, loss: Any, *, reduction: Literal["mean", "sum"] = "mean") -> None:
        """Take a loss that is computed outside the model, in place of what the model returns.

        Args:
            loss: tensor of any shape (its mean counts) or number, before the Trainer divides it.
                With its graph, gradients are read at the end of its backward pass.
            reduction: how the losses of the micro-batches of one optimizer step combine: "sum"
                where each is already divided by the number of items of the whole step.
        """
        if self.monitor is not None:
            self.monitor.note_loss(loss, reduction=reduction)
        if self._reader is not None:
            self._reader.follow(loss)

    def close(self, error: BaseException | None = None) -> None:
        """End the run and its record. Idempotent; never raises, so it masks no exception.

        Called before the Trainer has said that training ended, it ends the run as interrupted.
        """
        self._end(error, completed=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(error)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Start a run, or a further segment of the last one."""
        self.close()
        trial = self._runs.begin(state)
        run = self._runs.current
        model, optimizer = kwargs["model"], kwargs.get("optimizer")
        scaler = getattr(optimizer, "scaler", None)
        clips = _clip_norm(args) is not None
        compiles = _compiles(args)
        compiled = compiles or runs_compiled(model)
        self.monitor = Monitor(
            model,
            optimizer,
            host=Host(
                framework="transformers",
                stage=Stage.PRE_CLIP if clips else Stage.UNSCALED,
                prepares=True,
                segment=run.segments,
                run_id=run.run_id,
                compiled=compiles,
                # The Trainer may compute another loss from the outputs than the model returns.
                gives_outputs=True,
                clip_norm=_clip_norm(args),
                replaces_loss=bool(getattr(args, "logging_nan_inf_filter", False)),
                loss_hint=_COMPILED if compiled else _OUTSIDE,
                notes=(*trial, *_data_parallel(args)),
                state=_saved_state(state, self._key),
            ),
            **MonitorOptions(**{"scaler": scaler, **self._options, "out": run.out}),
        )
        run.segments, run.run_id = run.segments + 1, self.monitor.run_id
        self._reader = LossReader(
            self.monitor,
            None if compiled else model,
            GradientState(),  # shared by all of the process
            processes=args.world_size if _counts_all_tokens(args) else 1,
            clips=clips,
        )

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Observe the forward passes if this optimizer step is sampled."""
        if self.monitor is None:  # added to a training that had begun
            self.on_train_begin(args, state, control, **kwargs)
        assert self.monitor is not None  # noqa: S101 - set one line above
        self.monitor.prepare()
        reader = self._reader
        if self.monitor.sampling and self._unwatch is None and reader and reader.can_look():
            self._unwatch = watch_calls(reader)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Judge the check; make it now, after clipping, if the end of backward was not seen."""
        self._unhook()
        if self.monitor is not None:
            clips = _clip_norm(args) is not None
            self.monitor.capture(Stage.CLIPPED if clips else Stage.UNSCALED)
            self.monitor.step(optimizer=kwargs.get("optimizer"))  # it may have been exchanged

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave what a resumed training needs in what the Trainer saves; stop on `stop_on`."""
        # Whether a checkpoint follows is not always known yet.
        kept: Any = state.stateful_callbacks
        if self.monitor is not None and isinstance(kept, dict):
            kept[self._key] = {"args": {}, "attributes": self.monitor.state_dict()}
        if self.monitor is not None and self.monitor.should_stop:
            control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the run; a trial that is pruned ends with `TrialPruned`."""
        self._end(self._runs.end(state, control), completed=True)

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings: a copy in another process or trainer watches nothing yet."""
        return {**self.__dict__, "monitor": None, "_reader": None, "_unwatch": None}

    def _end(self, error: BaseException | None, *, completed: bool) -> None:
        self._unhook()
        self._reader = None
        if self.monitor is not None:
            self.monitor.close(error, completed=completed)

    def _unhook(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None


def _saved_state(state: TrainerState, key: str) -> Any:
    """Return the state of the checkpoint that the Trainer resumes from; None if it has none."""
    kept = getattr(state, "stateful_callbacks", None)
    saved = kept.get(key) if isinstance(kept, dict) else None
    return saved.get("attributes") if isinstance(saved, Mapping) else None


def _counts_all_tokens(args: TrainingArguments) -> bool:
    return bool(getattr(args, "average_tokens_across_devices", False))


def _compiles(args: TrainingArguments) -> bool:
    """Whether the Trainer runs the model compiled, in a wrapper that callbacks are not given.

    accelerate decides that: its launcher asks for it by a variable of the environment, of which
    the arguments know nothing.
    """
    plugin = getattr(AcceleratorState(), "dynamo_plugin", None) if is_initialized() else None
    backend = getattr(plugin, "backend", DynamoBackend.NO)
    return bool(getattr(args, "torch_compile", False)) or backend != DynamoBackend.NO


def _clip_norm(args: TrainingArguments) -> float | None:
    """Return the total norm to which the Trainer clips, or None where it does not."""
    norm = args.max_grad_norm
    return float(norm) if norm and norm > 0 else None


def _data_parallel(args: TrainingArguments) -> tuple[Mechanism, ...]:
    devices = getattr(args, "n_gpu", 0)
    if devices <= 1:
        return ()
    return (
        Mechanism(
            name="data_parallel",
            state=MechanismState.PARTIAL,
            reason=f"DataParallel over {devices} devices: gradients are those of all; the loss is "
            "the mean over the devices, and calls of the short-lived copies are not seen",
        ),
    )
