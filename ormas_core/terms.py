"""The closed lists of words that events use, and the small values inside them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Severity(StrEnum):
    """How much an event asks of its reader.

    `proof`: a statement that can be checked again. `action`: the monitor changed something.
    """

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"
    PROOF = "proof"
    ACTION = "action"


class Diagnosis(StrEnum):
    """What is wrong with a layer's gradient, against its own history."""

    NO_GRADIENT = "no_gradient"
    VANISHING = "vanishing"
    EXPLODING = "exploding"


STOP_REASONS: Final = (
    "alarm",
    *(f"alarm:{diagnosis}" for diagnosis in Diagnosis),
    "certificate",
    "clip_starvation",
    "experts_starving",
    "gradient_slope",
    "loss_spike",
    "no_gradients",
    "nonfinite_gradient",
    "nonfinite_loss",
    "nonfinite_state",
    "not_learning",
    "statistics_at_odds",
    "switched_to_eval",
)
"""What `MonitorConfig.stop_on` may name: kinds of event, and alarms of one diagnosis."""


class Trend(StrEnum):
    """Where gradients go from layer to layer within one backward pass, top to bottom."""

    GROWING = "growing"
    VANISHING = "vanishing"


class Signal(StrEnum):
    """What was compared from layer to layer.

    `outputs`: the largest absolute gradient at each layer's output. `parameters`: the norm of the
    gradients of its parameters, where outputs are not seen.
    """

    OUTPUTS = "outputs"
    PARAMETERS = "parameters"


class Stage(StrEnum):
    """The state the gradients were read in.

    `scaled`: multiplied by the loss scale when read, and divided by it since. `unscaled`: as the
    optimizer will use them. `pre_clip`: before a clipping that follows. `clipped`: after it.
    """

    SCALED = "scaled"
    UNSCALED = "unscaled"
    PRE_CLIP = "pre_clip"
    CLIPPED = "clipped"


class ChannelLevel(StrEnum):
    """How many of a layer's channels are out of use."""

    SOME = "some"
    MOST = "most"
    ALL = "all"


class Status(StrEnum):
    """The verdict on a run."""

    RUNNING = "running"
    HEALTHY = "healthy"
    REPAIRED = "repaired"
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
OPTIMIZERS: Final = "optimizers"
CERTIFICATES: Final = "certificates"
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
class ExpertRows:
    """How the rows of one step were spread over sibling modules of which each gets a part.

    Attributes:
        container: name of the module that holds them.
        experts: their names within the container, in its order.
        rows: rows that each was called with: elements of its output over its last dimension, so
            tokens for most.
    """

    container: str
    experts: tuple[str, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShare:
    """What one expert got of the rows of its container.

    Attributes:
        expert: name within the container.
        share: its rows over those of all experts, from 0 to 1.
        seen: in which part of the checks it had any, from 0 to 1.
        since_step: step of the last check in which it had any, or None if there was none.
    """

    expert: str
    share: float
    seen: float
    since_step: int | None


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
