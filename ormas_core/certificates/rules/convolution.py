"""Rules of convolutions, of one, two and three dimensions, grouped or not."""

from collections.abc import Sequence

from ormas_core.certificates import masks, signs
from ormas_core.certificates.graph import Node
from ormas_core.certificates.masks import Mask
from ormas_core.certificates.rules.linear import cover
from ormas_core.certificates.rules.rule import Rule, forget
from ormas_core.certificates.signs import Signs


def _per_channel(mask: Mask) -> Mask:
    """Return the channels (C,) of an (N, C, ...) tensor that are in the mask everywhere."""
    axes = [axis for axis in range(len(mask.shape)) if axis != 1]
    return masks.reshape(masks.all_over(mask, axes), (mask.shape[1],))


def _on_channels(mask: Mask, shape: tuple[int, ...]) -> Mask:
    """Return the (C,) mask seen in an (N, C, ...) tensor."""
    parts = tuple(part.reshape((1, -1) + (1,) * (len(shape) - 2)) for part in mask.parts)
    return masks.Mask(shape, parts)


def _weight_zeros(weight: Mask, groups: int) -> Mask:
    """Return (groups, out / groups, in / groups): the filter planes that are exactly zero."""
    out, inner = weight.shape[:2]
    flat = masks.all_over(weight, range(2, len(weight.shape)))
    return masks.reshape(flat, (groups, out // groups, inner))


def _grouped(mask: Mask, groups: int) -> Mask:
    return masks.reshape(mask, (groups, mask.shape[0] // groups))


def _swap(mask: Mask) -> Mask:
    return masks.permute(mask, (0, 2, 1))


def _column(mask: Mask) -> Mask:
    return masks.reshape(mask, (*mask.shape, 1))


def _row(mask: Mask) -> Mask:
    return masks.reshape(mask, (mask.shape[0], 1, mask.shape[1]))


def _facts(node: Node, operands: Sequence[Signs]) -> tuple[int, Mask, Mask]:
    """Return groups, zero input channels (groups, in), zero planes (groups, out, in).

    The weight is (out, in / groups, ...), and transposed it is (in, out / groups, ...).
    """
    groups, transposed = int(node.attrs["groups"]), bool(node.attrs["transposed"])
    first, second = node.in_shapes[1][:2]
    channels = first if transposed else second * groups
    planes = _weight_zeros(operands[1].zero, groups)
    inner = (
        _per_channel(operands[0].zero) if node.inputs[0] is not None else masks.none((channels,))
    )
    return groups, _grouped(inner, groups), _swap(planes) if transposed else planes


def convolution_forward(node: Node, operands: Sequence[Signs]) -> list[Signs]:
    """convolution, transposed or not: exact zeros and the constant bias only.

    Rule: where every plane of a filter is zero or meets a zero input channel, the output is the
        bias.
    Requires: the weight in the graph; a bias that is in the graph or absent.
    Rounding: kernels keep exact zeros. No sign passes: Winograd and FFT kernels form sums of mixed
        signs, and came out positive on nonpositive terms.
    Source: derivative formulas of torch's convolution; measured on its CPU kernels.
    """
    shape = node.out_shapes[0]
    if node.inputs[1] is None:
        return forget(node, operands)
    groups, inner, planes = _facts(node, operands)
    size = planes.shape[1]
    flat = cover(planes, _column(inner), (groups, size, 1))
    silent = _on_channels(masks.reshape(flat, (groups * size,)), shape)
    constant = Signs(silent, silent, silent)
    if len(node.inputs) > 2 and node.inputs[2] is not None:  # noqa: PLR2004 - the bias
        bias = operands[2].map(lambda m: _on_channels(m, shape))
        return [signs.total(constant, bias)]
    # The bias has sizes recorded where it exists; only their absence proves that there is none.
    absent = not any(node.attrs["bias_sym_sizes_opt"] or ())
    return [constant] if absent else forget(node, operands)


def convolution_backward(
    node: Node, operands: Sequence[Signs], closed: Sequence[Mask]
) -> list[Mask]:
    """convolution, transposed or not: by channels.

    Rule: input channel i: every output channel of its group is masked or has a zero plane for i.
        Plane (o, i): o is masked, or input channel i is exactly zero. Bias o: o is masked.
    Requires: the weight in the graph; masked means at every position.
    Rounding: kernels keep exact zeros.
    Source: derivative formulas of torch's convolution.
    """
    if node.inputs[1] is None:
        return [masks.none(shape) for shape in node.in_shapes]
    groups, inner, planes = _facts(node, operands)
    shut = _per_channel(closed[0])
    by_group = _grouped(shut, groups)
    width = planes.shape[2]
    inputs = cover(_row(by_group), planes, (groups, 1, width))
    weight = masks.join(_as(_column(by_group), planes.shape), _as(_row(inner), planes.shape))
    if node.attrs["transposed"]:
        weight = _swap(weight)
    kernel = node.in_shapes[1]
    flat = masks.reshape(weight, (groups * weight.shape[1], weight.shape[2]))
    found = [
        _on_channels(masks.reshape(inputs, (groups * width,)), node.in_shapes[0]),
        masks.Mask(
            kernel, tuple(p.reshape(p.shape + (1,) * (len(kernel) - 2)) for p in flat.parts)
        ),
    ]
    return [*found, *(shut for _ in node.inputs[2:])]


def _as(mask: Mask, shape: tuple[int, ...]) -> Mask:
    return masks.Mask(shape, mask.parts)


RULES = {
    "ConvolutionBackward0": Rule(
        convolution_forward,
        convolution_backward,
        ("groups", "transposed", "bias_sym_sizes_opt"),
    ),
}
