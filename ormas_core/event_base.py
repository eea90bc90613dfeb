"""What all events have in common."""

from dataclasses import dataclass
from typing import ClassVar

from ormas_core.terms import Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseEvent:
    """A statement about one moment of a run.

    Attributes:
        step: optimizer updates completed before it.
        time_ns: unix time in nanoseconds; set when it is emitted.
    """

    step: int
    time_ns: int = 0

    kind: ClassVar[str]
    severity: ClassVar[Severity] = Severity.INFO
