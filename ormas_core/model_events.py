"""Events about the state that the model itself is in.

They are part of the vocabulary of `ormas_core.events`, which says where each is said.
"""

from dataclasses import dataclass
from typing import ClassVar

from ormas_core.event_base import BaseEvent
from ormas_core.terms import NonfiniteCount, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class NonfiniteState(BaseEvent):
    """Parameters or buffers are NaN or infinite before the first step: no training has done that.

    Attributes:
        layers: the layers concerned, with counts.
    """

    kind: ClassVar[str] = "nonfinite_state"
    severity: ClassVar[Severity] = Severity.CRITICAL
    layers: tuple[NonfiniteCount, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalMode(BaseEvent):
    """Modules are in evaluation mode at the first check, as frozen batch norms are. Said once.

    Attributes:
        modules: the outermost such modules; everything in them is in that mode too.
    """

    kind: ClassVar[str] = "eval_mode"
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchedToEval(BaseEvent):
    """Modules went into evaluation mode while the training goes on. One per episode.

    Attributes:
        modules: the outermost such modules; everything in them is in that mode too.
        before: step of the last check at which they were not.
    """

    kind: ClassVar[str] = "switched_to_eval"
    severity: ClassVar[Severity] = Severity.WARNING
    modules: tuple[str, ...]
    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsAtOdds(BaseEvent):
    """Running statistics of batch norms do not go together with their parameters. Each named once.

    Attributes:
        drifting: those whose parameters are all frozen, while their statistics go on moving: their
            `eval()` was undone by the next `train()`, or forgotten.
        untouched: those whose parameters are trained, while they have the mean of zero and variance
            of one that they were built with.
    """

    kind: ClassVar[str] = "statistics_at_odds"
    severity: ClassVar[Severity] = Severity.WARNING
    drifting: tuple[str, ...]
    untouched: tuple[str, ...]
