"""Which channels of each layer are in use: proven stuck, flat, decayed, or only silent so far."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ormas_core.certificate_events import Channels, ChannelsCleared
from ormas_core.certificates.engine import Outcome
from ormas_core.certificates.graph import Edge, Graph
from ormas_core.certificates.leaves import numbers
from ormas_core.certificates.live import CertificateWatch
from ormas_core.certificates.ownership import Owner
from ormas_core.certificates.rules import RULES
from ormas_core.certificates.suspects import looks_dead, parameter_of
from ormas_core.certificates.units import Weight, weights
from ormas_core.terms import ChannelLevel

DECAYED: Final = 1e-3
"""A scale below this fraction of its layer's median counts as decayed."""
_NORMS: Final = frozenset(
    {
        "NativeBatchNormBackward0",
        "CudnnBatchNormBackward0",
        "MiopenBatchNormBackward0",
        "NativeGroupNormBackward0",
    }
)
_SHAPES: Final = frozenset(
    {
        "ViewBackward0",
        "UnsafeViewBackward0",
        "ReshapeAliasBackward0",
        "AliasBackward0",
        "CloneBackward0",
        "ToCopyBackward0",
        "SqueezeBackward1",
        "UnsqueezeBackward0",
        "TransposeBackward0",
        "PermuteBackward0",
    }
)
_Rows = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The channels of one weight, and what follows it.

    Attributes:
        layer: the module that owns the weight.
        weight: the weight.
        scale: id of the scale of the norm right after it, or None.
        shift: id of that norm's shift, or of the weight's own bias; None where there is none.
        gate_layer: the module whose output goes into a gate such as ReLU, or None.
    """

    layer: str
    weight: Weight
    scale: int | None
    shift: int | None
    gate_layer: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """The channels of one layer by state; every channel is in one at most. Shapes (channels,)."""

    certified: _Rows
    flat: _Rows
    decayed: _Rows
    silent: _Rows

    def total(self) -> int:
        """Return how many channels are out of use."""
        return sum(int(rows.sum()) for rows in self.rows().values())

    def rows(self) -> dict[str, _Rows]:
        """Return the four sets by name."""
        return {
            "certified": self.certified,
            "flat": self.flat,
            "decayed": self.decayed,
            "silent": self.silent,
        }


def groups(graph: Graph, owners: Mapping[int, Owner]) -> Iterator[Group]:
    """Yield the layers with channels, in the graph's order."""
    for weight in weights(graph):
        parameter = parameter_of(graph, weight)
        owner = owners.get(id(parameter))
        if owner is None or len(weight.consumers) != 1:
            continue
        node = weight.consumers[0].node
        follows = _follow(graph, node)
        scale = shift = None
        last, layer = node, owner.layer
        if follows is not None and graph.nodes[follows[0]].name in _NORMS and follows[1] == 0:
            last = follows[0]
            scale, shift = (_leaf(graph, graph.nodes[last].inputs[i]) for i in (1, 2))
            norm = owners.get(scale) if scale is not None else None
            layer = norm.layer if norm is not None else ""
        else:
            shift = _bias(graph, node)
        yield Group(
            owner.layer, weight, scale, shift, layer if layer and _gated(graph, last) else None
        )


def count(
    group: Group, outcome: Outcome, graph: Graph, certified: _Rows, silent: _Rows | None
) -> Counted:
    """Sort the channels of one layer.

    Args:
        group: the layer.
        certified: which channels have a certificate in force.
        outcome: the last proof.
        graph: its graph.
        silent: which channels have been silent long enough; None where that is not observed.
    """
    parameter = parameter_of(graph, group.weight)
    total = parameter.shape[group.weight.axis]
    looks = looks_dead(graph, group.weight, outcome.leaves) & ~certified
    shift = _values(graph, group.shift, total) if looks.any() else None
    open_ = looks & (shift > 0) if shift is not None and group.gate_layer else np.zeros_like(looks)
    decayed = looks & ~open_
    scale = _values(graph, group.scale, total)
    if scale is not None:
        size = np.abs(scale)
        tiny = (size > 0) & (size <= DECAYED * np.median(size))
        decayed = decayed | (tiny & ~certified & ~open_)
    if silent is None or silent.size != total:
        silent = np.zeros(total, np.bool_)
    return Counted(certified, open_, decayed, silent & ~(certified | open_ | decayed))


