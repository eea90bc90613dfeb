"""Which elements an optimizer leaves where they are, for ever, if their gradient stays zero.

For each supported optimizer one function says, element by element, what zero gradients do to a
value with its own state. Types are compared exactly: a subclass may do anything.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, optim

_UNKNOWN_LR_FACTOR: Final = 10.0
"""Headroom over the learning rates seen, where the schedule is not known."""

_MOST_DECAY: Final = 0.98
"""Of a decay that multiplies the value by 1 - rate at once."""
_MOST_COUPLED_DECAY: Final = 0.5
"""Of one that is rounded as decay * value before the learning rate multiplies it: in units of the
least number k, round(decay * k) = n needs decay * k >= n - 1/2, so lr * n <= k."""
_ROUNDED: Final = 2.0
"""A move, once rounded to the parameter's precision, is at most this many times as large."""
_CONE_SLACK: Final = 2.0**-6
_ABSORBED: Final = 2.0**-16
"""A move that is this small beside the spacing of numbers at a value leaves it as it is."""
_MIXING: Final = frozenset({"Muon", "Shampoo", "SOAP"})

Group = Mapping[str, Any]


class Rest(NamedTuple):
    """What zero gradients do to each element of a parameter, for ever.

    Attributes:
        keeps_sign: the element stays zero, or keeps its sign (it may shrink towards zero).
        drift: bound on how far it moves, apart from shrinking.
        shrinks: whether decay may shrink the values.
        reason: why an element with `keeps_sign` False is not at rest.
        floor: a nonzero value keeps its sign while its size is at least this; 0 is no condition.
            Momentum does not reach zero in floating point, and a value that has decayed far enough
            is moved by what is left of it.
    """

    keeps_sign: Tensor
    drift: Tensor
    shrinks: bool
    reason: str
    floor: float = 0.0


class _Precision(NamedTuple):
    """How the numbers of a parameter's type are rounded.

    Attributes:
        unit: largest relative error of one operation.
        least: distance of the numbers next to zero.
        normal: least number from which on errors are relative.
    """

    unit: float
    least: float
    normal: float


class Refused(Exception):  # noqa: N818 - an answer, not a failure
    """Nothing is known about this optimizer, setting or parameter; the text says why."""


class Slot(NamedTuple):
    """A parameter's place in an optimizer.

    Attributes:
        kind: class of the optimizer.
        group: its settings.
        state: the parameter's own state.
        lr_max: largest learning rate that the claim covers.
        asserted: whether the user vouches for it, see `asserted`.
    """

    kind: type
    group: Group
    state: Mapping[str, Any]
    lr_max: float
    asserted: bool = False


def lr_ceiling(group: Group, largest_seen: float, factor: float = _UNKNOWN_LR_FACTOR) -> float:
    """Return the largest learning rate that claims cover: `factor` times the largest seen."""
    return factor * max(largest_seen, abs(_number(group.get("lr", 0.0))), _initial(group))


def rest(slot: Slot, values: Tensor, pick: Callable[[Tensor], Tensor]) -> Rest:
    """Return what zero gradients do to `values`.

    Args:
        slot: the parameter's place in its optimizer.
        values: some elements of the parameter.
        pick: takes the same elements out of a state tensor of the parameter's shape.

    Raises:
        Refused: the optimizer, a setting or the state is not covered.
    """
    rule = _RULES.get(slot.kind)
    if rule is None and slot.kind.__name__ in _MIXING:
        raise Refused(f"{slot.kind.__name__} mixes the elements of a matrix: none is at rest alone")
    if rule is None:
        raise Refused(f"{slot.kind.__name__} is not a supported optimizer")
    return rule(slot, values, pick)


def asserted(slot: Slot, values: Tensor, pick: Callable[[Tensor], Tensor]) -> Rest:
    """Return `rest` for an optimizer whose behaviour the user vouches for.

    Elements are at rest where every state tensor of the parameter's shape is zero.
    """
    still = torch.ones_like(values, dtype=torch.bool)
    for name, state in slot.state.items():
        if isinstance(state, Tensor) and state.dim() > 0:
            try:
                still &= pick(state) == 0
            except (IndexError, RuntimeError):
                raise Refused(f"state {name!r} of {slot.kind.__name__} has another shape") from None
    return Rest(still, torch.zeros_like(values), shrinks=False, reason="its optimizer state")


