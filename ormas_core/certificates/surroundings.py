"""What belongs to the output features of a weight besides its rows: biases and the norm behind."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from ormas_core.certificates.graph import Edge, Graph
from ormas_core.certificates.suspects import parameter_of
from ormas_core.certificates.units import Weight, readers, weights

_CASTS: Final = frozenset({"ToCopyBackward0", "CloneBackward0", "AliasBackward0"})
_MOVES: Final = frozenset(
    {
        *_CASTS,
        "ViewBackward0",
        "UnsafeViewBackward0",
        "ReshapeAliasBackward0",
        "SqueezeBackward1",
        "UnsqueezeBackward0",
        "TransposeBackward0",
        "PermuteBackward0",
    }
)
_NORMS: Final = frozenset(
    {
        "NativeBatchNormBackward0",
        "CudnnBatchNormBackward0",
        "MiopenBatchNormBackward0",
        "NativeGroupNormBackward0",
        "NativeLayerNormBackward0",
    }
)
_BIASES: Final = {"AddmmBackward0": 0, "ConvolutionBackward0": 2}
"""Operation -> position of its bias."""


@dataclass(frozen=True, slots=True, eq=False)
class Surroundings:
    """The tensors with one element for each output feature of a weight.

    Attributes:
        biases: added to its outputs.
        norms: scale and shift of each norm right after it; None for one that is no trainable leaf.
        elsewhere: whether one of these tensors, or the weight, is used for something else too.
    """

    biases: tuple[Tensor, ...]
    norms: tuple[tuple[Tensor | None, Tensor | None], ...]
    elsewhere: bool


def surroundings(graphs: Sequence[Graph], parameter: Tensor) -> Surroundings:
    """Find what belongs to a weight in all graphs of a step."""
    biases: dict[int, Tensor] = {}
    norms: dict[tuple[int, int], tuple[Tensor | None, Tensor | None]] = {}
    elsewhere = False
    for graph in graphs:
        for weight in weights(graph):
            if parameter_of(graph, weight) is not parameter:
                continue
            found = _Walk(graph, weight, parameter.shape[weight.axis])
            biases |= {id(bias): bias for bias in found.biases}
            norms |= {(id(scale), id(shift)): (scale, shift) for scale, shift in found.norms}
            elsewhere = elsewhere or found.elsewhere()
    return Surroundings(tuple(biases.values()), tuple(norms.values()), elsewhere)


class _Walk:
    """Follows the outputs of one weight in one graph until something else uses them."""

    def __init__(self, graph: Graph, weight: Weight, count: int) -> None:
        self._graph = graph
        self._count = count
        self._leaf = weight.leaf
        self._own = {consumer.node for consumer in weight.consumers}
        self._leaves: set[int] = set()
        self.biases: list[Tensor] = []
        self.norms: list[tuple[Tensor | None, Tensor | None]] = []
        for consumer in weight.consumers:
            self._follow(consumer.node)

    def elsewhere(self) -> bool:
        """Whether something off the path uses one of the tensors."""
        found = {self._leaf, *self._leaves}
        return any(
            reader not in self._own for leaf in found for reader in readers(self._graph, leaf)
        )

    def _follow(self, number: int) -> None:
        nodes = self._graph.nodes
        position = _BIASES.get(nodes[number].name)
        if position is not None and len(nodes[number].inputs) > position:
            self._add_bias(nodes[number].inputs[position])
        while len(self._graph.users[number]) == 1:
            number, position = self._graph.users[number][0]
            node = nodes[number]
            if node.name in _NORMS and position == 0:
                self._own.add(number)
                self.norms.append((self._tensor(node.inputs[1]), self._tensor(node.inputs[2])))
                return
            is_bias = node.name == "AddBackward0" and self._add_bias(node.inputs[1 - position])
            if is_bias:
                self._own.add(number)
            elif node.name not in _MOVES:
                return

    def _add_bias(self, edge: Edge | None) -> bool:
        tensor = self._tensor(edge)
        if tensor is not None:
            self.biases.append(tensor)
        return tensor is not None

    def _tensor(self, edge: Edge | None) -> Tensor | None:
        """Return the parameter behind an operand, if it has one element for each feature."""
        while edge is not None and self._graph.nodes[edge[0]].name in _CASTS:
            edge = self._graph.nodes[edge[0]].inputs[0]
        number = self._graph.nodes[edge[0]].parameter if edge is not None else None
        if edge is None or number is None:
            return None
        tensor = self._graph.parameters[number]
        if tensor.dim() != 1 or tensor.numel() != self._count:
            return None
        self._leaves.add(edge[0])
        return tensor
