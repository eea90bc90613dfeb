"""Many small device tensors, one copy to the host per device."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ormas_core.hooks.statistics import wide


class Gather:
    """Collects tensors and brings them over together.

    Values travel as float64 (float32 on devices without it), which holds every float32 exactly.
    """

    def __init__(self) -> None:
        self._tensors: dict[torch.device, list[Tensor]] = {}
        self._slots: list[tuple[torch.device, int, int]] = []
        self._sizes: dict[torch.device, int] = {}

    def add(self, tensor: Tensor) -> int:
        """Take `tensor` along; return its slot in the answer of `fetch`."""
        device = tensor.device
        flat = tensor.detach().reshape(-1).to(wide(device))
        start = self._sizes.get(device, 0)
        self._sizes[device] = start + flat.numel()
        self._tensors.setdefault(device, []).append(flat)
        self._slots.append((device, start, start + flat.numel()))
        return len(self._slots) - 1

    def fetch(self) -> list[NDArray[np.float64]]:
        """Copy everything to the host; return one flat array per slot."""
        host = {
            device: torch.cat(tensors).cpu().numpy().astype(np.float64, copy=False)
            for device, tensors in self._tensors.items()
        }
        return [host[device][start:end] for device, start, end in self._slots]
