"""What makes a proof worth trying: without one of these facts no unit of a model can be closed.

A closed unit needs weights, or a scale, that are exactly zero or of one sign throughout, or a norm
that limits might close. Most checks of a healthy model end here. What this overlooks (operations
that are constant whatever the parameters are) is not claimed, which is sound.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from ormas_core.certificates import masks, norm_limits
from ormas_core.certificates.graph import LEAF, Graph, Node
from ormas_core.certificates.masks import Mask
from ormas_core.certificates.signs import Signs
from ormas_core.certificates.sums import gated_sums
from ormas_core.certificates.suspects import parameter_of
from ormas_core.certificates.units import weights

_SIGNED: Final = frozenset(
    {
        "ReluBackward0",
        "HardtanhBackward0",
        "ClampBackward1",
        "ClampMinBackward0",
        "ClampMaxBackward0",
        "ThresholdBackward0",
        "SigmoidBackward0",
        "HardsigmoidBackward0",
        "ExpBackward0",
        "SoftplusBackward0",
        "SoftmaxBackward0",
        "SafeSoftmaxBackward0",
        "AbsBackward0",
        "SqrtBackward0",
        "EmbeddingBackward0",
    }
)
"""Operations whose results may be known to be of one sign; a table's, by its own values."""
_PRODUCTS: Final = frozenset(
    {"MmBackward0", "AddmmBackward0", "BmmBackward0", "BaddbmmBackward0", "MvBackward0"}
)
_JOINT: Final = frozenset(
    {"AddBackward0", "SubBackward0", "MulBackward0", "DivBackward0", "WhereBackward0"}
)
"""Operations whose result has a sign only where each operand has one."""
_STOPS: Final = _PRODUCTS | {
    "ConvolutionBackward0",
    "EmbeddingBackward0",
    "NativeLayerNormBackward0",
    "NativeGroupNormBackward0",
    "LogSoftmaxBackward0",
}
"""Operations past which a sign does not come from one operand alone."""


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """What the form of a graph says about its parameters.

    Attributes:
        scales: ids of vectors that multiply activations.
        signed: ids of matrices that meet activations of one sign, so that their own signs matter.
        tables: ids of parameters whose rows are looked up: a row may be picked by any batch, so
            only what holds for a feature in all of them can last.
        outputs: id of a weight -> its axis of output features.
        sums: numbers of the nodes at which a bias may close a gate, see `gated_sums`.
        norms: numbers of the norms that may close a channel within limits.
    """

    scales: frozenset[int]
    signed: frozenset[int]
    tables: frozenset[int]
    outputs: Mapping[int, int]
    sums: tuple[int, ...]
    norms: tuple[int, ...]

    def axes(self, key: int, *, first: bool = False) -> tuple[int, ...]:
        """Return the axes of a parameter along which a slice of zeros matters.

        Args:
            key: its id.
            first: only those along which it matters by itself. Zero weights of an input last only
                where that input is zero, and something else must make it so.
        """
        if first and key in self.outputs:
            return (self.outputs[key],)
        return (1,) if key in self.tables else (0, 1)


_SEEN: Final[WeakKeyDictionary[Graph, Structure]] = WeakKeyDictionary()
"""Graph -> what its form says: a graph never changes, and is forgotten with its form."""


def structure(graph: Graph) -> Structure:
    """Look at the form of a graph, once."""
    held = _SEEN.get(graph)
    if held is None:
        held = _SEEN[graph] = _look(graph)
    return held


def _look(graph: Graph) -> Structure:
    signed_value = [False] * len(graph.nodes)
    reach: list[frozenset[int]] = []
    scales: set[int] = set()
    signed: set[int] = set()
    for number, node in enumerate(graph.nodes):
        edges = [edge for edge in node.inputs if edge is not None]
        if node.name == LEAF and node.parameter is not None:
            reach.append(frozenset({id(graph.parameters[node.parameter])}))
            continue
        below = [reach[producer] for producer, _ in edges]
        stops = node.name in _STOPS
        signed_value[number] = _signed(node, [signed_value[producer] for producer, _ in edges])
        if node.name in _PRODUCTS and any(signed_value[producer] for producer, _ in edges):
            signed.update(*below)
        if "Norm" in node.name and len(node.inputs) > 1 and node.inputs[1] is not None:
            scales |= reach[node.inputs[1][0]]
        elif node.name in {"MulBackward0", "DivBackward0"}:
            scales.update(*below)
        # A weight's own name goes up only through operations that move its elements.
        reach.append(frozenset().union(*below) if len(edges) == 1 and not stops else frozenset())
    return Structure(
        scales=frozenset(scales),
        signed=frozenset(signed),
        tables=frozenset(_tables(graph)),
        outputs={id(parameter_of(graph, one)): one.axis for one in weights(graph)},
        sums=gated_sums(graph),
        norms=tuple(number for number, node in enumerate(graph.nodes) if norm_limits.covers(node)),
    )


def _tables(graph: Graph) -> Iterator[int]:
    """Yield the ids of the parameters that are looked up as they are."""
    for node in graph.nodes:
        if node.name == "EmbeddingBackward0" and node.inputs[0] is not None:
            parameter = graph.nodes[node.inputs[0][0]].parameter
            if parameter is not None:
                yield id(graph.parameters[parameter])


def _signed(node: Node, operands: list[bool]) -> bool:
    """Whether a result may be known to be of one sign, from whether its operands may."""
    if node.name == "PowBackward0":
        exponent = node.attrs.get("exponent")
        even = isinstance(exponent, int | float) and exponent % 2 == 0
        return even or any(operands)
    if node.name in _SIGNED or node.name in _STOPS:
        return node.name in _SIGNED
    if node.name in _JOINT:
        return len(operands) == len(node.inputs) and all(operands)
    return any(operands)


def candidate(key: int, now: Signs, form: Structure, *, first: bool = False) -> bool:
    """Whether a parameter has a fact that could close something.

    Args:
        key: its id.
        now: what its stored values are.
        form: the graph's.
        first: see `Structure.axes`.
    """
    if not now.known:
        return False
    shape = now.shape
    if len(shape) < 2:  # noqa: PLR2004 - a vector matters where it scales
        return key in form.scales and bool(now.zero.parts)
    facts: Iterable[Mask] = (now.zero, now.neg, now.pos) if key in form.signed else (now.zero,)
    axes = form.axes(key, first=first)
    return any(_has_slice(mask, axes) for mask in facts)


def fingerprint(found: Mapping[int, Signs], form: Structure) -> tuple[object, ...]:
    """Return the candidates with their facts, to compare with those of another check."""
    parts: list[object] = []
    for key, now in found.items():
        if candidate(key, now, form):
            facts = (now.zero, now.neg, now.pos) if key in form.signed else (now.zero,)
            parts.append(key)
            parts.extend((p.shape, p.tobytes()) for mask in facts for p in mask.parts)
    return tuple(parts)


def _has_slice(mask: Mask, axes: tuple[int, ...]) -> bool:
    """Whether a whole slice along one of the axes is in the mask."""
    if not mask.parts:
        return False
    rank = len(mask.shape)
    return any(
        bool(masks.all_over(mask, [a for a in range(rank) if a != axis]).parts) for axis in axes
    )
