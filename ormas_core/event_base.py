"""What all events have in common."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from ormas_core.terms import Severity

SPARSE: Final[Mapping[str, Any]] = {"sparse": True}
"""Metadata of a field that a record line has only where it differs from its default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseEvent:
    """A statement about one moment of a run.

    Attributes:
        step: optimizer updates completed before it.
        time_ns: unix time in nanoseconds; set when it is emitted.
        lane: the optimizer whose updates it is about, as place and class (`1:Adam`), where several
            are watched that step apart; empty otherwise. `step` counts the updates of all.
    """

    step: int
    time_ns: int = 0
    lane: str = field(default="", metadata=SPARSE)

    kind: ClassVar[str]
    severity: ClassVar[Severity] = Severity.INFO
