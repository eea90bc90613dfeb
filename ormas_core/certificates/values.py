"""What the stored values of parameters are, read as far as somebody asks.

A check at which nothing has changed looks at the scales, and at one weight of each output feature.
All is looked at within one check, during which nothing is written.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ormas_core.certificates import leaves, masks, signs
from ormas_core.certificates.candidates import Structure, candidate
from ormas_core.certificates.graph import Graph, parameters_of
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
        self._forms = forms
        self._dense = dense
        self._signed = frozenset().union(*(form.signed for form in forms))
        self._scales = frozenset().union(*(form.scales for form in forms))
        self._found: dict[int, Signs] = {}
        self._likely: dict[int, Signs] | None = None

    def likely(self) -> dict[int, Signs]:
        """Return the facts about all that may be a `candidate`, by id, if one is by itself."""
        if self._likely is None:
            first = self._glance(self._parameters, first=True)
            worth = any(
                candidate(key, facts, form, first=True)
                for form in self._forms
                for key, facts in self._read(first, first).items()
            )
            found = self._glance(self._parameters) if worth else []
            self._likely = self._read(found, found)
        return self._likely

    def every(self) -> dict[int, Signs]:
        """Return the facts about all parameters, by id."""
        return self.of(self._parameters)

    def of(self, keys: Iterable[int]) -> dict[int, Signs]:
        """Return the facts about some parameters, with few copies to the host."""
        wanted = list(keys)
        new = [key for key in wanted if key not in self._found and not self._is_small(key)]
        return self._read(wanted, self._glance(new))

    def _read(self, keys: Sequence[int], hits: Collection[int]) -> dict[int, Signs]:
        """Return the facts about some parameters; `hits` are those that a glance has shown."""
        new = [key for key in keys if key not in self._found]
        small = [key for key in new if self._is_small(key)]
        flat = [self._parameters[key].detach().flatten() for key in small]
        for numbers, ends, host in _together(flat):
            parts = (np.split(flags, ends[:-1]) for flags in (host <= 0, host >= 0))
            for number, low, high in zip(numbers, *parts, strict=True):
                key = small[number]
                self._found[key] = _dense(tuple(self._parameters[key].shape), low, high)
        shown = set(hits)
        for key in new:
            if key not in self._found:
                values, signed = self._parameters[key], key in self._signed
                self._found[key] = (
                    leaves.read_now(values, self._dense, signed=signed)
                    if key in shown
                    else signs.unknown(tuple(values.shape))
                )
        return {key: self._found[key] for key in keys}

    def _is_small(self, key: int) -> bool:
        """Whether a parameter is read whole."""
        values = self._parameters[key]
        few = values.dim() < 2 or values.numel() <= self._dense  # noqa: PLR2004
        return few and values.is_floating_point()

    def _glance(self, keys: Iterable[int], *, first: bool = False) -> list[int]:
        """Return which may have a slice of zeros, or of a sign that matters.

        Args:
            keys: the parameters to look at.
            first: see `Structure.axes`.
        """
        wanted = list(keys)
        found: set[int] = set()
        asked: list[int] = []
        parts: list[Tensor] = []
        with torch.no_grad():
            for key in wanted:
                values = self._parameters[key]
                if not values.is_floating_point() or not values.numel():
                    continue
                if key in self._signed:
                    found.add(key)
                    continue
                pieces = self._pieces(key, values, first=first)
                asked += [key] * len(pieces)
                parts += pieces
            for numbers, ends, host in _together(parts):
                zeros = np.flatnonzero(host == 0)
                hit = np.unique(np.searchsorted(ends, zeros, side="right"))
                found.update(asked[numbers[place]] for place in hit)
        return [key for key in wanted if key in found]

    def _pieces(self, key: int, values: Tensor, *, first: bool) -> list[Tensor]:
        """Return elements of a parameter that are not all nonzero where a slice is zero."""
        if values.dim() < 2:  # noqa: PLR2004
            return [values.flatten()] if key in self._scales else []
        if values.numel() <= self._dense:
            return [values.flatten()]
        axes = {axis for form in self._forms for axis in form.axes(key, first=first)}
        return [_first_of_each(values, axis) for axis in sorted(axes)]


def values_of(
    graphs: Sequence[Graph], forms: Sequence[Structure], dense: int = DENSE_ELEMENTS
) -> Values:
    """Return the values of all parameters in some graphs."""
    return Values(parameters_of(graphs), forms, dense)


def _dense(shape: tuple[int, ...], low: Part, high: Part) -> Signs:
    """Return the facts about each element, from which are <= 0 and which >= 0."""
    neg, pos = (masks.union_of(shape, [part.reshape(shape)]) for part in (low, high))
    return signs.facts(masks.none(shape), neg, pos)


def _first_of_each(values: Tensor, axis: int) -> Tensor:
    """Return the first element of each slice along the first or the second axis."""
    place: list[int | slice] = [0] * values.dim()
    place[axis] = slice(None)
    return values[tuple(place)]


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
