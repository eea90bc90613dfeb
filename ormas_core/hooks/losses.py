"""The loss of one optimizer step, from however many places it is told."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ormas_core.hooks import _torch
from ormas_core.hooks.gather import Gather
from ormas_core.hooks.statistics import wide

Reduction = Literal["mean", "sum"]


@dataclass(frozen=True, slots=True)
class _Note:
    value: Tensor | float
    reduction: Reduction
    scaled: bool
    fallback: bool


class LossNotes:
    """Collects the losses of the micro-batches of one optimizer step, on the device.

    Attributes:
        elements: largest number of elements of a loss tensor; more than 1 means unreduced.
        problem: why a loss could not be used; empty if none was refused.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the step."""
        self._notes: list[_Note] = []
        self.elements = 1
        self.problem = ""

    def add(
        self,
        loss: Any,
        *,
        reduction: Reduction = "mean",
        scaled: bool = False,
        fallback: bool = False,
    ) -> None:
        """Take a loss: a real tensor of any shape, or anything that converts to float.

        Nothing of the graph is kept. What cannot be used is noted in `problem`. A `fallback` counts
        only where the step has no other loss.
        """
        value: Tensor | float | None = None
        try:
            value = self._reduce(loss.detach()) if isinstance(loss, Tensor) else float(loss)
        except Exception as error:  # noqa: BLE001 - users pass anything, and their classes raise anything
            self.problem = f"the loss given, a {type(loss).__name__}, is no number: {error}"[:200]
        if value is not None:
            self._notes.append(_Note(value, reduction, scaled, fallback))

    def _reduce(self, loss: Tensor) -> Tensor | None:
        if _torch.is_sharded(loss):
            self.problem = "the loss given is sharded over processes: pass loss.full_tensor()"
            return None
        if loss.layout is not torch.strided:
            loss = loss.to_dense()
        if loss.numel() == 0 or loss.is_complex():
            self.problem = f"the loss given has {loss.numel()} elements of type {loss.dtype}"
            return None
        if loss.numel() > 1:
            self.elements = max(self.elements, loss.numel())
            return loss.to(wide(loss.device)).mean()
        # The tensor given may be changed in place before the check is over.
        return loss.clone()

    def add_to(self, gather: Gather) -> list[int | None]:
        """Put tensors on the way to the host; return a slot per note, None for host numbers."""
        return [gather.add(n.value) if isinstance(n.value, Tensor) else None for n in self._notes]

    def value(
        self,
        host: Sequence[NDArray[np.float64]],
        slots: Sequence[int | None],
        scale: float | None,
    ) -> float | None:
        """Return the loss of the step, or None where none was given.

        Losses noted with reduction "sum" are parts that add up; the others are averaged.
        """
        if not self._notes:
            return None
        only_fallbacks = all(note.fallback for note in self._notes)
        values, reduction = [], self._notes[-1].reduction
        for note, slot in zip(self._notes, slots, strict=True):
            if note.fallback and not only_fallbacks:
                continue
            value = float(host[slot][0]) if slot is not None else float(note.value)
            if note.scaled and scale is not None:
                value = value / scale if scale > 0.0 else math.nan
            values.append(value)
        total = math.fsum(values) if all(map(math.isfinite, values)) else sum(values)
        return total if reduction == "sum" else total / len(values)
