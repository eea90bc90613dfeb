"""Events about the run and the monitor itself, not about what a check measured.

They are part of the vocabulary of `ormas_core.events`, which says where each is said.
"""

from dataclasses import dataclass
from typing import ClassVar

from ormas_core.event_base import BaseEvent
from ormas_core.terms import Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested(BaseEvent):
    """Something of `stop_on` was said, on this rank or another: the training is to stop.

    Said once; the loop then stops by its own means, on all ranks after the same check.

    Attributes:
        reasons: which entries of `stop_on` came true, in their order.
        ranks: the ranks on which they did.
    """

    kind: ClassVar[str] = "stop_requested"
    severity: ClassVar[Severity] = Severity.CRITICAL
    reasons: tuple[str, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkError(BaseEvent):
    """A sink failed and was dropped; training and the other sinks go on."""

    kind: ClassVar[str] = "sink_error"
    severity: ClassVar[Severity] = Severity.WARNING
    sink: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorError(BaseEvent):
    """The monitor itself failed and stopped watching; training goes on."""

    kind: ClassVar[str] = "monitor_error"
    severity: ClassVar[Severity] = Severity.WARNING
    error: str
