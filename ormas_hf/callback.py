"""Translates the Trainer's events into calls of a `Monitor`."""

import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal, Self, Unpack

import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ormas_core import (
    DEFAULT_OUT,
    Host,
    Monitor,
    MonitorOptions,
    Stage,
    check_options,
    watch_calls,
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
    on with the steps, baselines and open alarms of the checkpoint.

    Args:
        **options: options of `ormas_core.Monitor`, checked here and not when training starts.

    Raises:
        UnknownOptionError: an option does not exist.
        ConfigError: an option has a value that cannot be used.
    """

    def __init__(self, **options: Unpack[MonitorOptions]) -> None:
        self._options = check_options(options)
        self._segments = 0
        self._key = f"ormas:{os.fspath(options.get('out', DEFAULT_OUT))}"
        self._unwatch: Callable[[], None] | None = None
        self._reader: _LossReader | None = None
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
        model, optimizer = kwargs["model"], kwargs.get("optimizer")
        clips = bool(args.max_grad_norm and args.max_grad_norm > 0)
        options = MonitorOptions(**{"scaler": getattr(optimizer, "scaler", None), **self._options})
        compiled = bool(getattr(args, "torch_compile", False))
        self.monitor = Monitor(
            model,
            optimizer,
            host=Host(
                framework="transformers",
                stage=Stage.PRE_CLIP if clips else Stage.UNSCALED,
                prepares=True,
                segment=self._segments,
                run_id=self.monitor.run_id if self.monitor is not None else "",
                compiled=compiled,
                # The Trainer may compute another loss from the outputs than the model returns.
                gives_outputs=True,
                clip_norm=float(args.max_grad_norm) if clips else None,
                replaces_loss=bool(getattr(args, "logging_nan_inf_filter", False)),
                state=_saved_state(state, self._key),
            ),
            **options,
        )
        self._segments += 1
        self._reader = _LossReader(
            self.monitor,
            None if compiled else model,
            getattr(optimizer, "gradient_state", None),
            processes=args.world_size if _counts_all_tokens(args) else 1,
            clips=clips,
        )

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Observe the forward passes if this optimizer step is sampled."""
        if self.monitor is None:
            return
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
            clips = bool(args.max_grad_norm and args.max_grad_norm > 0)
            self.monitor.capture(Stage.CLIPPED if clips else Stage.UNSCALED)
            self.monitor.step()

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
        """End the run."""
        self._end(None, completed=True)

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


class _LossReader:
    """Reads the loss that the model returns, as torch's process-wide forward hook.

    It is registered during sampled steps only, and nothing is put on the model.

    Args:
        monitor: takes the loss.
        model: the model, or None where its calls cannot be seen.
        gradient_state: accelerate's; tells the last micro-batch of an optimizer step.
        processes: factor by which the Trainer multiplies a loss that is divided by the number of
            items over all processes.
        clips: whether the Trainer clips, so that the check is made at the end of backward.
    """

    def __init__(
        self,
        monitor: Monitor,
        model: nn.Module | None,
        gradient_state: Any,
        *,
        processes: int,
        clips: bool,
    ) -> None:
        self._monitor = monitor
        self._model = model
        self._gradient_state = gradient_state
        self._processes = processes
        self._clips = clips

    def can_look(self) -> bool:
        """Whether calls of the model can be seen."""
        return self._model is not None

    def __call__(
        self, module: nn.Module, inputs: Any, kwargs: Mapping[str, Any], output: Any
    ) -> None:
        # First, so that code being compiled meanwhile sees a hook that does nothing.
        if torch.compiler.is_compiling() or module is not self._model or not module.training:
            return
        self._monitor.note_output(output)
        loss = _returned_loss(output)
        if loss is None:
            return
        if kwargs.get("num_items_in_batch") is None:
            self._monitor.note_loss(loss, fallback=True)
        else:
            part = loss.detach() * self._processes
            self._monitor.note_loss(part, reduction="sum", fallback=True)
        self.follow(loss)

    def follow(self, loss: Any) -> None:
        """Have the check made at the end of this loss's backward pass, if the Trainer clips."""
        if self._clips and getattr(self._gradient_state, "sync_gradients", True):
            self._monitor.capture_after_backward(loss, Stage.PRE_CLIP)


def _saved_state(state: TrainerState, key: str) -> Any:
    """Return the state of the checkpoint that the Trainer resumes from; None if it has none."""
    kept = getattr(state, "stateful_callbacks", None)
    saved = kept.get(key) if isinstance(kept, dict) else None
    return saved.get("attributes") if isinstance(saved, Mapping) else None


def _returned_loss(output: Any) -> Tensor | None:
    """Return the loss where the Trainer looks for it, or None."""
    if isinstance(output, Mapping):
        loss = output.get("loss")
    else:
        loss = output[0] if isinstance(output, tuple | list) and output else None
        if isinstance(loss, Tensor) and loss.dim() > 0:
            return None  # logits: the Trainer computes the loss itself
    return loss if isinstance(loss, Tensor) and loss.is_floating_point() else None


def _counts_all_tokens(args: TrainingArguments) -> bool:
    return bool(getattr(args, "average_tokens_across_devices", False))
