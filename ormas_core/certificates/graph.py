"""Reads the executed autograd graph of a loss into plain values.

The one module of the certificate engine that knows torch's names for the parts of a graph.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn.modules._functions import SyncBatchNorm

from ormas_core.certificates.masks import Shape

LEAF: Final = "torch::autograd::AccumulateGrad"
SYNC_BATCH_NORM: Final = "SyncBatchNormBackward"
MOST_NODES: Final = 100_000
_SIGN_BIT: Final = 1 << 63
MOST_RECENT: Final = 8
"""Graphs that a reader knows again."""

Edge = tuple[int, int]
"""Index of the producing node, and which of its outputs."""

_Row = tuple[
    str,
    tuple[Edge | None, ...],
    tuple[Shape, ...],
    Any,
    Any,
    tuple[tuple[str, Any], ...],
    int | None,
]
_Before = tuple[tuple[Any, int], ...]
"""The nodes that a node sends gradients to, with which of their outputs."""
_Signature = tuple[list[_Row], tuple[Edge, ...]]


class UnreadableGraphError(Exception):
    """The loss has no graph that can be read; the text says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operation of the graph.

    Attributes:
        name: torch's exact name, digit included; a custom `autograd.Function` is prefixed
            `custom ` so that it can never be taken for an operation of torch's own.
        inputs: where each operand comes from; None for a constant, which is of unknown value.
        in_shapes: shape of each operand; that of the output where it is not recorded.
        out_shapes: shape of each output.
        dtype: of the first output, such as `float32`.
        device: of the first output, such as `cpu` or `cuda`.
        attrs: the recorded settings its rule asks for.
        parameter: for a leaf, its index in `Graph.parameters`.
    """

    name: str
    inputs: tuple[Edge | None, ...]
    in_shapes: tuple[Shape, ...]
    out_shapes: tuple[Shape, ...]
    dtype: str
    device: str
    attrs: Mapping[str, Any]
    parameter: int | None = None


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Graph:
    """The graph of one loss.

    Attributes:
        nodes: operands before the operations that use them.
        roots: the outputs that backward may start from, or that what it starts from depends on.
        users: for each node, the pairs (using node, operand position), outputs told apart by the
            edge itself.
        parameters: the leaves' tensors, each once.
        digest: hash of names, edges, settings and shapes, hexadecimal.
    """

    nodes: tuple[Node, ...]
    roots: tuple[Edge, ...]
    users: tuple[tuple[Edge, ...], ...]
    parameters: tuple[Tensor, ...]
    digest: str


def parameters_of(graphs: Sequence[Graph]) -> dict[int, Tensor]:
    """Return every parameter in the graphs, by id."""
    return {id(parameter): parameter for graph in graphs for parameter in graph.parameters}


class GraphReader:
    """Reads graphs, and knows the ones it has read again without building them anew.

    Args:
        settings: node name -> recorded settings to read; no others are touched, since reading a
            freed tensor raises.
    """

    def __init__(self, settings: Mapping[str, Sequence[str]]) -> None:
        self._settings = {
            name: tuple((setting, f"_saved_{setting}") for setting in wanted)
            for name, wanted in settings.items()
        }
        self._recent: list[tuple[_Signature, Graph]] = []

    def read(self, losses: Sequence[Tensor], names: Mapping[int, str]) -> Graph:
        """Read the graph behind a loss, or behind outputs that any loss may be computed from.

        Args:
            losses: tensors with a `grad_fn`; backward may have run already.
            names: id of a parameter -> its name, for the digest.

        Raises:
            UnreadableGraphError: there is no graph, or one too large.
        """
        starts = [loss for loss in losses if loss.grad_fn is not None]
        if not starts:
            raise UnreadableGraphError(
                "the loss has no graph: it was detached, or needs no gradient"
            )
        ordered = _ordered([loss.grad_fn for loss in starts])
        index = {function: i for i, function in enumerate(ordered)}
        rows = [self._row(function, before, index) for function, before in ordered.items()]
        roots = tuple(sorted({(index[loss.grad_fn], loss.output_nr) for loss in starts}))
        signature = (rows, roots)
        for known, graph in self._recent:
            if known == signature:
                return graph
        graph = _build(ordered, rows, roots, names)
        self._recent = [(signature, graph), *self._recent[: MOST_RECENT - 1]]
        return graph

    def _row(self, function: Any, before: _Before, index: Mapping[Any, int]) -> _Row:
        """Return everything about one node that a proof depends on."""
        name = _name(function)
        metadata = function._input_metadata
        wanted = self._settings.get(name)
        first = metadata[0]
        return (
            name,
            tuple(
                [
                    None if producer is None else (index[producer], output)
                    for producer, output in before
                ]
            ),
            # Sizes are tuples; they are turned into plain ones where a graph is built.
            (first.shape,) if len(metadata) == 1 else tuple([meta.shape for meta in metadata]),
            first.dtype,
            first.device,
            _attributes(function, wanted) if wanted else (),
            id(function.variable) if name == LEAF else None,
        )


def _attributes(function: Any, wanted: Sequence[tuple[str, str]]) -> tuple[tuple[str, Any], ...]:
    """Return the recorded settings of a node."""
    found = []
    for setting, saved in wanted:
        try:
            value = getattr(function, saved)
        except (AttributeError, RuntimeError):
            # Another version of torch, or freed: the rule then finds the setting missing.
            continue
        found.append((setting, _plain(value)))
    return tuple(found)


def read(
    losses: Sequence[Tensor], settings: Mapping[str, Sequence[str]], names: Mapping[int, str]
) -> Graph:
    """Read one graph; see `GraphReader.read`."""
    return GraphReader(settings).read(losses, names)


def _build(
    ordered: Iterable[Any], rows: Sequence[_Row], roots: tuple[Edge, ...], names: Mapping[int, str]
) -> Graph:
    nodes: list[Node] = []
    parameters: dict[int, tuple[int, Tensor]] = {}
    users: list[list[Edge]] = [[] for _ in ordered]
    sizes = [tuple(tuple(shape) for shape in row[2]) for row in rows]
    digest = hashlib.blake2b(digest_size=16)
    for i, (function, row) in enumerate(zip(ordered, rows, strict=True)):
        name, edges, _, dtype, device, attrs, variable = row
        shapes = sizes[i]
        for position, edge in enumerate(edges):
            if edge is not None:
                users[edge[0]].append((i, position))
        parameter = None
        if variable is not None:
            parameter, _ = parameters.setdefault(variable, (len(parameters), function.variable))
        in_shapes = tuple(
            sizes[edge[0]][edge[1]] if edge is not None else shapes[0] for edge in edges
        )
        kind = str(dtype).rpartition(".")[2]
        nodes.append(
            Node(name, edges, in_shapes, shapes, kind, device.type, dict(attrs), parameter)
        )
        label = names.get(variable, "?") if variable is not None else ""
        digest.update(repr((name, edges, shapes, kind, attrs, label)).encode())
    digest.update(repr(roots).encode())
    return Graph(
        nodes=tuple(nodes),
        roots=roots,
        users=tuple(tuple(edges) for edges in users),
        parameters=tuple(tensor for _, tensor in parameters.values()),
        digest=digest.hexdigest(),
    )


class CountingHook:
    """Counts the backward passes that write a parameter's gradient, and changes nothing.

    Args:
        counts: parameter id -> passes so far.
    """

    def __init__(self, counts: dict[int, int]) -> None:
        self._counts = counts

    def __call__(self, parameter: Tensor) -> None:
        """Count one pass."""
        self._counts[id(parameter)] = self._counts.get(id(parameter), 0) + 1


def has_gradient_hook(parameter: Tensor) -> bool:
    """Whether a hook may change the parameter's gradient, before or after it is accumulated.

    Hooks of our own do not: another monitor of the same model may be counting.
    """
    before, after = parameter._backward_hooks, parameter._post_accumulate_grad_hooks
    hooks = [*(before or {}).values(), *(after or {}).values()] if before or after else []
    return any(not isinstance(hook, CountingHook) for hook in hooks)


def is_here(parameter: Tensor) -> bool:
    """Whether all values of a parameter are in this process now.

    Not those of a DTensor or of FSDP1's flat parameter; nor those of the stand-in that FSDP2 puts
    into the graph and frees after the backward pass, of which every reading is one of memory that
    is not its own.
    """
    if hasattr(parameter, "_local_tensor") or hasattr(parameter, "_is_flat_param"):
        return False
    return parameter.numel() == 0 or parameter.untyped_storage().nbytes() > 0


def parameters_in(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield a module's own parameters by name; torch's own iterator takes ten times as long."""
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield name, parameter


