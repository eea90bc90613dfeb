"""Rules of operations that pick elements by indices, which are data and not in the graph."""

from collections.abc import Sequence

from ormas_core.certificates import masks, signs
from ormas_core.certificates.graph import Node
from ormas_core.certificates.masks import Mask
from ormas_core.certificates.rules.rule import Rule, forget
from ormas_core.certificates.signs import Signs


def embedding_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """embedding: any row may be picked.

    Rule: what holds for a feature in every row of the table holds for it in the output.
    Requires: the table in the graph.
    Rounding: none; rows are copied.
    Source: definition of embedding.
    """
    shape = node.out_shapes[0]
    return [
        operands[0].map(lambda m: masks.spread(masks.gather(m, (m.shape[-1],)), shape))
        if node.inputs[0] is not None
        else signs.unknown(shape)
    ]


def embedding_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """embedding: a feature of the table is masked where it is at every position.

    Rule: a row that is not picked now may be picked later, so no row counts as masked for that.
    Requires: nothing.
    Rounding: sums of zeros are exactly zero.
    Source: derivative of embedding.
    """
    features = masks.gather(closed[0], (closed[0].shape[-1],))
    return [masks.spread(features, node.in_shapes[0])]


def pick_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """index, gather, index_select, take, topk, sort: any element may be picked.

    Rule: what holds for all elements holds for the picked ones.
    Requires: the operand in the graph.
    Rounding: none.
    Source: definition of each.
    """
    shape = node.out_shapes[0]

    def whole(mask: Mask) -> Mask:
        return masks.everything(shape) if mask.is_all else masks.none(shape)

    return [operands[0].map(whole)]


def pick_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """index, gather, index_select, take, topk, sort: masked only where every picked element is.

    Rule: which element is picked is data.
    Requires: nothing.
    Rounding: sums of zeros are exactly zero.
    Source: derivative of each.
    """
    return [
        masks.everything(shape) if closed[0].is_all else masks.none(shape)
        for shape in node.in_shapes
    ]


def place_backward(node: Node, operands: Sequence[Signs], closed: Sequence[Mask]) -> list[Mask]:
    """index_add, index_put, scatter_add: values are put, or added, into a tensor.

    Rule: the tensor is masked where the result is; the values only where all of the result is.
    Requires: nothing.
    Rounding: exact for zero.
    Source: derivative of each.
    """
    whole = closed[0].is_all
    values = [masks.everything(s) if whole else masks.none(s) for s in node.in_shapes[1:]]
    return [closed[0], *values]


_PICK = Rule(pick_forward, pick_backward)

RULES = {
    "EmbeddingBackward0": Rule(embedding_forward, embedding_backward),
    **dict.fromkeys(
        (
            "IndexBackward0",
            "GatherBackward0",
            "IndexSelectBackward0",
            "TakeBackward0",
            "TopkBackward0",
            "SortBackward0",
        ),
        _PICK,
    ),
    **dict.fromkeys(
        ("IndexAddBackward0", "IndexPutBackward0", "ScatterAddBackward0"),
        Rule(forget, place_backward),
    ),
}
