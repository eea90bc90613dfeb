"""What a certificate says, as frozen values: read by the record, the checker and people."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

ENGINE: Final = 1
"""Version of the certificate engine: rises when a rule changes what is proven."""

HYPOTHESES: Final = (
    "H1 wiring",
    "H2 finite",
    "H3 faithful",
    "H4 rules",
    "H5 optimizer",
    "H6 ownership",
)
"""What every certificate rests on; `docs/concepts/certificates.md` states each in full."""


class CertificateClass(StrEnum):
    """How much a certificate promises.

    `absorbing`: the gradient is exactly zero at every later step, for every input. `bounded`: the
    same while the stated limits on batch and input size hold. `closed_now`: for every input at the
    present weights; the optimizer itself may still move them.
    """

    ABSORBING = "absorbing"
    BOUNDED = "bounded"
    CLOSED_NOW = "closed_now"


class UnitKind(StrEnum):
    """What a certified unit is.

    `channel`: a filter or neuron behind a closed gate. `unit`: a hidden unit of an MLP whose
    incoming and outgoing weights cancel. `head`: an attention head. `adapter`: a rank of a low-rank
    pair. `branch`: a channel of a branch whose last scale is zero.
    """

    CHANNEL = "channel"
    UNIT = "unit"
    HEAD = "head"
    ADAPTER = "adapter"
    BRANCH = "branch"


class StepKind(StrEnum):
    """What one line of a proof trace states.

    `parameter`: a fact about stored values, which the optimizer preserves and a later `gradient`
    line must discharge. `value`: a fact about an operation's output. `limit`: the same under the
    stated limits. `backward`: the gradient that an operation sends to one operand is zero.
    `gradient`: the gradient of a tensor, summed over all its uses, is zero.
    """

    PARAMETER = "parameter"
    VALUE = "value"
    LIMIT = "limit"
    BACKWARD = "backward"
    GRADIENT = "gradient"


class Fact(StrEnum):
    """What is known of the elements in a box.

    `magnitude`: their absolute values sum up to no more than the numbers of a `limit` line say.
    """

    ZERO = "zero"
    NONPOSITIVE = "nonpositive"
    NONNEGATIVE = "nonnegative"
    MAGNITUDE = "magnitude"


Span = tuple[int, int, int]
"""Indices i along an axis with start <= i mod period < stop; the period divides the size."""

Box = tuple[Span, ...]
"""A region of a tensor: one span for each axis. A period smaller than the size arises where axes
were merged, such as (batch, heads) into one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A premise of a step.

    Attributes:
        step: index of the earlier step that states it.
        role: `operand` or `output` for an operation's own tensors, `user` for a use of a tensor.
        position: which operand or output; for a user, which of the tensor's uses.
    """

    step: int
    role: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStep:
    """One line of a proof.

    Attributes:
        kind: what it states.
        node: number of the operation in the graph.
        op: torch's name of the operation; `parameter` for a leaf.
        name: the parameter's name, for a leaf.
        fact: for `parameter`, `value` and `limit`.
        position: which output (`value`, `limit`, `gradient`) or operand (`backward`).
        shape: shape of the tensor that it is about.
        box: the region of it.
        operands: shapes of the operation's operands.
        outputs: shapes of its outputs.
        settings: the operation's recorded settings.
        users: for `gradient`, how many uses the tensor has.
        uses: the premises.
    """

    kind: StepKind
    node: int
    op: str
    name: str = ""
    fact: Fact | None = None
    position: int = 0
    shape: tuple[int, ...] = ()
    box: Box = ()
    operands: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[tuple[int, ...], ...] = ()
    settings: Mapping[str, str] | None = None
    users: int = 0
    uses: tuple[Use, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A limit within which a certificate holds.

    Attributes:
        name: such as `lr_max`, `decay_max`, `m_max`, `x_max`, `input_max`.
        value: the limit.
        seen: the value at the time of the proof; None where it was not measured.
        layer: the module it is about; "" for all.
    """

    name: str
    value: float
    seen: float | None = None
    layer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Units of one layer that are proven stuck, for one reason.

    Attributes:
        layer: the module that owns the weight; its parameter's own name for one outside a module.
        units: rows of the layer's weight (output features); head numbers for `head`.
        cls: how much is promised.
        kind: what the units are.
        optimizer: class of the optimizer that owns the weight, "" if none is known.
        conditions: limits within which the claim holds.
        still: whether every element of the units' own weights is proven not to move, beyond having
            a zero gradient for ever.
        trace: the proof for the first unit.
        graph: digest of the graph it was proven on.
        engine: version of the engine.
    """

    layer: str
    units: tuple[int, ...]
    cls: CertificateClass
    kind: UnitKind
    optimizer: str = ""
    conditions: tuple[Condition, ...] = ()
    still: bool = True
    trace: tuple[TraceStep, ...] = ()
    graph: str = ""
    engine: int = ENGINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Units that look stuck and could not be certified.

    Attributes:
        layer: the module that owns the weight.
        units: rows of its weight.
        reason: the condition that failed.
    """

    layer: str
    units: tuple[int, ...]
    reason: str
