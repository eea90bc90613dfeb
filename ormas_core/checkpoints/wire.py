"""The architecture beside a checkpoint: how far the two agree, and what feeds what.

Nothing here imports torch; `wiring`, which does, is imported when an architecture is needed.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ormas_core.checkpoints.findings import Finding, finding, listed
from ormas_core.checkpoints.opened import Checkpoint
from ormas_core.checkpoints.roles import is_norm_name, layer, leaf
from ormas_core.errors import CheckpointError, OrmasError

if TYPE_CHECKING:
    from torch import Tensor, nn

ENOUGH: Final = 0.5
"""Share of the file's norms that the architecture must have."""

_COUNTERS: Final = re.compile(r"(?:num_batches_tracked|position_ids|token_type_ids)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A built model, as far as it is compared with a file.

    Attributes:
        name: what it is, for people.
        shapes: shape of every tensor of its state, by name.
        tied: names that are filled by other tensors where a file does not hold them.
        followers: for each layer the functions that take its output, or the layer itself in the
            form `norm:NAME` where that is a normalisation.
        untraced: why `followers` is empty; "" if it is not.
    """

    name: str
    shapes: Mapping[str, tuple[int, ...]]
    tied: frozenset[str] = frozenset()
    followers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    untraced: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """What an architecture says of a checkpoint.

    Attributes:
        sentence: how far the two agree.
        error: why nothing may be concluded from it, or "".
        findings: where they do not agree.
        followers: as in `Plan`, by the names of the file; None where unknown.
    """

    sentence: str
    error: str = ""
    findings: tuple[Finding, ...] = ()
    followers: Mapping[str, tuple[str, ...]] | None = None


def wire(checkpoint: Checkpoint, arch: str, *, asked: bool) -> Wiring:
    """Build the architecture without weights and compare it with the checkpoint.

    Args:
        checkpoint: what was opened; only names and shapes are used.
        arch: `torchvision:NAME`, or `hf` for the `config.json` of its folder.
        asked: whether somebody asked for it: if not, a failure is no error.

    Raises:
        ConfigError: `arch` names nothing that can be built, and was asked for.
        MissingExtraError: the library is not installed, and was asked for.
    """
    try:
        from ormas_core.checkpoints.wiring import plan

        return match(
            checkpoint, plan(arch, checkpoint.config, len(checkpoint.entries)), asked=asked
        )
    except (OrmasError, ImportError) as error:
        if asked:
            raise
        return Wiring(sentence=f"the wiring is unknown: {error}")


def loaded_model(checkpoint: Checkpoint, arch: str) -> "nn.Module":
    """Return the architecture with the weights of the checkpoint.

    Raises:
        ConfigError: `arch` names nothing that can be built.
        MissingExtraError: its library is not installed.
        CheckpointError: the checkpoint does not fill the model.
    """
    from ormas_core.checkpoints.load import load
    from ormas_core.checkpoints.wiring import build, tied_names

    model = build(arch, checkpoint.config, len(checkpoint.entries))
    left = [n for n in load(model, checkpoint) if not _COUNTERS.search(n)]
    left = [name for name in left if name not in tied_names(model)]
    if left:
        raise CheckpointError(
            left[0], f"{len(left)} tensors of {arch} are not in the checkpoint: {listed(left)}"
        )
    return model


def model_batches(model: "nn.Module") -> "Iterator[Mapping[str, Tensor]]":
    """Yield random inputs that a model may take, by keyword; one that has none is at ""."""
    from ormas_core.checkpoints.wiring import batches

    return batches(model)


def match(checkpoint: Checkpoint, plan: Plan, *, asked: bool) -> Wiring:
    """Compare names and shapes of a file with those of a model."""
    shapes = {
        name: entry.shape for name, entry in zip(checkpoint.names, checkpoint.entries, strict=True)
    }
    names = aligned(shapes, plan.shapes)
    norms = sorted(_norms(shapes))
    matched = [norm for norm in norms if _agree(norm, names, shapes, plan.shapes)]
    sentence = f"{plan.name}: {len(matched)} of {len(norms)} norms of the file matched"
    if norms and len(matched) < ENOUGH * len(norms):
        unmatched = sorted(set(norms) - set(matched))
        problem = f"{sentence}; this is another architecture, or other names ({listed(unmatched)})"
        return Wiring(sentence=problem, error=problem if asked else "")
    findings = tuple(_findings(shapes, names, plan, norms, matched)) if asked else ()
    own = {theirs: mine for mine, theirs in names.items()}
    layers = {layer(theirs): layer(mine) for theirs, mine in own.items()}
    followers = {
        layers[name]: tuple(_renamed(one, layers) for one in after)
        for name, after in plan.followers.items()
        if name in layers
    }
    untraced = f"; {plan.untraced}" if plan.untraced else ""
    return Wiring(
        sentence=sentence + untraced, findings=findings, followers=followers if followers else None
    )


def _renamed(follower: str, layers: Mapping[str, str]) -> str:
    kind, colon, name = follower.partition(":")
    return f"{kind}:{layers.get(name, name)}" if colon else follower


def aligned(shapes: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, str]:
    """Return the name that each tensor has in the model, with or without the part that holds it.

    A base model is saved with and without the name of its place in the whole, such as `bert.`.
    """
    heads = {"", *(name.partition(".")[0] + "." for name in (*shapes, *others))}
    best: dict[str, str] = {}
    for head in sorted(heads):
        for put in (True, False):
            trial = {n: head + n if put else n.removeprefix(head) for n in shapes}
            found = {mine: theirs for mine, theirs in trial.items() if theirs in others}
            if len(found) > len(best):
                best = found
    return best


def _norms(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    for name, shape in shapes.items():
        own = layer(name)
        vector = leaf(name) in ("weight", "gamma") and len(shape) == 1
        if vector and (f"{own}.running_var" in shapes or is_norm_name(own)):
            yield own


def _agree(
    norm: str, names: Mapping[str, str], shapes: Mapping[str, Any], others: Mapping[str, Any]
) -> bool:
    return any(
        names.get(name) in others and shapes[name] == others[names[name]]
        for name in (f"{norm}.weight", f"{norm}.gamma")
        if name in names
    )


def _findings(
    shapes: Mapping[str, tuple[int, ...]],
    names: Mapping[str, str],
    plan: Plan,
    norms: list[str],
    matched: list[str],
) -> Iterator[Finding]:
    missing = set(plan.shapes) - set(names.values()) - plan.tied
    missing = {name for name in missing if not _COUNTERS.search(name)}
    if missing:
        detail = f"{len(missing)} of {len(plan.shapes)} tensors of {plan.name} are not in the file"
        yield finding("missing-tensors", plan.name, f"{detail}: {listed(sorted(missing))}")
    reshaped = [n for n, theirs in names.items() if shapes[n] != plan.shapes[theirs]]
    left = sorted(set(norms) - set(matched))
    parts = (
        (left, "norms of the file are not in the architecture"),
        (reshaped, "tensors have another shape there"),
    )
    text = "; ".join(f"{len(found)} {what}: {listed(found)}" for found, what in parts if found)
    if text:
        yield finding("partial-wiring", plan.name, text, tensors=[*left, *reshaped])