def _number(value: Any) -> float:
    return float(value)


def _initial(group: Group) -> float:
    return abs(_number(group.get("initial_lr", 0.0)))


def _decay(slot: Slot) -> float:
    return _number(slot.group.get("weight_decay", 0.0) or 0.0)


def _guard_eps(slot: Slot, values: Tensor) -> float:
    eps = _number(slot.group["eps"])
    kind = values.dtype
    executed = float(torch.tensor(eps, dtype=kind))
    if not executed > 0:
        raise Refused(f"eps = {eps} is zero in {str(kind).rpartition('.')[2]}: 0 / 0 is NaN")
    if slot.group.get("capturable") and slot.lr_max == 0:
        raise Refused("a capturable optimizer divides by its learning rate, which is 0")
    return min(eps, executed)


def _shrink_factor(rate: float, most: float = _MOST_DECAY) -> None:
    """Refuse a decay that is no plain shrinking: one rounded step must keep the sign."""
    if not 0 <= rate <= most:
        raise Refused(f"decay times learning rate may reach {rate:.3g}: one step may change signs")


def _precision(values: Tensor) -> _Precision:
    info = torch.finfo(values.dtype)
    return _Precision(info.eps / 2, info.smallest_normal * info.eps, info.smallest_normal)


def _kept(rate: float, precision: _Precision) -> float:
    """Return the largest factor by which a rounded product with `rate` may keep a buffer."""
    return rate * (1 + 4 * precision.unit)


def _stuck(rate: float, precision: _Precision) -> float:
    """Return the size below which a buffer no longer drains."""
    kept = _kept(rate, precision)
    return precision.least / (1 - kept) if kept < 1 else math.inf


def _floor(move: float, precision: _Precision) -> float:
    """Return the size from which on a value is not changed by moves of this size."""
    return move / (precision.unit * _ABSORBED)


def _buffer(slot: Slot, name: str, values: Tensor, pick: Callable[[Tensor], Tensor]) -> Tensor:
    state = slot.state.get(name)
    if not isinstance(state, Tensor):
        return torch.zeros_like(values)
    picked = pick(state)
    return picked.to(torch.promote_types(picked.dtype, values.dtype))


def _sgd(slot: Slot, values: Tensor, pick: Callable[[Tensor], Tensor]) -> Rest:
    """SGD: momentum and decay stay inside a cone around the value."""
    group, lr, decay = slot.group, slot.lr_max, _decay(slot)
    momentum = _number(group.get("momentum", 0.0))
    if decay < 0 or not 0 <= momentum < 1:
        raise Refused(f"weight_decay={decay} with momentum={momentum} is not covered")
    if momentum == 0:
        _shrink_factor(lr * decay, _MOST_COUPLED_DECAY)
        still = torch.ones_like(values, dtype=torch.bool)
        return Rest(still, torch.zeros_like(values), decay > 0, "")
    precision = _precision(values)
    has_buffer = isinstance(slot.state.get("momentum_buffer"), Tensor)
    buffer = _buffer(slot, "momentum_buffer", values, pick)
    still = (values == 0) & (buffer == 0)
    if decay == 0:
        # The buffer only drains: all future moves together are lr * mu / (1 - mu) * buffer.
        kept = _kept(momentum, precision)
        moves = lr * kept / (1 - kept) * _ROUNDED if kept < 1 else math.inf
        drift = torch.where(buffer == 0, 0.0, moves * buffer.abs().double())
        still |= _outlasts(values, drift, _floor(lr * _stuck(momentum, precision), precision))
        return Rest(still, drift, shrinks=False, reason="waiting for momentum to drain")
    first, slope = _cone(slot, momentum, decay, precision)
    if slope is None:
        reason = f"SGD with lr {lr:.3g}, momentum {momentum}, decay {decay} has no stable cone"
        return Rest(still, torch.zeros_like(values), shrinks=True, reason=reason)
    toward = buffer * values.sign()
    inside = (toward >= 0) & (toward <= slope * values.abs())
    if not has_buffer:
        inside = torch.full_like(values, first <= slope).bool()
    floor = precision.normal / (precision.unit * min(1.0, decay, slope))
    still |= inside & (values.double().abs() >= floor)
    reason = "momentum is outside the cone"
    return Rest(still, torch.zeros_like(values), shrinks=True, reason=reason, floor=floor)


