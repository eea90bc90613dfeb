"""A checkpoint in its architecture, one random batch, and what the certificate engine proves."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ormas_core.certification import certify
from ormas_core.checkpoints import (
    Checkpoint,
    Finding,
    finding,
    in_order,
    loaded_model,
    model_batches,
    norm_after,
    spans,
)
from ormas_core.claims import Claim
from ormas_core.errors import CheckpointError, OrmasError

_SEED = 0


def with_proof(
    checkpoint: Checkpoint,
    arch: str,
    findings: tuple[Finding, ...],
    followers: Mapping[str, tuple[str, ...]] | None,
) -> tuple[Finding, ...]:
    """Return the findings with what is proven of the same channels in place of what was guessed.

    A proof is for every input at the present weights (`closed_now`): a file has no optimizer.

    Args:
        checkpoint: what was opened.
        arch: what its weights are put into.
        findings: what was found without running it.
        followers: what takes the output of each layer; None where that is unknown.
    """
    try:
        claims = _claims(checkpoint, arch)
    except (OrmasError, OSError) as error:
        return in_order((*findings, finding("not-compared", arch, f"nothing was proven: {error}")))
    proven = [_finding(claim) for claim in claims]
    units: dict[str, set[int]] = {}
    for one in proven:
        for layer in (one.where, norm_after(followers, one.where)):
            units.setdefault(layer, set()).update(one.units)
    rest = [one for one in findings if not _covered(one, units)]
    return in_order((*proven, *rest))


def _covered(one: Finding, proven: Mapping[str, set[int]]) -> bool:
    """Whether all the dead channels of a finding are proven to be so."""
    layer = one.where.removesuffix(".weight")
    return one.code == "dead-channels" and set(one.units) <= proven.get(layer, set())


def _finding(claim: Claim) -> Finding:
    detail = (
        f"{len(claim.units)} of kind {claim.kind.value} ({spans(claim.units)}): "
        f"{claim.cls.value}, proven in {len(claim.trace)} steps"
    )
    return finding("certified-dead", claim.layer, detail, units=claim.units)


def _claims(checkpoint: Checkpoint, arch: str) -> tuple[Claim, ...]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        model = loaded_model(checkpoint, arch).train()
        problem = "no input is known for it"
        for batch in model_batches(model):
            try:
                loss = _loss(model, batch)
            except Exception as error:  # noqa: BLE001 - a guessed input may break anything in a model
                problem = f"it does not run on a guessed input ({type(error).__name__}: {error})"
                continue
            return certify(model, None, loss).claims
    raise CheckpointError(arch, problem)


def _loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return a scalar to which every floating output of the model contributes."""
    out = model(*batch.values()) if "" in batch else model(**batch)
    parts = [
        (tensor.float() * torch.randn_like(tensor, dtype=torch.float32)).sum()
        for tensor in _tensors(out)
        if tensor.requires_grad
    ]
    return torch.stack(parts).sum()


def _tensors(out: Any) -> Iterator[Tensor]:
    if isinstance(out, Tensor):
        yield out
    elif isinstance(out, Mapping):
        for value in out.values():
            yield from _tensors(value)
    elif isinstance(out, list | tuple):
        for value in out:
            yield from _tensors(value)
