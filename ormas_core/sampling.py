"""The optimizer step in progress: observed if it is sampled, read once, forgotten if it is not."""

from collections.abc import Callable
from typing import Any

import torch

from ormas_core.hooks import (
    Collector,
    Lane,
    Lanes,
    Reading,
    Reduction,
    after_backward,
    backward_pass,
)
from ormas_core.proofs import Proofs
from ormas_core.terms import Stage


class Sampler:
    """What the monitor does between two calls of `step()`.

    Args:
        collector: reads the step.
        proofs: reads its graphs.
        lanes: whose turn it is.

    Attributes:
        active: whether the step in progress is prepared and sampled.
    """

    def __init__(self, collector: Collector, proofs: Proofs, lanes: Lanes) -> None:
        self._collector = collector
        self._proofs = proofs
        self._lanes = lanes
        self._reading: Reading | None = None
        self._pass: int | None = None
        self.active = False

    def prepare(self) -> None:
        """Observe the forward passes from here on, if a check may be due."""
        if self._lanes.wanted():
            self.active = True
            self._collector.watch.wanted_inputs = self._proofs.watched_inputs
            self._collector.arm()
            self._proofs.arm()

    def note_loss(self, loss: Any, reduction: Reduction, *, scaled: bool, fallback: bool) -> None:
        """Take a loss of the step."""
        add = self._collector.losses.add
        add(loss, reduction=reduction, scaled=scaled, fallback=fallback)

    def note_output(self, output: Any) -> None:
        """Take the graph of one micro-batch."""
        self._proofs.note(output)

    def capture(self, stage: Stage, lane: Lane) -> None:
        """Read the gradients, unless they are read; again where a backward pass added to them."""
        number = backward_pass()
        if self._reading is None:
            self._reading = self._collector.read(self._lanes.attempt, stage, lane)
        elif number not in (None, self._pass):
            self._reading = self._collector.read_again(self._reading, stage, lane)
        self._pass = number

    def capture_after_backward(self, loss: Any, capture: Callable[[], None]) -> None:
        """Have the gradients read when each backward pass through `loss` is reduced."""
        if isinstance(loss, torch.Tensor) and loss.grad_fn is not None:
            after_backward(loss, capture)

    def take(self, stage: Stage, lane: Lane) -> Reading:
        """Return what was read of the step, or read it now."""
        self.capture(stage, lane)
        assert self._reading is not None  # noqa: S101 - captured one line above
        reading, self._reading = self._reading, None
        self.active = False
        return reading

    def skip(self) -> None:
        """Forget what was observed for the step of an optimizer that did not come."""
        self.disarm()
        self._proofs.skip()
        self._reading = None

    def settle(self) -> None:
        """Ask the loss scaler what it did since the last check."""
        self._collector.settle(self._lanes.attempt)

    def disarm(self) -> None:
        """Stop observing the step in progress."""
        self._collector.disarm()
        self.active = False

    @property
    def skipped(self) -> int:
        """Updates that the loss scaler is known to have skipped."""
        return self._collector.skipped
