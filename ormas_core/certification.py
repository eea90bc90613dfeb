"""`certify`: the certificate engine on one batch, without a training loop."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ormas_core.certificates import (
    SETTINGS,
    Graph,
    UnreadableGraphError,
    examine,
    owners,
    read,
    unprovable,
)
from ormas_core.claims import Claim, Refusal
from ormas_core.errors import CertifyError
from ormas_core.hooks import WatchedLayer, select, unwrap_optimizer


@dataclass(frozen=True, slots=True)
class Certificates:
    """What was proven, and what looks dead and could not be proven so.

    Iterating gives the claims. `print()` shows a table, `to_json()` everything.

    Attributes:
        claims: the certified units.
        refused: candidates with the condition that failed.
        parameters: how many parameters the graphs reached.
        unreached: trainable parameters that no graph reached: unobservable, not proven dead.
    """

    claims: tuple[Claim, ...]
    refused: tuple[Refusal, ...]
    parameters: int
    unreached: tuple[str, ...]

    def __iter__(self) -> Iterator[Claim]:
        return iter(self.claims)

    def __len__(self) -> int:
        return len(self.claims)

    def to_json(self) -> str:
        """Return everything as JSON."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        lines = [f"{len(self.claims)} certificates over {self.parameters} parameters"]
        rows = [(c.layer, _indices(c.units), c.cls.value, c.kind.value) for c in self.claims]
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
        lines += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        lines += [f"refused: {r.layer} {_indices(r.units)}: {r.reason}" for r in self.refused]
        if self.unreached:
            lines.append(f"not reached by the loss: {', '.join(self.unreached)}")
        return "\n".join(lines)


def certify(
    model: nn.Module,
    optimizer: Optimizer | Iterable[Optimizer] | None,
    loss: Tensor | Iterable[Tensor],
    *,
    lr_max: float | None = None,
    certify_optimizers: Sequence[str] = (),
) -> Certificates:
    """Prove which parts of a model can never recover.

    Args:
        model: the model, wrapped or not.
        optimizer: the optimizer of its parameters, or several; None proves `closed_now` only.
        loss: a scalar tensor whose graph is alive, before or after backward; or one for each
            micro-batch of an optimizer step.
        lr_max: largest learning rate that the certificates must cover; None for ten times the
            largest seen.
        certify_optimizers: class names of further optimizers of which you vouch that a zero
            gradient and zero state move nothing.

    Raises:
        CertifyError: a loss is no tensor with a graph, or the parameters are sharded.

    Source:
        docs/concepts/certificates.md has the theorem, its hypotheses and the proof.
    """
    losses = [loss] if isinstance(loss, Tensor) else list(loss)
    selection = select(model, None)
    found = owners(
        _modules(selection.layers),
        _optimizers(optimizer),
        tensors=(*selection.model.parameters(), *selection.model.buffers()),
        lr_max=lr_max,
        asserted=certify_optimizers,
    )
    names = {key: owner.name for key, owner in found.items()}
    graphs = [_graph(one, names) for one in losses]
    if not graphs:
        raise CertifyError("loss", "certify() needs a loss: a tensor, or one for each micro-batch")
    if problem := unprovable(graphs):
        raise CertifyError("model", f"certify() cannot prove anything here: {problem}")
    outcome = examine(graphs, found)
    reached = {id(parameter) for graph in graphs for parameter in graph.parameters}
    unreached = [
        owner.name
        for key, owner in found.items()
        if key not in reached and _trainable(selection.layers, key)
    ]
    return Certificates(
        tuple(claim for claim, _ in outcome.claims),
        tuple(refusal for refusal, _ in outcome.refusals),
        len(reached),
        tuple(unreached),
    )


def _graph(loss: object, names: dict[int, str]) -> Graph:
    if not isinstance(loss, Tensor):
        raise CertifyError(
            "loss", f"certify() needs the loss tensor with its graph; got {type(loss).__name__}"
        )
    try:
        return read([loss], SETTINGS, names)
    except UnreadableGraphError as error:
        raise CertifyError(
            "loss", f"certify() cannot read the graph of the loss: {error}"
        ) from None


def _modules(layers: Sequence[WatchedLayer]) -> list[tuple[str, nn.Module]]:
    return [(layer.name, layer.module) for layer in layers]


def _optimizers(optimizer: Any) -> list[Optimizer]:
    given = [optimizer] if not isinstance(optimizer, list | tuple) else list(optimizer)
    return [inner for one in given if (inner := unwrap_optimizer(one)) is not None]


def _trainable(layers: Sequence[WatchedLayer], key: int) -> bool:
    return any(id(p) == key for layer in layers for p in layer.trainable())


def _indices(units: Sequence[int]) -> str:
    shown = ", ".join(map(str, units[:8]))
    return f"[{shown}{', ...' if len(units) > 8 else ''}]"  # noqa: PLR2004
