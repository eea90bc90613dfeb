"""The slow, obviously right check of a rule: run its operation and look at every number.

A program makes the node under test from leaves, some elements of which are zero, nonpositive or
nonnegative. The rules then say what must hold for *all* values of the other elements; here they
are drawn anew, and large, tiny, tied, and zero; upstream gradients are zero where planned.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from fuzz.build import Shape, seeded
from torch import Tensor

from ormas_core.certificates import graph, masks, prover
from ormas_core.certificates.graph import Graph
from ormas_core.certificates.masks import Part
from ormas_core.certificates.rules import SETTINGS
from ormas_core.certificates.signs import Signs, facts

Program = Callable[..., Tensor | Sequence[Tensor]]
_KINDS: Final = ("zero", "neg", "pos")
_MODES: Final = ("plain", "large", "tiny", "ties", "zeros")


class Case(NamedTuple):
    """A program that makes one node.

    Attributes:
        program: from the leaves to the output, or outputs.
        shapes: of the leaves.
        values: which values they take: any, or positive ones.
        stands_for: renames the node made on a CPU to that of a GPU: (name here, attribute changes).
    """

    program: Program
    shapes: tuple[Shape, ...]
    values: str = "any"
    stands_for: tuple[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] | None = None


class Verdict(NamedTuple):
    """What came of one examination.

    Attributes:
        wrong: what was claimed and did not hold.
        forward: whether a fact about an output was claimed.
        backward: whether a gradient was claimed to be zero.
        lively: whether it was although not all upstream gradients were zero.
        checked: how many draws had finite numbers.
    """

    wrong: list[str]
    forward: bool
    backward: bool
    lively: bool
    checked: int


class _Plan:
    """What is planned for the elements of one leaf, and the values drawn to it."""

    def __init__(self, shape: Shape, rng: random.Random, kinds: Sequence[str]) -> None:
        self.parts: dict[str, list[Part]] = {kind: [] for kind in _KINDS}
        self.shape = shape
        for _ in range(rng.choice((0, 1, 1, 2))):
            kind = rng.choice(kinds)
            self.parts[kind].append(_pattern(shape, rng))
        self.where = {kind: self._dense(kind) for kind in _KINDS}

    def signs(self) -> Signs:
        zero, neg, pos = (masks.union_of(self.shape, self.parts[kind]) for kind in _KINDS)
        return facts(zero, neg, pos)

    def _dense(self, kind: str) -> Tensor:
        found = np.zeros(self.shape, dtype=bool)
        for part in self.parts[kind]:
            found = found | part
        return torch.from_numpy(np.asarray(found))

    def draw(self, mode: str, rng: random.Random) -> Tensor:
        x = torch.randn(self.shape, dtype=torch.float64)
        if mode == "ties":
            x = x.round()
        if mode == "zeros":
            x[torch.rand(self.shape) < 0.5] = 0.0
        x = x * {"large": 1e3, "tiny": 1e-4}.get(mode, 1.0)
        neg, pos, zero = (self.where[kind] for kind in ("neg", "pos", "zero"))
        x = torch.where(neg, -x.abs(), torch.where(pos, x.abs(), x))
        return torch.where(zero | (neg & pos), rng.choice((0.0, -0.0)), x)


def _pattern(shape: Shape, rng: random.Random) -> Part:
    """Return a set of elements: all, some along one axis or two, or any."""
    rank = len(shape)
    axes = rng.choice(((), (0,), (1,), (1,), (rank - 1,), (0, 1), tuple(range(rank))))
    pattern = [shape[axis] if axis in axes else 1 for axis in range(rank)]
    share = rng.choice((0.3, 0.5, 0.8))
    drawn = np.array([rng.random() < share for _ in range(int(np.prod(pattern)))], dtype=bool)
    return drawn.reshape(pattern)


def examine(case: Case, name: str, seed: int, device: str = "cpu", draws: int = 3) -> Verdict:
    """Claim once, then check the claims on several draws of everything that they leave open."""
    rng = seeded(seed)
    torch.manual_seed(seed)
    kinds = ("pos",) if case.values == "positive" else _KINDS
    plans = [_Plan(shape, rng, kinds) for shape in case.shapes]
    dtype = rng.choice((torch.float32, torch.float32, torch.float64, torch.bfloat16))
    shapes = _output_shapes(case, dtype, device)
    if shapes is None:
        dtype = torch.float32
        shapes = _output_shapes(case, dtype, device)
    assert shapes is not None, "the program does not run in single precision"
    leaves = [
        torch.zeros(shape, dtype=dtype, device=device, requires_grad=True) for shape in case.shapes
    ]
    upstream = [_Plan(shape, rng, ("zero",)) for shape in shapes]
    grads = [torch.zeros(shape, device=device, requires_grad=True) for shape in shapes]
    said: _Said | None = None
    wrong: list[str] = []
    checked = 0
    for mode in rng.sample(_MODES, len(_MODES))[:draws]:
        for leaf, plan in zip(leaves, plans, strict=True):
            drawn = plan.draw(mode, rng)
            _set(leaf, drawn.abs() + 1e-3 if kinds == ("pos",) else drawn)
        for grad, plan in zip(grads, upstream, strict=True):
            _set(grad, plan.draw("plain", rng))
        outputs = _listed(case.program(*leaves))
        products = [(o.float() * g).sum() for o, g in zip(outputs, grads, strict=True)]
        loss = torch.stack(products).sum()
        if said is None:
            said = _claim(case, name, loss, outputs, (*leaves, *grads), (*plans, *upstream))
        wrong += said.wrong_outputs(outputs)
        loss.backward()
        checked += said.finite(outputs, leaves)
        wrong += said.wrong_gradients(leaves)
    assert said is not None
    backward = said.says_backward(len(leaves))
    open_at_all = any(not bool(plan.where["zero"].all()) for plan in upstream)
    return Verdict(wrong, said.says_forward(), backward, backward and open_at_all, checked)


def _output_shapes(case: Case, dtype: torch.dtype, device: str) -> list[Shape] | None:
    """Return the shapes of what the program makes, or None: torch has no kernel for the type."""
    leaves = [torch.rand(shape, dtype=dtype, device=device) for shape in case.shapes]
    try:
        outputs = _listed(case.program(*(leaf.requires_grad_() for leaf in leaves)))
        torch.stack([one.float().sum() for one in outputs]).sum().backward()
    except (RuntimeError, NotImplementedError):
        return None
    return [tuple(one.shape) for one in outputs]


def _listed(made: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [made] if isinstance(made, Tensor) else list(made)


def _set(leaf: Tensor, values: Tensor) -> None:
    leaf.grad = None
    with torch.no_grad():
        leaf.copy_(values)


class _Said:
    """What the rules claim of outputs and of gradients."""

    def __init__(self, outputs: list[Signs], closed: list[Tensor]) -> None:
        self.outputs = [
            [_dense(mask.dense(), mask.shape) for mask in (one.zero, one.neg, one.pos)]
            for one in outputs
        ]
        self.closed = closed

    def says_forward(self) -> bool:
        return any(bool(mask.any()) for one in self.outputs for mask in one)

    def says_backward(self, count: int) -> bool:
        return any(bool(mask.any()) for mask in self.closed[:count])

    def wrong_outputs(self, outputs: Sequence[Tensor]) -> list[str]:
        found = []
        for number, (said, output) in enumerate(zip(self.outputs, outputs, strict=True)):
            value = output.detach().cpu()
            if not bool(value.isfinite().all()):
                continue
            for fact, where, broken in zip(
                ("zero", "<= 0", ">= 0"), said, (value != 0, value > 0, value < 0), strict=True
            ):
                if bool((where & broken).any()):
                    bad = value[where & broken][0]
                    found.append(f"output {number} is claimed to be {fact} and is {float(bad):.3g}")
        return found

    def finite(self, outputs: Sequence[Tensor], leaves: Sequence[Tensor]) -> bool:
        every = [*outputs, *(leaf.grad for leaf in leaves if leaf.grad is not None)]
        return all(bool(one.isfinite().all()) for one in every)

    def wrong_gradients(self, leaves: Sequence[Tensor]) -> list[str]:
        found = []
        for number, (leaf, mask) in enumerate(zip(leaves, self.closed, strict=False)):
            if leaf.grad is None or not bool(leaf.grad.isfinite().all()):
                continue
            grad = leaf.grad.cpu() * mask
            if bool(grad.any()):
                found.append(f"operand {number} has gradient {float(grad.abs().max()):.3g}, not 0")
        return found


def _dense(part: Part, shape: Shape) -> Tensor:
    return torch.from_numpy(np.array(np.broadcast_to(part, shape)))


def _claim(
    case: Case,
    name: str,
    loss: Tensor,
    outputs: Sequence[Tensor],
    tensors: Sequence[Tensor],
    plans: Sequence[_Plan],
) -> _Said:
    read = graph.read([loss], {**SETTINGS}, {})
    if case.stands_for is not None:
        read = _renamed(read, name, case)
    assert any(node.name == name for node in read.nodes), [node.name for node in read.nodes]
    start = {id(tensor): plan.signs() for tensor, plan in zip(tensors, plans, strict=True)}
    found = prover._run(read, start, None)
    place = {function: i for i, function in enumerate(graph._ordered([loss.grad_fn]))}
    said = [found.facts[place[one.grad_fn]][one.output_nr] for one in outputs]
    masked = prover._leaf_masks([read], [found])
    closed = [masked.get(id(tensor), masks.none(tuple(tensor.shape))) for tensor in tensors]
    return _Said(said, [_dense(mask.dense(), mask.shape) for mask in closed])


def _renamed(read: Graph, name: str, case: Case) -> Graph:
    assert case.stands_for is not None
    here, change = case.stands_for
    nodes = tuple(
        replace(node, name=name, attrs=change(node.attrs)) if node.name == here else node
        for node in read.nodes
    )
    return replace(read, nodes=nodes)