def tensors_in(module: nn.Module) -> Iterator[Tensor]:
    """Yield a module's own parameters and buffers."""
    for held in (module._parameters, module._buffers):
        for tensor in held.values():
            if tensor is not None:
                yield tensor


def _ordered(roots: Sequence[Any]) -> dict[Any, _Before]:
    """Return the nodes with theirs before them, producers first. Iterative: graphs are deep."""
    done: dict[Any, _Before] = {}
    seen: dict[Any, _Before] = {}
    stack: list[Any] = list(roots)
    while stack:
        function = stack.pop()
        if function in done:
            continue
        before = seen.get(function)
        if before is None:
            before = seen[function] = function.next_functions
            waiting = [one for one, _ in before if one is not None and one not in done]
            if waiting:
                # Met again below its producers, it has all of them before it.
                stack.append(function)
                stack += waiting
                continue
        if len(done) >= MOST_NODES:
            raise UnreadableGraphError(f"the graph has more than {MOST_NODES} operations")
        done[function] = before
    return done


def _name(function: Any) -> str:
    if isinstance(function, BackwardCFunction):
        # Known by identity: anyone may give a class that name.
        if getattr(type(function), "_forward_cls", None) is SyncBatchNorm:
            return SYNC_BATCH_NORM
        return f"custom {type(function).__name__}"
    name: str = function.name()
    return name


def _plain(value: Any) -> Any:
    """Undo torch's way of showing signed numbers as unsigned ones."""
    kind = type(value)
    if kind is int:
        return value - 2 * _SIGN_BIT if value >= _SIGN_BIT else value
    if value is None or kind is bool or kind is float or kind is str:
        return value
    if isinstance(value, list | tuple):
        return tuple([_plain(item) for item in value])
    return kind.__name__
