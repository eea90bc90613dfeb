"""A checkpoint after its tensors have been read: what the checks judge.

Row maxima are sorted into groups as soon as a tensor has been read, so that memory does not grow
with the number of rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from ormas_core.checkpoints.groups import LONE_GAP, LOW_GAP, RowGroups, row_groups
from ormas_core.checkpoints.tensors import TensorFacts
from ormas_core.checkpoints.vocabulary import Vocabulary

_SANE: Final = (1.2e-38, 1e15)
"""Between the smallest normal number of float32 and what no trained weight reaches."""

_FEW: Final = 3
"""Elements of a row below which its largest one says little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A tensor whose rows have been sorted.

    Attributes:
        facts: what is known of it; `magnitude` and `sample` are gone.
        rows: its groups of rows; None where it was not read or holds no numbers with a point.
        wild: share of the rows that are neither zero nor of a sane size, of those not zero.
    """

    facts: TensorFacts
    rows: RowGroups | None = None
    wild: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether it was read and all its elements are finite floating-point numbers."""
        return self.rows is not None and not self.facts.nan and not self.facts.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything that the checks see.

    Attributes:
        tensors: every tensor of the checkpoint.
        config: the parsed `config.json`, or None.
        adapter: the parsed `adapter_config.json`, or None.
        vocabulary: asks the tokenizer of the folder; None where there is none.
        base_vocabulary: likewise for the base.
        base: names of the tensors of the base; None where none was given.
        followers: for each normalisation and layer with filters, what its output goes into; None
            where the wiring is unknown.
        same: whether two tensors, by their names in the files, have equal bytes.
    """

    tensors: tuple[Looked, ...]
    config: Mapping[str, Any] | None = None
    adapter: Mapping[str, Any] | None = None
    vocabulary: Callable[[], Vocabulary | None] = lambda: None
    base_vocabulary: Callable[[], Vocabulary | None] = lambda: None
    base: frozenset[str] | None = None
    followers: Mapping[str, tuple[str, ...]] | None = None
    same: Callable[[str, str], bool] = field(default=lambda _one, _other: False)

    @property
    def by_name(self) -> dict[str, Looked]:
        """The tensors by their clean names."""
        return {looked.facts.clean: looked for looked in self.tensors}


def look(facts: TensorFacts) -> Looked:
    """Return a tensor with its rows sorted into groups and its row maxima dropped."""
    kept = replace(facts, magnitude=None, sample=None)
    if facts.shares:  # what is wrong with it is said of the tensor that it is
        return Looked(facts=replace(kept, nan=0, inf=0))
    if facts.magnitude is None or not (facts.floating and facts.elements):
        return Looked(facts=kept)
    sizes = facts.magnitude[facts.magnitude > 0]
    wild = float(np.mean((sizes < _SANE[0]) | (sizes > _SANE[1]))) if len(sizes) else 0.0
    lone = facts.elements < _FEW * facts.rows
    groups = row_groups(facts.magnitude, LONE_GAP if lone else LOW_GAP)
    return Looked(facts=kept, rows=groups, wild=wild)
