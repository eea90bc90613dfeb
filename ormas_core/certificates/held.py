"""Claims in force, unit by unit."""

from collections.abc import Mapping
from dataclasses import dataclass

from ormas_core.certificates.place import Place
from ormas_core.claims import CertificateClass, Claim, UnitKind

Key = tuple[str, UnitKind, CertificateClass, int]


@dataclass(slots=True)
class Live:
    """A claim in force.

    Attributes:
        claim: what is claimed, of all the units it was issued for.
        place: where the weights of all those units are.
        rows: which rows of the place are this unit's.
        rates: parameter id -> (learning rate, decay) that the claim covers.
        since: optimizer updates completed when it was issued.
        checks: checks that have confirmed it, the first one included.
    """

    claim: Claim
    place: Place
    rows: slice
    rates: Mapping[int, tuple[float, float]]
    since: int
    checks: int = 1


def keys_of(claim: Claim) -> list[Key]:
    """Return the key of each unit of a claim."""
    return [(claim.layer, claim.kind, claim.cls, unit) for unit in claim.units]


def rows_of(claim: Claim) -> list[tuple[Key, slice]]:
    """Return each unit of a claim with its rows in the claim's place; heads have all of them."""
    whole = claim.kind is UnitKind.HEAD
    return [
        (key, slice(None) if whole else slice(number, number + 1))
        for number, key in enumerate(keys_of(claim))
    ]
