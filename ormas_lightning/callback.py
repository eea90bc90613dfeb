"""Translates Lightning's hooks into calls of a `Monitor`."""

import os
from collections.abc import Iterable, Iterator
from typing import Any, Unpack

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from ormas_core import (
    DEFAULT_OUT,
    Host,
    Mechanism,
    MechanismState,
    Monitor,
    MonitorOptions,
    Stage,
    check_options,
)


class LightningMonitorCallback(Callback):
    """Watches a fit: `Trainer(callbacks=[LightningMonitorCallback()])`.

    Gradients are read unscaled and before clipping, once per optimizer update. Construct it with
    the options of `ormas_core.Monitor`. A second `fit()` continues the record as a new segment, and
    a fit from a checkpoint (`ckpt_path`) also goes on with its steps, baselines and open alarms.

    Args:
        **options: options of `Monitor`, checked here and not when training starts.

    Raises:
        UnknownOptionError: an option does not exist.
        ConfigError: an option has a value that cannot be used.
    """

    def __init__(self, **options: Unpack[MonitorOptions]) -> None:
        self._options = check_options(options)
        self._segments = 0
        self._restored: dict[str, Any] | None = None
        self._optimizer: Optimizer | None = None
        self._scaled = False
        self._losses: list[Tensor] = []
        self._last_step = -1
        self.monitor: Monitor | None = None
        """The monitor of the fit that is running, or of the last one."""

    @property
    def state_key(self) -> str:
        """Name of the state in a checkpoint: callbacks of different folders do not share it."""
        return f"ormas:{os.fspath(self._options.get('out', DEFAULT_OUT))}"

    def state_dict(self) -> dict[str, Any]:
        """Return what a fit that resumes from the checkpoint needs."""
        return self.monitor.state_dict() if self.monitor is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of a checkpoint for the fit that starts."""
        self._restored = state_dict or None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start a run, or a further segment of the last one."""
        restored = self._restored
        self._close()
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._scaled = scaler is not None
        self._optimizer = _first_optimizer(trainer)
        self._losses, self._last_step = [], -1
        _follow_loggers(trainer, self._options.get("sinks", ()))
        options = MonitorOptions(**{"scaler": scaler, **self._options})
        self.monitor = Monitor(
            pl_module,
            self._optimizer,
            host=Host(
                framework="lightning",
                stage=Stage.PRE_CLIP if trainer.gradient_clip_val else Stage.UNSCALED,
                prepares=True,
                segment=self._segments,
                run_id=self.monitor.run_id if self.monitor is not None else "",
                # Lightning keeps what torch.compile returned to itself and hands out the module.
                compiled=getattr(pl_module, "_compiler_ctx", None) is not None,
                notes=tuple(_notes(trainer)),
                state=restored,
            ),
            **options,
        )
        self._segments += 1

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Observe the forward pass if this optimizer step is sampled."""
        if self.monitor is not None:
            self.monitor.prepare()

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Note the loss as `training_step` returned it."""
        if self.monitor is None or not self.monitor.sampling:
            return
        self.monitor.note_output(loss)  # its graph, for certificates
        # Automatic optimization divides by the accumulation before this hook.
        parts = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
        self._losses.append(loss.detach() * parts)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Make the check: backward is done, gradients are unscaled, clipping has not begun."""
        losses, self._losses = self._losses, []
        if self.monitor is None or (
            self._optimizer is not None and optimizer is not self._optimizer
        ):
            return  # a step of another optimizer, with losses of its own
        if self._optimizer is not None and trainer.global_step == self._last_step:
            return  # an optimizer that evaluates its closure several times in one step
        self._last_step = trainer.global_step
        for loss in losses:
            self.monitor.note_loss(loss, scaled=self._scaled)
        self.monitor.step()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the run."""
        self._close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """End the run as interrupted."""
        self._close(exception)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End the run if nothing else has."""
        if stage == "fit":
            self._close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings: a copy in another process or trainer watches nothing yet."""
        return {**self.__dict__, "monitor": None, "_optimizer": None, "_losses": []}

    def _close(self, error: BaseException | None = None) -> None:
        self._restored = None
        if self.monitor is not None:
            self.monitor.close(error)


def _first_optimizer(trainer: Trainer) -> Optimizer | None:
    # Lightning stands a mock in where `configure_optimizers` returned None.
    usable = [
        opt
        for opt in trainer.optimizers
        if isinstance(opt, Optimizer) and type(opt).__name__ != "_MockOptimizer"
    ]
    return usable[0] if usable else None


def _follow_loggers(trainer: Trainer, sinks: Iterable[Any]) -> None:
    """Tell sinks that can follow a tracker's run which one Lightning's MLflow logger writes to."""
    if not trainer.is_global_zero:
        return
    logger: Any
    for logger in trainer.loggers:
        if type(logger).__name__ != "MLFlowLogger":
            continue
        for sink in sinks:
            follow = getattr(sink, "follow", None)
            if callable(follow):
                follow(run_id=logger.run_id, tracking_uri=logger._tracking_uri)  # noqa: SLF001 - no public name


def _notes(trainer: Trainer) -> Iterator[Mechanism]:
    if len(trainer.optimizers) > 1:
        yield Mechanism(
            name="optimizers",
            state=MechanismState.PARTIAL,
            reason=f"{len(trainer.optimizers)} optimizers: checks are made at the steps of the "
            "first one only",
        )
