"""Whether the lines of a proof speak of one graph: the checker's view of nodes, edges and uses."""

from collections.abc import Mapping, Sequence
from typing import Final

from ormas_core.certificates import check_norms, check_sums
from ormas_core.certificates.check_lines import need
from ormas_core.certificates.check_regions import is_box
from ormas_core.claims import Fact, StepKind, TraceStep, Use

LEAF: Final = "parameter"
_MOST_AXES: Final = 16
_MOST_SIZE: Final = 1 << 48
_MOST_ITEMS: Final = 4096
_STATES: Final = (StepKind.PARAMETER, StepKind.VALUE, StepKind.LIMIT)
_ROLES: Final = {
    "operand": _STATES,
    "output": (StepKind.GRADIENT,),
    "user": (StepKind.BACKWARD,),
}
_ALLOWED: Final[Mapping[StepKind, tuple[str, ...]]] = {
    StepKind.PARAMETER: (),
    StepKind.VALUE: ("operand",),
    StepKind.LIMIT: ("operand",),
    StepKind.BACKWARD: ("operand", "output"),
    StepKind.GRADIENT: ("user",),
}

Edge = tuple[int, int]
"""(node, output) of a tensor, or (node, operand) of a use of one."""


def _natural(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST_SIZE


def _naturals(value: object) -> bool:
    return isinstance(value, tuple) and len(value) <= _MOST_AXES and all(map(_natural, value))


def well_formed(step: TraceStep) -> None:
    """Doubt a line whose fields are not what the format says."""
    known = isinstance(step, TraceStep) and isinstance(step.kind, StepKind)
    need(known and isinstance(step.op, str) and isinstance(step.name, str), "it is no line")
    need(_natural(step.node) and _natural(step.position) and _natural(step.users), "it is no line")
    need(_naturals(step.shape) and 0 not in step.shape, "its shape is none, or empty")
    for shapes in (step.operands, step.outputs):
        fine = isinstance(shapes, tuple) and len(shapes) <= _MOST_ITEMS
        need(fine and all(map(_naturals, shapes)), "its shapes are none")
        need(not any(0 in shape for shape in shapes), "a tensor is empty; another need not be")
    need(isinstance(step.box, tuple) and len(step.box) <= _MOST_AXES, "its box is none")
    fine = all(_naturals(span) and len(span) == 3 for span in step.box)  # noqa: PLR2004
    need(fine and is_box(step.box, step.shape), "its box is not in the tensor, or empty")
    need(isinstance(step.uses, tuple) and len(step.uses) <= _MOST_ITEMS, "its uses are none")
    need(all(map(_use, step.uses)), "its uses are none")
    settings = {} if step.settings is None else step.settings
    fine = isinstance(settings, Mapping) and len(settings) <= _MOST_ITEMS
    texts = fine and all(isinstance(t, str) for item in settings.items() for t in item)
    need(texts, "its settings are no texts")
    need((step.op == LEAF) == (step.name != ""), "parameters have names, and nothing else has")
    if step.kind in _STATES:
        need(isinstance(step.fact, Fact), "it states no fact")
    else:
        need(step.fact is None, "a gradient has no other fact than to be zero")


def _use(use: object) -> bool:
    fine = isinstance(use, Use) and _natural(use.step) and _natural(use.position)
    return fine and use.role in _ROLES  # type: ignore[attr-defined]


class Wiring:
    """What the lines so far say of the graph; each new line must agree.

    Attributes:
        nodes: number -> the first line about the node.
        edges: (node, operand) -> the tensor it is.
        readers: tensor -> the uses of it that are known.
        users: tensor -> all uses of it, as its gradient was stated.
    """

    def __init__(self) -> None:
        self.nodes: dict[int, TraceStep] = {}
        self.edges: dict[Edge, Edge] = {}
        self.readers: dict[Edge, set[Edge]] = {}
        self.users: dict[Edge, list[Edge]] = {}
        self._leaves: dict[str, int] = {}

    def add(self, index: int, step: TraceStep, steps: Sequence[TraceStep]) -> None:
        """Take in a line.

        Raises:
            Doubt: it contradicts itself or an earlier one, or uses a later one.
        """
        self._node(step)
        self._subject(step)
        for use in step.uses:
            need(use.step < index, f"it uses line {use.step}, which is not before it")
            self._premise(step, use, steps[use.step])
        if step.kind is StepKind.GRADIENT:
            self._all_users(step, steps)

    def _node(self, step: TraceStep) -> None:
        known = self.nodes.setdefault(step.node, step)
        same = (step.op, step.name, step.operands, step.outputs) == (
            known.op,
            known.name,
            known.operands,
            known.outputs,
        )
        need(same and _same_settings(step, known), f"node {step.node} is described in two ways")
        if step.op == LEAF:
            need(step.kind in (StepKind.PARAMETER, StepKind.GRADIENT), "a parameter is a leaf")
            need(
                not step.operands and tuple(step.outputs) == (step.shape,), "a parameter is a leaf"
            )
            node = self._leaves.setdefault(step.name, step.node)
            need(node == step.node, f"{step.name} is at two nodes")
        else:
            need(step.kind is not StepKind.PARAMETER, "it is no parameter")

    def _subject(self, step: TraceStep) -> None:
        shapes = step.operands if step.kind is StepKind.BACKWARD else step.outputs
        need(step.position < len(shapes), f"there is no tensor {step.position}")
        need(shapes[step.position] == step.shape, "its shape is not that of the tensor")
        need(
            step.kind is StepKind.GRADIENT or step.users == 0, "only gradients are summed over uses"
        )

    def _premise(self, step: TraceStep, use: Use, other: TraceStep) -> None:
        fits = use.role in _ALLOWED[step.kind] and other.kind in _ROLES[use.role]
        need(fits, f"line {use.step} is no premise of this kind")
        if use.role == "output":
            same = (other.node, other.position) == (step.node, use.position)
            need(same, f"line {use.step} is not about output {use.position} of this operation")
        elif use.role == "operand":
            self._edge((step.node, use.position), (other.node, other.position), step, other)
        else:
            self._edge((other.node, other.position), (step.node, step.position), other, step)

    def _edge(self, end: Edge, tensor: Edge, user: TraceStep, producer: TraceStep) -> None:
        """Note that the tensor `producer` is about is the operand `end` of `user`."""
        need(producer.node < user.node, "an operation does not use what comes after it")
        need(end[1] < len(user.operands), f"there is no operand {end[1]}")
        need(user.operands[end[1]] == producer.shape, "the shapes of operand and tensor differ")
        known = self.edges.setdefault(end, tensor)
        need(known == tensor, f"operand {end[1]} of node {end[0]} is two tensors")
        self.readers.setdefault(tensor, set()).add(end)

    def _all_users(self, step: TraceStep, steps: Sequence[TraceStep]) -> None:
        """One zero gradient for each use, in the order and number that were stated before."""
        # The lengths first: the number stated may be any.
        counted = len(step.uses) == step.users
        counted = counted and [use.position for use in step.uses] == list(range(step.users))
        need(counted, f"it has {step.users} uses, and not one line for each, in order")
        ends = [(steps[use.step].node, steps[use.step].position) for use in step.uses]
        need(len(set(ends)) == len(ends), "it counts one use twice")
        known = self.users.setdefault((step.node, step.position), ends)
        need(known == ends, "its uses are stated in two ways")

    def complete(self) -> None:
        """Check what only all lines together show.

        Raises:
            Doubt: a gradient left out a use; or what nobody uses may be the loss itself.
        """
        used = {tensor[0] for tensor, known in self.readers.items() if known}
        for tensor, ends in self.users.items():
            left = self.readers.get(tensor, set()) - set(ends)
            need(not left, f"the gradient of node {tensor[0]} leaves out its use by {sorted(left)}")
            read = bool(ends) or tensor[0] in used
            need(read, f"node {tensor[0]} may be the loss: nobody uses it")


def _same_settings(one: TraceStep, other: TraceStep) -> bool:
    """Whether two lines record the same settings; a `limit` line has numbers of its own beside."""
    a, b = dict(one.settings or {}), dict(other.settings or {})
    if StepKind.LIMIT not in (one.kind, other.kind):
        return a == b
    for name in (*check_norms.EXTRA, *check_sums.EXTRA):
        a.pop(name, None)
        b.pop(name, None)
    shared = {name for name in (*a, *b) if name != "eps" or (name in a and name in b)}
    return all(a.get(name) == b.get(name) for name in shared)
