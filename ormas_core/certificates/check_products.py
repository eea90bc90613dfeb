"""What the checker knows of sums of products: matrix products, convolutions, attention.

Each is written as a sum of terms over an index space: a fact about a factor, or a zero gradient,
covers a box of that space, and a line follows if the boxes cover all the terms it is about. Sums of
zeros are exactly zero, and sums of terms of one sign keep it, rounded in any order.
"""

from typing import Final

from ormas_core.certificates.check_lines import (
    NOTHING,
    Line,
    Operation,
    Table,
    found_box,
    need,
    product,
    scaled,
)
from ormas_core.certificates.check_regions import (
    Boxes,
    Shape,
    all_of,
    covers,
    is_all,
    spread,
    unmerge,
    whole,
)
from ormas_core.claims import Box


def _inner(line: Line, a: int, b: int) -> int:
    """Return the summed size, from an operand whose shape is its own."""
    left, right, out = line.operand(a), line.operand(b), line.out()
    sizes = set()
    if line.real(a):
        need(len(left) == len(out) and left[:-1] == out[:-1], "the shapes do not fit")
        sizes.add(left[-1])
    if line.real(b):
        fits = len(right) == len(out) and (*right[:-2], right[-1]) == (*out[:-2], out[-1])
        need(fits, "the shapes do not fit")
        sizes.add(right[-2])
    need(len(sizes) == 1, "the summed sizes do not fit")
    return sizes.pop()


class _Terms:
    """Terms a[.., n, k] * b[.., k, o] of a matrix product, in coordinates (.., n, k, o)."""

    def __init__(self, line: Line, a: int, b: int) -> None:
        need(len(line.out()) >= 2, "it is no matrix")  # noqa: PLR2004
        self.summed = _inner(line, a, b)
        self.out = line.out()
        self.space = (*self.out[:-1], self.summed, self.out[-1])

    def of_a(self, box: Box) -> Boxes:
        return ((*box, all_of(self.out[-1])),)

    def of_b(self, box: Box) -> Boxes:
        return ((*box[:-2], all_of(self.out[-2]), *box[-2:]),)

    def of_out(self, box: Box) -> Boxes:
        return ((*box[:-1], all_of(self.summed), box[-1]),)


def matrix(first: int) -> Operation:
    """Return the rule of beta * c + alpha * (a @ b), with c before a if `first` is 1.

    out[n, o] sums a[n, k] * b[k, o] over k. grad a[n, k] sums grad[n, o] * b[k, o] over o, and
    grad b[k, o] sums grad[n, o] * a[n, k] over n: term by term zero.
    """

    def value(line: Line) -> bool:
        box, fact = line.box, line.step.fact
        alpha = line.number("alpha") if first else 1.0
        beta = line.number("beta") if first else 0.0
        if alpha != 0:
            terms = _Terms(line, first, first + 1)
            a = line.facts(first).moved(terms.of_a)
            b = line.facts(first + 1).moved(terms.of_b)
            found = scaled(product(a, b), alpha, terms.space)
            if not all(covers(found.of(fact), goal) for goal in terms.of_out(box)):
                return False
        added = scaled(line.facts_in(0, line.out()) if first else NOTHING, beta, line.out())
        return covers(added.of(fact), box)

    def backward(line: Line) -> bool:
        position = line.step.position
        if first and position == 0:
            return covers(line.shut(), found_box(spread(line.box, line.operand(0), line.out())))
        need(first <= position <= first + 1, "there is no such operand")
        terms = _Terms(line, first, first + 1)
        shut = tuple(new for box in line.shut() for new in terms.of_out(box))
        if position == first:
            goals = terms.of_a(line.box)
            other = line.facts(first + 1).moved(terms.of_b)
        else:
            goals = terms.of_b(line.box)
            other = line.facts(first).moved(terms.of_a)
        return all(covers((*shut, *other.zero), goal) for goal in goals)

    return Operation(value, backward)


class _Row:
    """Terms a[.., k] * b[k] of a product with a vector, in coordinates (.., k)."""

    def __init__(self, line: Line) -> None:
        out = line.out()
        need(len(line.step.operands) == 2 and len(out) < 2, "it is no such product")  # noqa: PLR2004
        sizes = {line.operand(number)[-1:] for number in (0, 1) if line.real(number)}
        need(len(sizes) == 1, "the summed sizes do not fit")
        self.summed = sizes.pop()
        self.lead = whole(out)
        for number, shape in ((0, (*out, *self.summed)), (1, self.summed)):
            need(not line.real(number) or line.operand(number) == shape, "the shapes do not fit")

    def of_b(self, box: Box) -> Boxes:
        return ((*self.lead, *box),)

    def of_out(self, box: Box) -> Boxes:
        return ((*box, *whole(self.summed)),)


