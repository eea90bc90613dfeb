"""The rule table: how facts pass each operation of an autograd graph.

An operation that is not in the table is opaque: its value is unknown and it masks nothing.
"""

from collections.abc import Mapping
from typing import Final

from ormas_core.certificates.rules import (
    arithmetic,
    attention,
    convolution,
    elementwise,
    linear,
    lookup,
    normalisation,
    pieces,
    reductions,
    shapes,
)
from ormas_core.certificates.rules.rule import Rule

RULES: Final[Mapping[str, Rule]] = {
    **elementwise.RULES,
    **arithmetic.RULES,
    **shapes.RULES,
    **pieces.RULES,
    **linear.RULES,
    **convolution.RULES,
    **normalisation.RULES,
    **reductions.RULES,
    **attention.RULES,
    **lookup.RULES,
}

SETTINGS: Final = {name: rule.settings for name, rule in RULES.items()}
