"""What an output goes into, and what may then be said of its channels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_CLOSING: Final = frozenset({"relu", "relu_", "relu6", "threshold", "threshold_"})
"""Functions that let nothing through below zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """What may be said of a channel that is never above zero.

    Attributes:
        may_close: whether a ReLU follows, or may follow.
        closed: what a constant output of zero or below means.
        dormant: what an output that is all but always below zero means.
    """

    may_close: bool
    closed: str
    dormant: str


_UNKNOWN: Final = After(
    may_close=True,
    closed="the channel is dead if a ReLU directly follows",
    dormant="hardly ever active if a ReLU directly follows (an estimate)",
)
_CLOSED: Final = After(
    may_close=True,
    closed="the ReLU that follows lets nothing through",
    dormant="the ReLU that follows hardly ever lets anything through (an estimate)",
)
_OPEN: Final = After(may_close=False, closed="", dormant="")


def after(followers: Mapping[str, tuple[str, ...]] | None, layer: str) -> After:
    """Return what may be said of the channels of a layer, given what its output goes into.

    Args:
        followers: for each layer the names of functions that take its output; None if unknown.
        layer: name of the layer; one that `followers` does not know counts as unknown.
    """
    found = (followers or {}).get(layer)
    if not found:
        return _UNKNOWN
    return _CLOSED if set(found) <= _CLOSING else _OPEN


def norm_after(followers: Mapping[str, tuple[str, ...]] | None, layer: str) -> str:
    """Return the normalisation that alone takes the output of a layer, or nothing."""
    found = (followers or {}).get(layer, ())
    kind, _, name = found[0].partition(":") if len(found) == 1 else ("", "", "")
    return name if kind == "norm" else ""
