"""Whether `tie_word_embeddings` of the config is true of the file."""

import re
from collections.abc import Iterator
from typing import Final

from ormas_core.checkpoints.findings import Finding, finding
from ormas_core.checkpoints.seen import Looked, Seen
from ormas_core.checkpoints.tensors import State

_INPUT: Final = re.compile(
    r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|embed_in|tok_embeddings|shared)\.weight$"
)
_OUTPUT: Final = re.compile(
    r"(?:^|\.)(?:lm_head|embed_out|predictions\.decoder|lm_head\.decoder)\.weight$"
)
_GENERATES: Final = re.compile(r"(?:ForCausalLM|LMHeadModel)$")


def tied(seen: Seen) -> Iterator[Finding]:
    """Yield at most one contradiction; a flag that is not written down contradicts nothing."""
    config = seen.config or {}
    flag = config.get("tie_word_embeddings")
    inputs = [one for one in seen.tensors if _INPUT.search(one.facts.clean)]
    outputs = [one for one in seen.tensors if _OUTPUT.search(one.facts.clean)]
    if not isinstance(flag, bool) or not inputs:
        return
    if flag and outputs and not _any_same(inputs, outputs, seen):
        names = [inputs[0].facts, outputs[0].facts]
        yield finding(
            "tied-flag",
            outputs[0].facts.clean,
            f"tie_word_embeddings is true, and {names[0].clean} and {names[1].clean} differ: a "
            "loader that ties them drops one of the two",
            tensors=[facts.name for facts in names],
        )
    architectures = config.get("architectures")
    names_of = architectures if isinstance(architectures, list) else []
    generates = any(isinstance(a, str) and _GENERATES.search(a) for a in names_of)
    packed = any(
        "lm_head" in one.facts.clean or "embed_out" in one.facts.clean for one in seen.tensors
    )
    if not flag and generates and not outputs and not packed:
        yield finding(
            "tied-flag",
            inputs[0].facts.clean,
            f"tie_word_embeddings is false, and {names_of[0]} has no output layer in the file: a "
            "loader would initialise it at random",
            tensors=[inputs[0].facts.name],
        )


def _any_same(inputs: list[Looked], outputs: list[Looked], seen: Seen) -> bool:
    """Whether an input and an output table are the same, or one of them could not be read."""
    if any(one.facts.state is not State.READ for one in (*inputs, *outputs)):
        return True
    return any(
        one.facts.fingerprint == other.facts.fingerprint
        and seen.same(one.facts.name, other.facts.name)
        for one in inputs
        for other in outputs
    )
