"""The certificate engine: proves which gradients are exactly zero for ever.

Names resolve on first use: the trace checker works without torch, the prover needs it.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ormas_core.certificates.causes import Candidate as Candidate
    from ormas_core.certificates.causes import confirmed as confirmed
    from ormas_core.certificates.causes import counted as counted
    from ormas_core.certificates.checker import check_claim as check_claim
    from ormas_core.certificates.checker import check_trace as check_trace
    from ormas_core.certificates.engine import Outcome as Outcome
    from ormas_core.certificates.engine import examine as examine
    from ormas_core.certificates.graph import Graph as Graph
    from ormas_core.certificates.graph import UnreadableGraphError as UnreadableGraphError
    from ormas_core.certificates.graph import read as read
    from ormas_core.certificates.guards import Evidence as Evidence
    from ormas_core.certificates.guards import unprovable as unprovable
    from ormas_core.certificates.health import ChannelHealth as ChannelHealth
    from ormas_core.certificates.live import CertificateWatch as CertificateWatch
    from ormas_core.certificates.ownership import Owner as Owner
    from ormas_core.certificates.ownership import owners as owners
    from ormas_core.certificates.ownership import storage_address as storage_address
    from ormas_core.certificates.rules import SETTINGS as SETTINGS

_HOMES: Final = {
    "Candidate": "causes",
    "confirmed": "causes",
    "counted": "causes",
    "check_claim": "checker",
    "check_trace": "checker",
    "Evidence": "guards",
    "unprovable": "guards",
    "ChannelHealth": "health",
    "CertificateWatch": "live",
    "Outcome": "engine",
    "examine": "engine",
    "Graph": "graph",
    "UnreadableGraphError": "graph",
    "read": "graph",
    "Owner": "ownership",
    "owners": "ownership",
    "storage_address": "ownership",
    "SETTINGS": "rules",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