def _outlasts(values: Tensor, drift: Tensor, floor: float) -> Tensor:
    """Return which nonzero values all future drift together cannot bring near zero."""
    size = values.double().abs()
    return (values != 0) & ((drift == 0) | ((2 * drift < size) & (size >= 2 * floor)))


def _cone(slot: Slot, mu: float, decay: float, precision: _Precision) -> tuple[float, float | None]:
    """Return the buffer-to-value ratio of a first step, and the largest that stays in the cone.

    With buffer <= c * value before a step, the same holds after it, and the value keeps its sign.
    The conditions are inflated by a slack for rounding in the parameter's precision.

    Source: docs/concepts/certificates.md, cone of SGD.
    """
    lr, slack = slot.lr_max, 1 + max(_CONE_SLACK, 16 * precision.unit)
    if slot.group.get("nesterov"):
        a, b, c = lr * mu * mu, mu + lr * mu * decay, decay
        keeps, shrunk = 1 - lr * decay * slack, 1 - lr * decay * (1 + mu) * slack
    else:
        inflow = decay * (1 - _number(slot.group.get("dampening", 0.0)))
        a, b, c = lr * mu, mu + lr * inflow, inflow
        keeps, shrunk = 1.0, 1 - lr * decay * slack
    a, b, c = a * slack, b * slack - keeps, c * slack
    disc = b * b - 4 * a * c
    if a <= 0 or c < 0 or disc < 0 or shrunk <= 0:
        return math.inf, None
    root = (-b + math.sqrt(disc)) / (2 * a)
    return decay * slack / shrunk, root if root > 0 else None


def _adam(slot: Slot, values: Tensor, pick: Callable[[Tensor], Tensor]) -> Rest:
    """Adam, AdamW, NAdam, RAdam: momentum drains; its total is bounded."""
    eps = _guard_eps(slot, values)
    group, lr, decay = slot.group, slot.lr_max, _decay(slot)
    beta1, beta2 = (_number(beta) for beta in group["betas"])
    decoupled = slot.kind is optim.AdamW or bool(group.get("decoupled_weight_decay"))
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise Refused(f"betas=({beta1}, {beta2}) are not covered")
    first = _buffer(slot, "exp_avg", values, pick).double().abs()
    second = _buffer(slot, "exp_avg_sq", values, pick).double()
    still = (values == 0) & (first == 0)
    if decay != 0 and not decoupled:
        return _moved_by_decay(still)
    rate = lr * decay
    _shrink_factor(rate)
    precision = _precision(values)
    drift = _drain(slot, first, second, _Drain(beta1, beta2, eps, 1 - rate, precision))
    scale = lr / (1 - beta1 ** (_number(slot.state.get("step", 0)) + 1))
    floor = _floor(scale * _stuck(beta1, precision) / eps, precision)
    still |= _outlasts(values, drift, floor)
    moving = bool((still & (drift != 0)).any())
    floor = floor if moving and rate > 0 else 0.0
    return Rest(still, drift, decay > 0, "waiting for momentum to drain", floor)


def _moved_by_decay(still: Tensor) -> Rest:
    reason = "weight decay enters the normalised gradient and moves every nonzero element"
    return Rest(still, torch.full_like(still, math.inf, dtype=torch.float64), True, reason)


class _Drain(NamedTuple):
    """Settings of a drain: `keep` is what decay leaves of a value in one step."""

    beta1: float
    beta2: float
    eps: float
    keep: float
    precision: _Precision


def _drain(slot: Slot, first: Tensor, second: Tensor, settings: _Drain) -> Tensor:
    """Bound the sum of all moves that momentum still makes under zero gradients.

    A move is weighed by how much the value has shrunk by then (`keep` a step), so that a value
    larger than the bound keeps its sign under decoupled decay too. Rates are those of rounded
    products. Numbers too small for relative errors are covered by `floor`.

    Source: docs/concepts/certificates.md, drain bound.
    """
    if not bool((first != 0).any()):
        return torch.zeros_like(first)
    beta1, beta2, eps, keep, precision = settings
    unit = precision.unit
    kept = _kept(beta1, precision)
    keep = keep if keep == 1 else keep * (1 - 2 * unit)
    rho = kept / math.sqrt(beta2 * (1 - 4 * unit)) if beta2 > 0 else math.inf
    if slot.kind is optim.RAdam or kept >= keep:
        return torch.where(first == 0, 0.0, math.inf)
    bound = torch.full_like(first, kept / ((keep - kept) * eps))
    if rho < keep:
        root = second.clamp_min(0).sqrt()
        relative = (rho / (keep - rho)) / root
        known = second >= precision.normal / unit
        bound = torch.where(known, torch.minimum(bound, relative), bound)
    step = _number(slot.state.get("step", 0))
    scale = slot.lr_max / (1 - beta1 ** (step + 1)) * (1 + 16 * unit)
    return torch.where(first == 0, 0.0, scale * _ROUNDED * first * bound)


