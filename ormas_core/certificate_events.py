"""The events of the certificate engine, of channel health and of repair."""

from dataclasses import dataclass, field
from typing import ClassVar

from ormas_core.claims import CertificateClass, Condition, TraceStep, UnitKind
from ormas_core.event_base import BaseEvent
from ormas_core.terms import ChannelLevel, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate(BaseEvent):
    """Units of a layer are proven stuck. Each unit is named once for each class.

    Attributes:
        layer: the module that owns the weight.
        units: rows of its weight (output features); head numbers for `head`.
        cls: how much is promised; see `CertificateClass`.
        unit_kind: what the units are.
        optimizer: class of the optimizer that the claim assumes; "" for none.
        conditions: limits within which it holds; a later check that finds one broken revokes it.
        still: whether the units' own weights are proven not to move at all.
        initial: whether it was so at the first check: it came with the starting weights.
        trace: the proof for the first unit, which `verify` checks again.
        graph: digest of the graph it was proven on.
        engine: version of the certificate engine.
    """

    kind: ClassVar[str] = "certificate"
    severity: ClassVar[Severity] = Severity.PROOF
    layer: str
    units: tuple[int, ...]
    cls: CertificateClass
    unit_kind: UnitKind = field(metadata={"member": "kind"})
    optimizer: str
    conditions: tuple[Condition, ...]
    still: bool
    initial: bool
    trace: tuple[TraceStep, ...]
    graph: str
    engine: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRefused(BaseEvent):
    """Units look stuck, had no gradient at this check, and could not be certified.

    Or they are proven stuck, and something seen at this check says otherwise.
    """

    kind: ClassVar[str] = "certificate_refused"
    layer: str
    units: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRevoked(BaseEvent):
    """A certificate does not hold any more: a guard failed, or the proof cannot be repeated."""

    kind: ClassVar[str] = "certificate_revoked"
    severity: ClassVar[Severity] = Severity.WARNING
    layer: str
    units: tuple[int, ...]
    cls: CertificateClass
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels(BaseEvent):
    """Channels of a layer are out of use.

    Said once for each change of level, and when silent ones join the others for the first time.

    Attributes:
        level: how many of the `n` channels the four counts together are.
        n: channels of the layer.
        certified: proven stuck.
        flat: constant and positive behind the gate: they carry nothing and may recover.
        decayed: almost zero, or zero and not provable.
        silent: no positive output in any forward pass of `patience` checks: an observation only.
        initial: whether it was so at the first check: it came with the starting weights.
    """

    kind: ClassVar[str] = "channels"
    layer: str
    level: ChannelLevel
    n: int
    certified: int
    flat: int
    decayed: int
    silent: int
    initial: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelsCleared(BaseEvent):
    """All channels of a layer are in use again."""

    kind: ClassVar[str] = "channels_cleared"
    layer: str
    n: int
    since_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair(BaseEvent):
    """Channels were re-initialised: a discrete change of the weights, without a bound.

    Attributes:
        layer: the module that owns the weight.
        units: rows of its weight that were drawn anew.
        cause: `certified`, `flat`, `decayed` or `silent`.
        changed: names of the parameters and buffers that were written.
        delta: Euclidean norm of the change of all of them together.
        relative: `delta` over the norm of those parameters before.
        refused: why nothing was changed; empty where it was.
    """

    kind: ClassVar[str] = "repair"
    severity: ClassVar[Severity] = Severity.ACTION
    layer: str
    units: tuple[int, ...]
    cause: str
    changed: tuple[str, ...]
    delta: float
    relative: float
    refused: str = ""
