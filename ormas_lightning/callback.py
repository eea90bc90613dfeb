"""Translates Lightning's hooks into calls of a `Monitor`."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Unpack

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.optim import Optimizer

from ormas_core import (
    DEFAULT_OUT,
    ConfigError,
    Host,
    Mechanism,
    MechanismState,
    Monitor,
    MonitorOptions,
    Sink,
    Stage,
    check_options,
)
from ormas_lightning.loggers import LoggerSink, check_patterns

TRIAL_SUFFIX: Final = "_fast_dev_run"
"""Ends the name of the run folder of a `fast_dev_run`, which the next one overwrites."""


_MANUAL: Final = (
    "no backward pass was seen: call self.manual_backward(loss), and step() of what "
    "self.optimizers() returns, without use_pl_optimizer=False"
)
_AUTOMATIC: Final = "training_step returned none"

LENT: Final = ("log", "log_dict")
"""Methods of the module that Lightning puts on each callback, and so the module."""


class LightningMonitorCallback(Callback):
    """Watches a fit: `Trainer(callbacks=[LightningMonitorCallback()])`.

    Gradients are read unscaled and before clipping, once per update of each optimizer. Construct it
    with the options of `ormas_core.Monitor`. A second `fit()` continues the record as a new
    segment, and a fit from a checkpoint (`ckpt_path`) also goes on with its steps, baselines and
    open alarms. A `fast_dev_run` has a record of its own, beside the run folder.

    Args:
        optimizer_index: place in `trainer.optimizers` of the only one whose steps are checked;
            None for all.
        to_loggers: whether metrics and alarms go to the trainer's loggers as well; or the fnmatch
            patterns of the layers whose own scalars go there, instead of all.
        **options: options of `Monitor`, checked here and not when training starts.

    Raises:
        UnknownOptionError: an option does not exist.
        ConfigError: an option has a value that cannot be used.
    """

    def __init__(
        self,
        *,
        optimizer_index: int | None = None,
        to_loggers: bool | str | Sequence[str] = False,
        **options: Unpack[MonitorOptions],
    ) -> None:
        self._options = check_options(options)
        self._index = _check_index(optimizer_index)
        self._patterns = check_patterns(to_loggers)
        self._segments = 0
        self._starting = False
        self._restored: dict[str, Any] | None = None
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
        if self._starting:  # saved and restored by a learning rate finder: no step was made yet
            return self._restored or {}
        return self.monitor.state_dict() if self.monitor is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of a checkpoint for the fit that starts."""
        self._restored = state_dict or None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Note that a fit begins: other callbacks may save and restore before this one starts."""
        self._starting = stage == "fit"

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start a run, or a further segment of the last one."""
        restored, trial = self._restored, bool(getattr(trainer, "fast_dev_run", False))
        self._close()
        self._starting = False
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._scaled = scaler is not None
        self._losses, self._last_step = [], -1
        segment = 0 if trial else self._segments
        optimizers = _optimizers(trainer)
        watched = None if self._index is None else (_known(self._index, optimizers),)
        sinks = tuple(self._options.get("sinks", ()))
        _follow_loggers(trainer, sinks)
        options = MonitorOptions(**{"scaler": scaler, **self._options})
        options["sinks"] = (*sinks, *self._logger_sinks(trainer))
        if trial:
            options["out"] = f"{os.fspath(options.get('out', DEFAULT_OUT))}{TRIAL_SUFFIX}"
            options["overwrite"], options["resume"] = True, False
        self.monitor = Monitor(
            pl_module,
            optimizers,
            host=Host(
                framework="lightning",
                stage=Stage.PRE_CLIP if trainer.gradient_clip_val else Stage.UNSCALED,
                prepares=True,
                segment=segment,
                run_id=self.monitor.run_id if self.monitor is not None and segment else "",
                # Lightning keeps what torch.compile returned to itself and hands out the module.
                compiled=getattr(pl_module, "_compiler_ctx", None) is not None,
                clip_norm=_clip_norm(trainer, pl_module),
                watched=watched,
                loss_hint=_AUTOMATIC if pl_module.automatic_optimization else _MANUAL,
                notes=tuple(self._notes(trainer)),
                state=None if trial else restored,
            ),
            **options,
        )
        self._segments += not trial

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Observe the forward pass if this optimizer step is sampled."""
        if self.monitor is None and not self._starting:  # added to a fit that had begun
            self.on_fit_start(trainer, pl_module)
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
        if self.monitor is None:
            return
        mocked = _is_mock(optimizer)
        if not mocked and trainer.global_step == self._last_step:
            return  # an optimizer that evaluates its closure several times in one step
        self._last_step = trainer.global_step
        for loss in losses:
            self.monitor.note_loss(loss, scaled=self._scaled)
        self.monitor.step(optimizer=None if mocked else optimizer)
        if self.monitor.should_stop:
            trainer.should_stop = True
        if not pl_module.automatic_optimization:
            self.monitor.prepare()  # the batch may hold a step of another optimizer

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
            for name in LENT:
                self.__dict__.pop(name, None)

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings: a copy in another process or trainer watches nothing yet."""
        own = {name: value for name, value in self.__dict__.items() if name not in LENT}
        return {**own, "monitor": None, "_losses": []}

    def _logger_sinks(self, trainer: Trainer) -> Iterator[Sink]:
        if self._patterns is not None and trainer.is_global_zero:
            for logger in trainer.loggers:
                yield LoggerSink(logger, self._patterns)

    def _notes(self, trainer: Trainer) -> Iterator[Mechanism]:
        if self._patterns is not None and not trainer.loggers:
            yield Mechanism(
                name="loggers",
                state=MechanismState.OFF,
                reason="to_loggers was asked for, and the trainer has no logger",
            )

    def _close(self, error: BaseException | None = None) -> None:
        self._restored, self._starting = None, False
        if self.monitor is not None:
            self.monitor.close(error)


def _check_index(index: object) -> int | None:
    if index is not None and (isinstance(index, bool) or not isinstance(index, int) or index < 0):
        raise ConfigError(
            "optimizer_index",
            "optimizer_index must be a place in trainer.optimizers, counted from 0, or None; got "
            f"{index!r}",
        )
    return index


def _known(index: int, optimizers: Sequence[Optimizer]) -> int:
    if index >= len(optimizers):
        raise ConfigError(
            "optimizer_index",
            f"optimizer_index={index}, and the module configures {len(optimizers)} optimizers: "
            "the places are counted from 0",
        )
    return index


def _optimizers(trainer: Trainer) -> list[Optimizer]:
    return [o for o in trainer.optimizers if isinstance(o, Optimizer) and not _is_mock(o)]


def _is_mock(optimizer: Optimizer) -> bool:
    # Lightning stands a mock in where `configure_optimizers` returned None.
    return type(optimizer).__name__ == "_MockOptimizer"


def _clip_norm(trainer: Trainer, pl_module: LightningModule) -> float | None:
    """Return the total norm to which the trainer clips, or None where that is not what it does."""
    value, how = trainer.gradient_clip_val, trainer.gradient_clip_algorithm
    if not value or is_overridden("configure_gradient_clipping", pl_module):
        return None
    return float(value) if how is None or str(getattr(how, "value", how)) == "norm" else None


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