def _adamax(slot: Slot, values: Tensor, pick: Callable[[Tensor], Tensor]) -> Rest:
    """Adamax: as Adam without a bound on what momentum still does."""
    _guard_eps(slot, values)
    return _stateful(slot, values, pick, "exp_avg")


def _stateful(slot: Slot, values: Tensor, pick: Callable[[Tensor], Tensor], name: str) -> Rest:
    """At rest where the one moving state is zero; coupled decay moves nonzero elements."""
    still = _buffer(slot, name, values, pick) == 0 if name else torch.ones_like(values).bool()
    return _coupled(slot, values, still)


def _coupled(slot: Slot, values: Tensor, still: Tensor) -> Rest:
    if _decay(slot) != 0:
        return _moved_by_decay(still & (values == 0))
    drift = torch.where(still, 0.0, math.inf).double()
    return Rest(still, drift, shrinks=False, reason="waiting for momentum to drain")


def _adagrad(slot: Slot, values: Tensor, pick: Callable[[Tensor], Tensor]) -> Rest:
    """Adagrad: no momentum."""
    _guard_eps(slot, values)
    return _stateful(slot, values, pick, "")


def _rmsprop(slot: Slot, values: Tensor, pick: Callable[[Tensor], Tensor]) -> Rest:
    """RMSprop: the momentum buffer must be zero; the centred form may take roots below zero."""
    _guard_eps(slot, values)
    if slot.group.get("centered"):
        raise Refused("centered RMSprop may divide by the root of a rounded negative number")
    return _stateful(slot, values, pick, "momentum_buffer")


def _adadelta(slot: Slot, values: Tensor, pick: Callable[[Tensor], Tensor]) -> Rest:
    """Adadelta: moves are multiples of the gradient."""
    _guard_eps(slot, values)
    return _stateful(slot, values, pick, "")


def _rprop(slot: Slot, values: Tensor, pick: Callable[[Tensor], Tensor]) -> Rest:
    """Rprop: moves by the sign of the gradient, which is zero for zero."""
    still = torch.ones_like(values, dtype=torch.bool)
    return Rest(still, torch.zeros_like(values), shrinks=False, reason="")


def _asgd(slot: Slot, values: Tensor, pick: Callable[[Tensor], Tensor]) -> Rest:
    """ASGD: `lambd` and weight decay both shrink."""
    lambd = _number(slot.group["lambd"])
    if _number(slot.group.get("alpha", 0.75)) < 0:
        raise Refused("ASGD with alpha < 0 raises its learning rate")
    rate = slot.lr_max * (lambd + _decay(slot))
    _shrink_factor(rate, _MOST_COUPLED_DECAY)
    still = torch.ones_like(values, dtype=torch.bool)
    return Rest(still, torch.zeros_like(values), rate > 0, "")


def _adafactor(slot: Slot, values: Tensor, pick: Callable[[Tensor], Tensor]) -> Rest:
    """Torch's Adafactor: no momentum, decoupled decay; moves are multiples of the gradient."""
    rate = slot.lr_max * _decay(slot)
    _shrink_factor(rate)
    still = torch.ones_like(values, dtype=torch.bool)
    return Rest(still, torch.zeros_like(values), rate > 0, "")


_RULES: Final[Mapping[type, Callable[[Slot, Tensor, Callable[[Tensor], Tensor]], Rest]]] = {
    optim.SGD: _sgd,
    optim.Adam: _adam,
    optim.AdamW: _adam,
    optim.NAdam: _adam,
    optim.RAdam: _adam,
    optim.Adamax: _adamax,
    optim.Adagrad: _adagrad,
    optim.RMSprop: _rmsprop,
    optim.Adadelta: _adadelta,
    optim.Rprop: _rprop,
    optim.ASGD: _asgd,
    optim.Adafactor: _adafactor,
}
SUPPORTED: Final = frozenset(_RULES)