class ChannelHealth:
    """Says when the level of unused channels of a layer changes.

    Args:
        patience: checks without a positive output after which a channel counts as silent.

    Attributes:
        streaks: gate layer -> checks in a row that each channel had no positive output.
        counted: the latest counts, by layer.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience
        # Layer -> its level, whether more than silence is behind it, whether silence was said of
        # it, and since when it has one.
        self._levels: dict[str, tuple[ChannelLevel, bool, bool, int]] = {}
        self._checks = 0
        self.streaks: dict[str, NDArray[np.int64]] = {}
        self.counted: dict[str, tuple[Group, Counted]] = {}

    def note(self, channel_max: Mapping[str, NDArray[np.float64]]) -> None:
        """Take what one check saw of the layers' outputs."""
        for layer, maxima in channel_max.items():
            before = self.streaks.get(layer)
            quiet = maxima <= 0
            if before is None or before.size != maxima.size:
                before = np.zeros(maxima.size, np.int64)
            self.streaks[layer] = np.where(quiet, before + 1, 0)

    def update(self, step: int, watch: CertificateWatch) -> Iterator[Channels | ChannelsCleared]:
        """Count every layer after a check, and yield what changed."""
        outcome = watch.outcome
        if outcome is None:
            return
        self._checks += 1
        graph = outcome.graphs[0]
        for group in groups(graph, watch.owners):
            certified = watch.certified(parameter_of(graph, group.weight), group.weight.axis)
            counted = count(group, outcome, graph, certified, self._silent(group))
            self.counted[group.layer] = (group, counted)
            yield from self._change(step, group.layer, counted)

    def _silent(self, group: Group) -> _Rows | None:
        streak = self.streaks.get(group.gate_layer) if group.gate_layer else None
        return None if streak is None else streak >= self._patience

    def _change(
        self, step: int, layer: str, counted: Counted
    ) -> Iterator[Channels | ChannelsCleared]:
        n, total = counted.certified.size, counted.total()
        level = _level(total, n)
        stuck = bool((counted.certified | counted.flat | counted.decayed).any())
        before = self._levels.get(layer)
        if level is None and before is not None:
            del self._levels[layer]
            yield ChannelsCleared(step=step, layer=layer, n=n, since_step=before[3])
        elif level is not None:
            # Silence that comes and goes beside what is stuck is said once.
            silent = bool(counted.silent.any()) or (before is not None and before[2])
            since = before[3] if before is not None else step
            self._levels[layer] = (level, stuck, silent, since)
            if before is not None and before[:3] == (level, stuck, silent):
                return
            yield Channels(
                step=step,
                layer=layer,
                level=level,
                n=n,
                certified=int(counted.certified.sum()),
                flat=int(counted.flat.sum()),
                decayed=int(counted.decayed.sum()),
                silent=int(counted.silent.sum()),
                initial=self._checks == 1,
            )


def _level(total: int, n: int) -> ChannelLevel | None:
    if total == 0:
        return None
    if total == n:
        return ChannelLevel.ALL
    return ChannelLevel.MOST if 2 * total >= n else ChannelLevel.SOME


def _follow(graph: Graph, node: int) -> Edge | None:
    """Return the one use of an output, past operations that only move elements."""
    users: Sequence[Edge] = graph.users[node]
    while len(users) == 1:
        user, position = users[0]
        if graph.nodes[user].name not in _SHAPES:
            return user, position
        users = graph.users[user]
    return None


def _gated(graph: Graph, node: int) -> bool:
    """Whether everything that uses an output is a gate."""
    found = _follow(graph, node)
    if found is not None:
        return _is_gate(graph, found[0])
    users = graph.users[node]
    return bool(users) and all(_is_gate(graph, user) for user, _ in users)


def _is_gate(graph: Graph, node: int) -> bool:
    name = graph.nodes[node].name
    return name in RULES and RULES[name].gate


def _leaf(graph: Graph, edge: Edge | None) -> int | None:
    number = graph.nodes[edge[0]].parameter if edge is not None else None
    return id(graph.parameters[number]) if number is not None else None


def _bias(graph: Graph, number: int) -> int | None:
    node = graph.nodes[number]
    if node.name == "AddmmBackward0":
        return _leaf(graph, node.inputs[0])
    if node.name == "ConvolutionBackward0" and len(node.inputs) > 2:  # noqa: PLR2004
        return _leaf(graph, node.inputs[2])
    return None


def _values(graph: Graph, key: int | None, size: int) -> NDArray[np.float64] | None:
    for parameter in graph.parameters if key is not None else ():
        if id(parameter) == key and parameter.numel() == size:
            return numbers(parameter).reshape(-1)
    return None