def _vector_value(line: Line) -> bool:
    """As for matrices, with one column."""
    terms = _Row(line)
    found = product(line.facts(0), line.facts(1).moved(terms.of_b)).of(line.step.fact)
    return all(covers(found, goal) for goal in terms.of_out(line.box))


def _vector_backward(line: Line) -> bool:
    """As for matrices, with one column."""
    terms = _Row(line)
    shut = tuple(new for box in line.shut() for new in terms.of_out(box))
    if line.step.position == 0:
        return covers((*shut, *line.facts(1).moved(terms.of_b).zero), line.box)
    return all(covers((*shut, *line.facts(0).zero), goal) for goal in terms.of_b(line.box))


class _Channels:
    """Terms weight[g, o, i] * x[n, g, i] of a grouped convolution, in coordinates (n, g, o, i).

    A weight is (out, in / groups, ..), and transposed (in, out / groups, ..). A premise counts if
    it holds at every position, or for the whole kernel.
    """

    def __init__(self, line: Line) -> None:
        out, weight, x = line.out(), line.operand(1), line.operand(0)
        self.transposed = line.flag("transposed")
        self.groups = line.integer("groups")
        need(len(out) > 2 and self.groups > 0, "it is no convolution")  # noqa: PLR2004
        self.batch, channels = out[:2]
        need(channels % self.groups == 0, "the groups do not fit")
        self.outer = channels // self.groups
        self.rank, inner = len(out), set()
        if line.real(1):
            need(len(weight) == self.rank, "the shapes do not fit")
            outer = weight[1] if self.transposed else weight[0] // self.groups
            need(outer == self.outer and weight[0] % self.groups == 0, "the shapes do not fit")
            inner.add(weight[0] // self.groups if self.transposed else weight[1])
        if line.real(0):
            fits = len(x) == self.rank and x[0] == self.batch and x[1] % self.groups == 0
            need(fits, "the shapes do not fit")
            inner.add(x[1] // self.groups)
        need(len(inner) == 1, "the channels do not fit")
        self.inner = inner.pop()

    def of_out(self, box: Box) -> Boxes:
        if not all(map(is_all, box[2:])):
            return ()
        pieces = unmerge(box[:2], 1, self.groups, self.outer) or ()
        return tuple((*piece, all_of(self.inner)) for piece in pieces)

    def of_x(self, box: Box) -> Boxes:
        if not all(map(is_all, box[2:])):
            return ()
        pieces = unmerge(box[:2], 1, self.groups, self.inner) or ()
        return tuple((n, g, all_of(self.outer), i) for n, g, i in pieces)

    def of_weight(self, box: Box) -> Boxes:
        if not all(map(is_all, box[2:])):
            return ()
        if self.transposed:
            pieces = unmerge(box[:2], 0, self.groups, self.inner) or ()
            return tuple((all_of(self.batch), g, o, i) for g, i, o in pieces)
        pieces = unmerge(box[:2], 0, self.groups, self.outer) or ()
        return tuple((all_of(self.batch), *piece) for piece in pieces)


def _flat(box: Box, rank: int) -> Box:
    """Return the box made whole along the axes of positions or of the kernel."""
    return (*box[:2], *((0, 1, 1) for _ in range(rank - 2)))


def _convolution_value(line: Line) -> bool:
    """The bias, where every term is zero; signs do not pass, since fast kernels mix signs."""
    fact = line.step.fact
    terms = _Channels(line)
    x, weight = line.facts(0).moved(terms.of_x), line.facts(1).moved(terms.of_weight)
    goals = terms.of_out(_flat(line.box, terms.rank))
    if not goals or not all(covers((*x.zero, *weight.zero), goal) for goal in goals):
        return False
    if 2 in line.known:  # noqa: PLR2004 - the bias
        need(line.operand(2) == line.out()[1:2], "the bias does not fit")
        return covers(line.facts(2).of(fact), line.box[1:2])
    return line.text("bias_sym_sizes_opt") in ("None", "()", "(0,)", "[0]")


def _convolution_backward(line: Line) -> bool:
    """Each gradient sums products of the output's gradient with the other factor."""
    if line.step.position == 2:  # noqa: PLR2004 - the bias
        need(line.operand(2) == line.out()[1:2] != (), "the bias does not fit")
        out = line.out()
        return covers(line.shut(), (all_of(out[0]), line.box[0], *whole(out[2:])))
    need(line.step.position < 2, "there is no such operand")  # noqa: PLR2004
    terms = _Channels(line)
    shut = tuple(new for box in line.shut() for new in terms.of_out(box))
    goal = _flat(line.box, terms.rank)
    if line.step.position == 0:
        zero, goals = line.facts(1).moved(terms.of_weight).zero, terms.of_x(goal)
    else:
        zero, goals = line.facts(0).moved(terms.of_x).zero, terms.of_weight(goal)
    return bool(goals) and all(covers((*shut, *zero), goal) for goal in goals)


class _Heads:
    """Rows of scores of grouped attention, in coordinates (batch, key head, query of it, row).

    Query head h reads key head h // (query heads / key heads).
    """

    def __init__(self, line: Line) -> None:
        out = line.out()
        need(len(out) == 4, "it has not four axes")  # noqa: PLR2004
        self.batch, self.heads, self.rows, _ = out
        counts = {line.operand(k)[1:2] for k in (1, 2) if line.real(k)}
        need(len(counts) < 2 and () not in counts, "the heads do not fit")  # noqa: PLR2004
        (self.keys,) = counts.pop() if counts else (self.heads,)
        need(self.heads % self.keys == 0, "the heads do not fit")
        self.group = self.heads // self.keys
        for number in range(3):
            if line.real(number):
                self._fits(line.operand(number), number, out)

    def _fits(self, shape: Shape, number: int, out: Shape) -> None:
        need(len(shape) == 4 and shape[0] == self.batch, "the shapes do not fit")  # noqa: PLR2004
        if number == 0:
            need(shape[:3] == out[:3], "the shapes do not fit")
        else:
            need(shape[1] == self.keys, "the heads do not fit")
            need(number == 1 or shape[3] == out[3], "the shapes do not fit")

    def of_rows(self, box: Box) -> Boxes:
        """Of queries or outputs, if all features of the rows are in the box."""
        return (unmerge(box[:3], 1, self.keys, self.group) or ()) if is_all(box[3]) else ()

    def of_keys(self, box: Box) -> Boxes:
        """Of keys or values, if all of the head is in the box."""
        if not (is_all(box[2]) and is_all(box[3])):
            return ()
        return ((*box[:2], all_of(self.group), all_of(self.rows)),)


def _attention_value(line: Line) -> bool:
    """out[t, d] sums p[t, s] * v[s, d] over s with weights p >= 0."""
    need(line.real(2), "nothing is known of the values")
    heads, (batch, _, _, feature) = _Heads(line), line.box
    pieces = unmerge(line.box[:2], 1, heads.keys, heads.group)
    need(pieces, "the heads do not fit")
    goals = ((batch, piece[1], all_of(line.operand(2)[2]), feature) for piece in pieces or ())
    return all(covers(line.facts(2).of(line.step.fact), goal) for goal in goals)


def _attention_backward(line: Line) -> bool:
    """With dp = grad @ v^T, the scores get ds = p * (dp - sum(p * dp)): zero with grad or v.

    q[t] sums ds[t, s] * k[s]; k[s] sums ds[t, s] * q[t] over rows and query heads; the float mask
    gets ds. v[s, d] sums p[t, s] * grad[t, d].
    """
    position, box = line.step.position, line.box
    heads = _Heads(line)
    if position == 2:  # noqa: PLR2004 - the values
        group, rows = all_of(heads.group), all_of(heads.rows)
        shut = tuple(
            (*piece, shut[3])
            for shut in line.shut()
            for piece in unmerge(shut[:3], 1, heads.keys, heads.group) or ()
        )
        return covers(shut, (*box[:2], group, rows, box[3]))
    shut = tuple(new for one in line.shut() for new in heads.of_rows(one))
    dead = (*shut, *line.facts(2).moved(heads.of_keys).zero)
    every = ((all_of(heads.batch), all_of(heads.keys), all_of(heads.group), all_of(heads.rows)),)
    if position == 0:
        dead = (*dead, *line.facts(1).moved(heads.of_keys).zero)
        goals: Boxes = unmerge(box[:3], 1, heads.keys, heads.group) or every
    elif position == 1:
        dead = (*dead, *line.facts(0).moved(heads.of_rows).zero)
        goals = ((*box[:2], *every[0][2:]),)
    else:
        goals = every
    return all(covers(dead, goal) for goal in goals)


_ATTENTION: Final = Operation(_attention_value, _attention_backward)

TABLE: Final[Table] = {
    "MmBackward0": matrix(0),
    "BmmBackward0": matrix(0),
    "MvBackward0": Operation(_vector_value, _vector_backward),
    "DotBackward0": Operation(_vector_value, _vector_backward),
    "AddmmBackward0": matrix(1),
    "BaddbmmBackward0": matrix(1),
    "ConvolutionBackward0": Operation(_convolution_value, _convolution_backward),
    "ScaledDotProductFlashAttentionForCpuBackward0": _ATTENTION,
    "ScaledDotProductFlashAttentionBackward0": _ATTENTION,
    "ScaledDotProductEfficientAttentionBackward0": _ATTENTION,
    "ScaledDotProductCudnnAttentionBackward0": _ATTENTION,
}
