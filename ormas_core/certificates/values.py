"""What the stored values of parameters are, read as far as somebody asks.

A check at which nothing has changed looks at the scales, and at one element of each slice of every
large matrix. All is looked at within one check, during which nothing is written.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ormas_core.certificates import leaves, masks, signs
from ormas_core.certificates.candidates import Structure
from ormas_core.certificates.leaves import DENSE_ELEMENTS
from ormas_core.certificates.masks import Part
from ormas_core.certificates.signs import Signs

_NUMPY: Final = frozenset({torch.float16, torch.float32, torch.float64})
"""Types that numpy has too."""


class Values:
    """The facts about the stored values of some parameters.

    Args:
        parameters: the parameters, by id.
        forms: the forms of the graphs that they are in.
        dense: see `leaves.DENSE_ELEMENTS`.
    """

    def __init__(
        self,
        parameters: Mapping[int, Tensor],
        forms: Sequence[Structure],
        dense: int = DENSE_ELEMENTS,
    ) -> None:
        self._parameters = parameters
        self._dense = dense
        self._signed = frozenset().union(*(form.signed for form in forms))
        self._found: dict[int, Signs] = {}
        scales = frozenset().union(*(form.scales for form in forms))
        tables = frozenset().union(*(form.tables for form in forms))
        with torch.no_grad():
            self._likely = self._glance(scales, tables)

    def likely(self) -> dict[int, Signs]:
        """Return the facts about all parameters of which one may be a `candidate`, by id."""
        return self.of(self._likely)

    def every(self) -> dict[int, Signs]:
        """Return the facts about all parameters, by id."""
        return self.of(self._parameters)

    def of(self, keys: Iterable[int]) -> dict[int, Signs]:
        """Return the facts about some parameters, with few copies to the host."""
        wanted = list(keys)
        new = [key for key in wanted if key not in self._found]
        small = [key for key in new if self._is_small(key)]
        flat = [self._parameters[key].detach().flatten() for key in small]
        for numbers, ends, host in _together(flat):
            parts = (np.split(flags, ends[:-1]) for flags in (host <= 0, host >= 0))
            for number, low, high in zip(numbers, *parts, strict=True):
                key = small[number]
                self._found[key] = _dense(tuple(self._parameters[key].shape), low, high)
        for key in new:
            if key not in self._found:
                self._found[key] = self._read(key)
        return {key: self._found[key] for key in wanted}

    def _read(self, key: int) -> Signs:
        parameter, signed = self._parameters[key], key in self._signed
        if key not in self._likely and not signed:
            return signs.unknown(tuple(parameter.shape))
        return leaves.read_now(parameter, self._dense, signed=signed)

    def _is_small(self, key: int) -> bool:
        """Whether a parameter is read whole."""
        values = self._parameters[key]
        few = values.dim() < 2 or values.numel() <= self._dense  # noqa: PLR2004
        return few and values.is_floating_point()

    def _glance(self, scales: frozenset[int], tables: frozenset[int]) -> dict[int, None]:
        """Return, in order, those that may have a slice of zeros, or of a sign that matters."""
        found: dict[int, None] = {}
        asked: list[int] = []
        parts: list[Tensor] = []
        for key, parameter in self._parameters.items():
            if not parameter.is_floating_point() or not parameter.numel():
                continue
            if parameter.dim() < 2:  # noqa: PLR2004
                pieces = [parameter.flatten()] if key in scales else []
            elif key in self._signed:
                found[key] = None
                pieces = []
            elif parameter.numel() <= self._dense:
                pieces = [parameter.flatten()]
            else:
                pieces = _first_of_each(parameter, rows=key not in tables)
            asked += [key] * len(pieces)
            parts += pieces
        for numbers, ends, host in _together(parts):
            zeros = np.flatnonzero(host == 0)
            hit = np.unique(np.searchsorted(ends, zeros, side="right"))
            found.update((asked[numbers[place]], None) for place in hit)
        return {key: None for key in self._parameters if key in found}


def _dense(shape: tuple[int, ...], low: Part, high: Part) -> Signs:
    """Return the facts about each element, from which are <= 0 and which >= 0."""
    neg, pos = (masks.union_of(shape, [part.reshape(shape)]) for part in (low, high))
    return signs.facts(masks.none(shape), neg, pos)


def _first_of_each(values: Tensor, *, rows: bool) -> list[Tensor]:
    """Return the first element of each slice along the second axis, and along the first one."""
    rest = (0,) * (values.dim() - 2)
    axes: list[tuple[int | slice, ...]] = [(0, slice(None), *rest)]
    if rows:
        axes.append((slice(None), 0, *rest))
    return [values[axis] for axis in axes]


def _together(
    tensors: Sequence[Tensor],
) -> Iterator[tuple[list[int], NDArray[np.int64], NDArray[Any]]]:
    """Bring flat tensors to the host, with one copy for each device and type.

    Yields the numbers of the tensors that are alike, where each of them ends, and all their values.
    """
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for number, tensor in enumerate(tensors):
        alike.setdefault((tensor.device, tensor.dtype), []).append(number)
    for (_, dtype), numbers in alike.items():
        whole = torch.cat([tensors[number] for number in numbers]).cpu()
        # numpy has no bfloat16, and float32 holds all of its values.
        host = (whole if dtype in _NUMPY else whole.float()).numpy()
        yield numbers, np.cumsum([tensors[number].shape[0] for number in numbers]), host
