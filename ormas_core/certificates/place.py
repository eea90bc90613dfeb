"""Where the weights of some units are, for guards and repair."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Rows of one weight.

    Attributes:
        parameter: the weight.
        axis: its axis of output features.
        rows: indices along it, shape (rows,); for heads, all features of all of them.
        bits: a checksum of the stored bits of each row when they were looked at, shape (rows,).
        size: features along that axis when they were looked at.
    """

    parameter: Tensor
    axis: int
    rows: Tensor
    bits: NDArray[np.int64]
    size: int

    @classmethod
    def of(cls, parameter: Tensor, axis: int, group: NDArray[np.bool_]) -> "Place":
        """Note where some units are and what their weights are now."""
        rows = torch.from_numpy(np.flatnonzero(group)).to(parameter.device)
        return cls(parameter, axis, rows, _bits(parameter, axis, rows), parameter.shape[axis])

    @property
    def is_there(self) -> bool:
        """Whether the weight still has as many features."""
        return self.parameter.dim() > self.axis and self.parameter.shape[self.axis] == self.size

    def indices(self) -> NDArray[np.int64]:
        """Return the rows on the host."""
        found: NDArray[np.int64] = self.rows.cpu().numpy()
        return found

    def changed(self) -> NDArray[np.bool_]:
        """Return which rows are not what they were, by their checksums, shape (rows,)."""
        found: NDArray[np.bool_] = _bits(self.parameter, self.axis, self.rows) != self.bits
        return found

    def gradients(self) -> Tensor:
        """Return, on the device, which rows have a gradient that is not zero, shape (rows,)."""
        gradient = self.parameter.grad
        if gradient is None:
            return torch.zeros_like(self.rows, dtype=torch.bool)
        return _by_row(gradient.index_select(self.axis, self.rows) != 0, self.axis).any(dim=1)


def _by_row(values: Tensor, axis: int) -> Tensor:
    return values.transpose(0, axis).flatten(1) if values.dim() > 1 else values[:, None]


def _bits(parameter: Tensor, axis: int, rows: Tensor) -> NDArray[np.int64]:
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    values = parameter.detach().index_select(axis, rows).contiguous()
    whole = _by_row(values.view(kinds[values.element_size()]), axis).to(torch.int64)
    weights = torch.arange(1, whole.shape[1] + 1, device=whole.device)
    found: NDArray[np.int64] = (whole * weights).sum(dim=1).cpu().numpy()
    return found
