"""Finds the loss, and the end of backward, in what the model returns."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

from torch import Tensor, nn

from ormas_core import Monitor, Stage

_LOG: Final = logging.getLogger("ormas")
_DEPTH: Final = 2
_MOST_FOLLOWED: Final = 16


class LossReader:
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
        self._seen_inside = self._failed = False

    def can_look(self) -> bool:
        """Whether calls of the model can be seen."""
        return self._model is not None

    def __call__(
        self, module: nn.Module, inputs: Any, kwargs: Mapping[str, Any], output: Any
    ) -> None:
        """Note the loss of a call of the model, and follow it through backward."""
        if not self._returns(module):
            return
        try:
            self._read(kwargs, output)
        except Exception as error:  # noqa: BLE001 - the user's forward pass must not fail over it
            if not self._failed:
                _LOG.warning(
                    "What the model returns, a %s, cannot be read for its loss: %s: %s. Call "
                    "note_loss(loss) in compute_loss.",
                    *(type(output).__name__, type(error).__name__, error),
                )
            self._failed = True

    def _read(self, kwargs: Mapping[str, Any], output: Any) -> None:
        self._monitor.note_output(output)
        loss = returned_loss(output)
        # What is returned as a loss need not be the one that the Trainer goes back from.
        for tensor in _differentiable(output):
            self.follow(tensor)
        if loss is None:
            return
        if kwargs.get("num_items_in_batch") is None:
            self._monitor.note_loss(loss, fallback=True)
        else:
            part = loss.detach() * self._processes
            self._monitor.note_loss(part, reduction="sum", fallback=True)

    def follow(self, loss: Any) -> None:
        """Have the check made at the end of this loss's backward pass, if the Trainer clips."""
        if self._clips and getattr(self._gradient_state, "sync_gradients", True):
            self._monitor.capture_after_backward(loss, Stage.PRE_CLIP)

    def _returns(self, module: nn.Module) -> bool:
        """Whether a call is one of the model in training: its own, or that of all its replicas."""
        if module is self._model:
            self._seen_inside = module.training
            return module.training
        if not isinstance(module, nn.DataParallel) or module.module is not self._model:
            return False
        # With one device, or none, DataParallel calls the model itself.
        inside, self._seen_inside = self._seen_inside, False
        return module.training and not inside


def returned_loss(output: Any) -> Tensor | None:
    """Return the loss where the Trainer looks for it, or None."""
    if isinstance(output, Mapping):
        loss = output.get("loss")
    else:
        loss = output[0] if isinstance(output, tuple | list) and output else None
        if isinstance(loss, Tensor) and loss.dim() > 0:
            return None  # logits: the Trainer computes the loss itself
    return loss if isinstance(loss, Tensor) and loss.is_floating_point() else None


def _differentiable(output: Any) -> list[Tensor]:
    """Return the first tensors of an output that have a graph; parameters are left alone."""
    found = [tensor for tensor in _tensors(output, _DEPTH) if tensor.grad_fn is not None]
    return found[:_MOST_FOLLOWED]


def _tensors(output: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif depth and isinstance(output, Mapping | list | tuple):
        for value in output.values() if isinstance(output, Mapping) else output:
            yield from _tensors(value, depth - 1)
