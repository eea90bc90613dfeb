"""What is known for sure about the computed values of a tensor: which are zero, <= 0, >= 0."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from ormas_core.certificates import masks
from ormas_core.certificates.masks import Mask, Shape


@dataclass(frozen=True, slots=True, eq=False)
class Signs:
    """Facts about each element of a tensor, for every input.

    Attributes:
        zero: exactly zero (of either sign).
        neg: zero or negative; contains `zero`.
        pos: zero or positive; contains `zero`.
    """

    zero: Mask
    neg: Mask
    pos: Mask

    @property
    def shape(self) -> Shape:
        """Shape of the tensor."""
        return self.zero.shape

    @property
    def known(self) -> bool:
        """Whether anything is known."""
        return bool(self.neg.parts or self.pos.parts)

    def map(self, change: Callable[[Mask], Mask]) -> "Signs":
        """Apply one operation on sets of elements to all three facts."""
        if not self.known:
            return unknown(change(self.zero).shape)
        return Signs(change(self.zero), change(self.neg), change(self.pos))

    def same(self, other: "Signs") -> bool:
        """Whether both state the same."""
        return self.zero.same(other.zero) and self.neg.same(other.neg) and self.pos.same(other.pos)


@lru_cache(maxsize=4096)
def unknown(shape: Shape) -> Signs:
    """Return no knowledge."""
    nothing = masks.none(shape)
    return Signs(nothing, nothing, nothing)


@lru_cache(maxsize=4096)
def nonnegative(shape: Shape) -> Signs:
    """Return "every element is >= 0"."""
    nothing = masks.none(shape)
    return Signs(nothing, nothing, masks.everything(shape))


def facts(zero: Mask, neg: Mask, pos: Mask) -> Signs:
    """Return the facts with what follows from them: both signs are zero, zero is of both signs."""
    zero = masks.join(zero, masks.meet(neg, pos))
    return Signs(zero, masks.join(neg, zero), masks.join(pos, zero))


def negated(signs: Signs) -> Signs:
    """Return the facts about the negated tensor."""
    return Signs(signs.zero, signs.pos, signs.neg)


def scaled(signs: Signs, factor: float) -> Signs:
    """Return the facts about `factor` times the tensor, for a finite factor."""
    if factor == 0:
        every = masks.everything(signs.shape)
        return Signs(every, every, every)
    return signs if factor > 0 else negated(signs)


def total(a: Signs, b: Signs) -> Signs:
    """Return the facts about the elementwise sum; both have one shape."""
    return Signs(masks.meet(a.zero, b.zero), masks.meet(a.neg, b.neg), masks.meet(a.pos, b.pos))


def product(a: Signs, b: Signs) -> Signs:
    """Return the facts about the elementwise product of finite numbers; both have one shape."""
    zero = masks.join(a.zero, b.zero)
    meet, join = masks.meet, masks.join
    return Signs(
        zero,
        join(zero, meet(a.neg, b.pos), meet(a.pos, b.neg)),
        join(zero, meet(a.neg, b.neg), meet(a.pos, b.pos)),
    )
