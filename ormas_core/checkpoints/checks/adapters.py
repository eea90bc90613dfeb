"""Low-rank adapters: whether they change anything, and whether they could."""

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from ormas_core.checkpoints.findings import Finding, finding, listed
from ormas_core.checkpoints.roles import is_adapter
from ormas_core.checkpoints.seen import Looked, Seen

_FACTOR: Final = re.compile(
    r"^(?P<layer>.*?)[._]?(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_down|"
    r"lora_up|hada_w[12]_[ab]|lokr_w[12](?:_[ab])?)(?:[._].*)?$"
)
_FIRST: Final = ("lora_A", "lora_embedding_A", "lora_down")
_SECOND: Final = ("lora_B", "lora_embedding_B", "lora_up")
_SCALING: Final = ("lora_alpha", "alpha")


def adapters(seen: Seen) -> Iterator[Finding]:
    """Yield adapter layers whose product is zero: all of them as one finding, or a list.

    With B zero, as at the start, an adapter changes nothing and can be trained. With both zero
    neither gets a gradient.
    """
    pairs = _pairs(seen)
    scaled_off = [name for name in _SCALING if (seen.adapter or {}).get(name) == 0]
    if scaled_off and pairs:
        detail = f"{scaled_off[0]} is 0 in adapter_config.json: every product is scaled to zero"
        yield finding("adapter-no-op", f"{len(pairs)} adapter layers", detail)
        return
    still = {name: parts for name, parts in pairs.items() if any(map(_zero, parts.values()))}
    both = [
        name for name, parts in still.items() if len(parts) > 1 and all(map(_zero, parts.values()))
    ]
    idle = [name for name in still if name not in both]
    if both:
        yield finding(
            "adapter-zero",
            both[0] if len(both) == 1 else f"{len(both)} adapter layers",
            f"{len(both)}/{len(pairs)} layers have only zeros in both matrices: {listed(both)}",
            tensors=[p.facts.name for name in both for p in still[name].values()],
        )
    if not idle:
        return
    zeros = [p for name in idle for p in still[name].values() if _zero(p)]
    kinds = sorted({_part(p) for p in zeros})
    where = idle[0] if len(idle) == 1 else f"{len(idle)} adapter layers"
    count = f"{len(idle)}/{len(pairs)} {' and '.join(kinds)} matrices are exactly zero"
    names = [p.facts.name for p in zeros]
    if len(still) == len(pairs):
        detail = f"adapter changes nothing: {count}"
        yield finding("adapter-no-op", where, detail, tensors=names)
    else:
        yield finding("adapter-part-no-op", where, f"{count}: {listed(idle)}", tensors=names)


def _pairs(seen: Seen) -> dict[str, dict[str, Looked]]:
    """Return the factors of each adapter layer that were read, by layer and part."""
    found: dict[str, dict[str, Looked]] = defaultdict(dict)
    for looked in seen.tensors:
        match = _FACTOR.match(looked.facts.clean) if is_adapter(looked.facts) else None
        if match and looked.clean:
            found[match["layer"]][match["part"]] = looked
    return found


def _zero(looked: Looked) -> bool:
    rows = looked.rows
    return rows is not None and rows.count > 0 and rows.all_zero


def _part(looked: Looked) -> str:
    match = _FACTOR.match(looked.facts.clean)
    part = match["part"] if match else ""
    return "A" if part in _FIRST else "B" if part in _SECOND else part
