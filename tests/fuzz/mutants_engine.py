"""Planted bugs in the prover's own steps, in the sets, and in the rules of optimizers."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

from ormas_core.certificates import leaves, masks, optimizers, prover, signs
from ormas_core.certificates.graph import Graph, Node
from ormas_core.certificates.masks import Mask
from ormas_core.certificates.optimizers import Rest, Slot
from ormas_core.certificates.prover import Pass, Proof
from ormas_core.certificates.rules import arithmetic
from ormas_core.certificates.signs import Signs

Plant = Callable[[], contextlib.AbstractContextManager[None]]
Pick = Callable[[Tensor], Tensor]


def patched(owner: Any, name: str, value: Any) -> Plant:
    @contextlib.contextmanager
    def plant() -> Iterator[None]:
        with mock.patch.object(owner, name, value):
            yield

    return plant


def _in_prover(name: str, value: Callable[..., Any]) -> Plant:
    """Return a bug in what the prover calls `masks`: a module like it, with one other function."""

    class Other:
        def __getattr__(self, asked: str) -> Any:
            return value if asked == name else getattr(masks, asked)

    return patched(prover, "masks", Other())


_leaf_masks, _backward = prover._leaf_masks, prover._backward


def _first_round(graphs: Sequence[Graph], start: Mapping[int, Signs], extra: Any = None) -> Proof:
    """Facts are not given up where their own gradient is not masked."""
    passes = tuple(prover._run(graph, start, extra) for graph in graphs)
    closed = _leaf_masks(graphs, passes)
    kept = {
        key: held
        if closed.get(key) is not None and closed[key].parts
        else signs.unknown(held.shape)
        for key, held in start.items()
    }
    return Proof(kept, closed, passes, 1)


def _one_graph(graphs: Sequence[Graph], passes: Sequence[Pass]) -> dict[int, Mask]:
    """The other losses of the step are forgotten."""
    return _leaf_masks(graphs[:1], passes[:1])


def _known_constants(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """A constant operand is taken for zero."""
    shape = node.out_shapes[0]
    zero = masks.everything(shape)
    return [
        Signs(zero, zero, zero) if edge is None else one.map(lambda m: masks.spread(m, shape))
        for edge, one in zip(node.inputs, operands, strict=True)
    ]


def _opaque_masks(node: Node, rule: Any, found: Pass, own: list[Mask]) -> Sequence[Mask]:
    """An operation without a rule is thought to pass no gradient."""
    if rule is None:
        return [masks.everything(shape) for shape in node.in_shapes]
    return _backward(node, rule, found, own)


def _first_column(values: Tensor, axis: int, *_: Any) -> Any:
    rows = values.transpose(0, axis)[:, :1].flatten(1)
    return (rows <= 0).all(1).numpy(), (rows >= 0).all(1).numpy()


def _lasting(*args: Any) -> Any:
    """All facts are thought to last, whatever the optimizer does."""
    name, _, now, *_ = args
    return leaves.Leaf(name, now, now, masks.everything(now.shape), "")


ENGINE_BUGS: Final[dict[tuple[str, str], Plant]] = {
    ("prover", "one consumer is enough"): _in_prover("meet", masks.join),
    ("prover", "the last consumer counts"): _in_prover("meet", lambda _, b: b),
    ("prover", "facts need no masked gradient"): patched(prover, "prove", _first_round),
    ("prover", "only the first loss counts"): patched(prover, "_leaf_masks", _one_graph),
    ("arithmetic", "constants are zero"): patched(arithmetic, "_spread", _known_constants),
    ("prover", "opaque operations pass nothing"): patched(prover, "_backward", _opaque_masks),
    ("leaves", "every fact lasts"): patched(leaves, "leaf", _lasting),
    ("leaves", "a row is like its first column"): patched(leaves, "_along", _first_column),
}

_rules: Final = optimizers._RULES


def _rule(kind: type[Optimizer], rule: Callable[[Slot, Tensor, Pick], Rest]) -> Plant:
    @contextlib.contextmanager
    def plant() -> Iterator[None]:
        with mock.patch.dict(_rules, {kind: rule}):  # type: ignore[arg-type]
            yield

    return plant


def _without_state(kind: type[Optimizer]) -> Plant:
    """Left-over momentum is overlooked."""
    own = _rules[kind]
    return _rule(kind, lambda slot, v, pick: own(_with(slot, state={}), v, pick))


def _without(kind: type[Optimizer], **group: Any) -> Plant:
    """A setting is read as another."""
    own = _rules[kind]
    return _rule(
        kind, lambda slot, v, pick: own(_with(slot, group={**slot.group, **group}), v, pick)
    )


def _with(slot: Slot, **changes: Any) -> Slot:
    state, group = changes.get("state", slot.state), changes.get("group", slot.group)
    return Slot(slot.kind, group, state, slot.lr_max, slot.asserted)


def _smaller_drift(kind: type[Optimizer]) -> Plant:
    own = _rules[kind]

    def rule(slot: Slot, values: Tensor, pick: Pick) -> Rest:
        found = own(slot, values, pick)
        drift = found.drift / 16
        return found._replace(
            drift=drift, keeps_sign=found.keeps_sign | ((values != 0) & (drift < values.abs()))
        )

    return _rule(kind, rule)


def _everything(slot: Slot, values: Tensor, pick: Pick) -> Rest:
    return Rest(torch.ones_like(values).bool(), torch.zeros_like(values), True, "")


def _any_rate(*_: float) -> None:
    """A decay of any size only shrinks."""


_MOMENTUM: Final = (optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax)
_COUPLED: Final = (
    optim.Adam,
    optim.NAdam,
    optim.RAdam,
    optim.Adamax,
    optim.Adagrad,
    optim.RMSprop,
    optim.Adadelta,
)
_SHRINKING: Final = (optim.SGD, optim.AdamW, optim.ASGD, optim.Adafactor)

OPTIMIZER_BUGS: Final[dict[tuple[type[Optimizer], str], Plant]] = {
    **{(kind, "momentum is overlooked"): _without_state(kind) for kind in _MOMENTUM},
    (optim.RMSprop, "momentum is overlooked"): _without_state(optim.RMSprop),
    **{
        (kind, "coupled decay is overlooked"): _without(kind, weight_decay=0.0) for kind in _COUPLED
    },
    **{
        (kind, "a decay of any size only shrinks"): patched(optimizers, "_shrink_factor", _any_rate)
        for kind in _SHRINKING
    },
    **{(kind, "the drain is an eighth"): _smaller_drift(kind) for kind in (optim.SGD, optim.AdamW)},
    (optim.SGD, "there is no cone"): _rule(optim.SGD, _everything),
    (optim.SGD, "all momentum is Nesterov's"): _without(optim.SGD, nesterov=True),
    (optim.ASGD, "lambd is overlooked"): _without(optim.ASGD, lambd=0.0),
    (optim.Adam, "eps may be zero"): patched(
        optimizers, "_guard_eps", lambda slot, values: float(slot.group["eps"])
    ),
    (optim.SGD, "numbers are not rounded"): patched(
        optimizers, "_precision", lambda values: optimizers._Precision(1e-12, 1e-300, 1e-290)
    ),
}
