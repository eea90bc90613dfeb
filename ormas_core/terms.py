"""The closed lists of words that events use, and the small values inside them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Severity(StrEnum):
    """How much an event asks of its reader."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Diagnosis(StrEnum):
    """What is wrong with a layer's gradient, against its own history."""

    NO_GRADIENT = "no_gradient"
    VANISHING = "vanishing"
    EXPLODING = "exploding"


class Stage(StrEnum):
    """The state the gradients were read in.

    `scaled`: multiplied by the loss scale when read, and divided by it since. `unscaled`: as the
    optimizer will use them. `pre_clip`: before a clipping that follows. `clipped`: after it.
    """

    SCALED = "scaled"
    UNSCALED = "unscaled"
    PRE_CLIP = "pre_clip"
    CLIPPED = "clipped"


class Status(StrEnum):
    """The verdict on a run."""

    RUNNING = "running"
    HEALTHY = "healthy"
    WARNINGS = "warnings"
    PROBLEM = "problem"
    NOT_MONITORED = "not_monitored"
    PARTLY_MONITORED = "partly_monitored"
    INTERRUPTED = "interrupted"
    UNKNOWN = "unknown"


class MechanismState(StrEnum):
    """Whether a mechanism of the monitor is at work.

    `unused`: there is nothing to observe (no scaler, a frozen layer), so nothing is missed.
    """

    ACTIVE = "active"
    UNUSED = "unused"
    PARTIAL = "partial"
    OFF = "off"
    UNOBSERVABLE = "unobservable"


GRADIENT_NORMS: Final = "gradient_norms"
ALARMS: Final = "alarms"
"""Mechanisms without which a run cannot be called healthy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """One line of a manifest: a mechanism, whether it works here, and why not.

    Attributes:
        name: the mechanism, such as `gradient_norms`.
        state: whether it is at work.
        reason: why it is not, or not in full; empty for an active one without remarks.
        layers: the layers concerned; empty means the whole run.
    """

    name: str
    state: MechanismState
    reason: str = ""
    layers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NonfiniteCount:
    """Non-finite elements in one layer's gradients, NaN and infinities counted apart."""

    layer: str
    nan: int
    inf: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputGradient:
    """Whether the gradient that reached a module's output in backward was finite."""

    module: str
    finite: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSummary:
    """Channel maxima of one layer's output over the forward passes of one check.

    Attributes:
        layer: module name.
        channels: number of output channels (features).
        nonpositive: how many of them had no positive output.
        peak: the largest output of all.
    """

    layer: str
    channels: int
    nonpositive: int
    peak: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    """One file of a model as it was when it was named.

    Attributes:
        name: its path from the folder that holds the model's file or folder, with `/`.
        bytes: its size.
        sha256: its digest, 64 hexadecimal digits.
    """

    name: str
    bytes: int
    sha256: str
