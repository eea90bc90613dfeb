"""Events about how layers stand to each other within one pass, not to their own past.

They are part of the vocabulary of `ormas_core.events`, which says where each is said.
"""

from dataclasses import dataclass
from typing import ClassVar

from ormas_core.event_base import BaseEvent
from ormas_core.terms import ExpertShare, Severity, Signal, Trend


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSlope(BaseEvent):
    """Within one backward pass, gradients grow or vanish by a steady factor. One per episode.

    Attributes:
        trend: growing or vanishing, going backward.
        signal: what was compared from layer to layer.
        factor: by which it changes from a layer to the next one going backward.
        first: the layer where the run begins, going backward.
        last: the layer where it ends.
        layers: number of layers in the run, both included.
        first_value: the signal at the first layer.
        last_value: the signal at the last one.
        gradient_type: as in the measurement.
        layers_left: further layers of this kind, at this rate, that the type has room for: until
            overflow or until everything is rounded to zero; None where the type is not known.
        beyond: the next layer, where that has already happened; None where it has not.
    """

    kind: ClassVar[str] = "gradient_slope"
    severity: ClassVar[Severity] = Severity.WARNING
    trend: Trend
    signal: Signal
    factor: float
    first: str
    last: str
    layers: int
    first_value: float
    last_value: float
    gradient_type: str
    layers_left: float | None
    beyond: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipStarvation(BaseEvent):
    """One layer's gradient takes all that clipping leaves; the other layers get next to nothing.

    One per episode, and again when another layer takes it.

    Attributes:
        layer: the layer with the largest norm.
        value: its norm before clipping.
        factor: by what the clipping multiplies every gradient of the step.
        clip_norm: total norm to which is clipped.
        rest: norm of all other layers together after clipping.
    """

    kind: ClassVar[str] = "clip_starvation"
    severity: ClassVar[Severity] = Severity.WARNING
    layer: str
    value: float
    factor: float
    clip_norm: float
    rest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertUsage(BaseEvent):
    """The usage of one container's experts has changed its level, and none starves anew.

    Attributes:
        container: the module that holds the experts.
        experts: how many it holds.
        starving: experts without a row for longer than their own past explains.
        rare: further experts with much less than an equal share.
        checks: checks that the shares are averaged over; older ones count less and less.
    """

    kind: ClassVar[str] = "expert_usage"
    container: str
    experts: int
    starving: tuple[ExpertShare, ...]
    rare: tuple[ExpertShare, ...]
    checks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsStarving(BaseEvent):
    """Experts of one container get no rows any more, or never did. Again when another one joins.

    Attributes:
        container: the module that holds the experts.
        experts: how many it holds.
        starving: experts without a row for longer than their own past explains.
        rare: further experts with much less than an equal share.
        checks: checks that the shares are averaged over; older ones count less and less.
    """

    kind: ClassVar[str] = "experts_starving"
    severity: ClassVar[Severity] = Severity.WARNING
    container: str
    experts: int
    starving: tuple[ExpertShare, ...]
    rare: tuple[ExpertShare, ...]
    checks: int
