"""The checks: each takes what was seen of a checkpoint and yields findings. Pure, without torch."""

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from ormas_core.checkpoints.checks.adapters import adapters
from ormas_core.checkpoints.checks.base import against
from ormas_core.checkpoints.checks.layers import rows
from ormas_core.checkpoints.checks.norms import scales
from ormas_core.checkpoints.checks.tied import tied
from ormas_core.checkpoints.checks.whole import (
    constant,
    duplicates,
    nonfinite,
    uninitialised,
    untouched,
    zero,
)
from ormas_core.checkpoints.findings import Finding
from ormas_core.checkpoints.seen import Seen

Check: TypeAlias = Callable[[Seen], Iterator[Finding]]

CHECKS: Final[tuple[Check, ...]] = (
    nonfinite,
    untouched,
    zero,
    rows,
    scales,
    adapters,
    uninitialised,
    constant,
    duplicates,
    tied,
    against,
)
"""Every check, in the order in which their findings are reported within a severity."""

__all__ = ["CHECKS", "Check"]
