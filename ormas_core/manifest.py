"""What of a run is observed and what is not, and why: the lines of a `Manifest`."""

from collections.abc import Iterator, Sequence
from typing import Any

from ormas_core.events import Mechanism, MechanismState, Stage
from ormas_core.hooks import Selection
from ormas_core.host import Host


def first_lines(
    selection: Selection, host: Host, optimizer: Any, scaler: Any, world_size: int
) -> tuple[Mechanism, ...]:
    """Return what is known before the first step."""
    return (
        *_gradient_norms(selection),
        _stage(host),
        *_forward(selection),
        _optimizer(optimizer),
        _scaling(scaler),
        *_distributed(world_size),
        *host.notes,
    )


def observed_lines(
    first: Sequence[Mechanism],
    *,
    idle: Sequence[str],
    uncalled: Sequence[str],
    checks: int,
    loss_seen: bool,
    loss_problem: str,
) -> tuple[Mechanism, ...]:
    """Return the lines with what the first checks have shown.

    Args:
        first: the lines so far.
        idle: layers that require a gradient and never had one.
        uncalled: layers whose forward call was never seen though gradients were.
        checks: checks made.
        loss_seen: whether any check had a loss.
        loss_problem: why a given loss could not be used, if so.
    """
    lines = list(first)
    if idle:
        lines.append(
            Mechanism(
                name="gradient_norms",
                state=MechanismState.UNOBSERVABLE,
                reason=f"requires a gradient and had none in the first {checks} checks: unused in "
                "the forward pass, or detached from the loss",
                layers=tuple(idle),
            )
        )
    if uncalled:
        lines.append(
            Mechanism(
                name="channel_maxima",
                state=MechanismState.UNOBSERVABLE,
                reason="no forward call of the module was seen: its parameters are used directly, "
                "by a replica, or by compiled code",
                layers=tuple(uncalled),
            )
        )
    lines.append(
        Mechanism(name="loss", state=MechanismState.ACTIVE)
        if loss_seen
        else Mechanism(
            name="loss",
            state=MechanismState.OFF,
            reason=loss_problem or "no loss was given: pass it to step(loss) or note_loss(loss)",
        )
    )
    return tuple(lines)


def _gradient_norms(selection: Selection) -> Iterator[Mechanism]:
    sharded = set(selection.sharded)
    frozen = [
        layer.name
        for layer in selection.layers
        if layer.name not in sharded and next(layer.trainable(), None) is None
    ]
    active = [
        layer.name
        for layer in selection.layers
        if layer.name not in sharded and layer.name not in set(frozen)
    ]
    name = "gradient_norms"
    if active:
        yield Mechanism(name=name, state=MechanismState.ACTIVE, layers=tuple(active))
    if frozen:
        yield Mechanism(
            name=name,
            state=MechanismState.UNUSED,
            reason="frozen: no parameter requires a gradient; watched from when one does",
            layers=tuple(frozen),
        )
    if sharded:
        yield Mechanism(
            name=name,
            state=MechanismState.UNOBSERVABLE,
            reason="sharded: this process holds only a part of each parameter",
            layers=selection.sharded,
        )
    for layer, owner in selection.tied:
        yield Mechanism(
            name=name,
            state=MechanismState.PARTIAL,
            reason=f"tied: a shared parameter is counted in {owner}",
            layers=(layer,),
        )
    if selection.unmatched:
        yield Mechanism(
            name="layer_patterns",
            state=MechanismState.PARTIAL,
            reason=f"patterns that match no layer: {', '.join(selection.unmatched)}",
        )


def _stage(host: Host) -> Mechanism:
    if host.stage is Stage.CLIPPED:
        return Mechanism(
            name="gradient_stage",
            state=MechanismState.PARTIAL,
            reason="gradients are seen after clipping: an explosion in one layer shows as shrunken "
            "gradients in the others",
        )
    return Mechanism(name="gradient_stage", state=MechanismState.ACTIVE, reason=host.stage.value)


def _forward(selection: Selection) -> Iterator[Mechanism]:
    for name in ("channel_maxima", "output_gradients"):
        if selection.compiled:
            yield Mechanism(
                name=name,
                state=MechanismState.UNOBSERVABLE,
                reason="the model runs compiled code, which a hook would make torch compile again",
                layers=selection.compiled,
            )
        else:
            yield Mechanism(name=name, state=MechanismState.ACTIVE)


def _optimizer(optimizer: Any) -> Mechanism:
    if optimizer is None:
        return Mechanism(
            name="optimizer",
            state=MechanismState.OFF,
            reason="no torch optimizer was given; gradients are read all the same",
        )
    return Mechanism(name="optimizer", state=MechanismState.ACTIVE, reason=type(optimizer).__name__)


def _scaling(scaler: Any) -> Mechanism:
    if scaler is None or not scaler.is_enabled():
        return Mechanism(
            name="loss_scaling",
            state=MechanismState.UNUSED,
            reason="no enabled GradScaler was given",
        )
    return Mechanism(name="loss_scaling", state=MechanismState.ACTIVE)


def _distributed(world_size: int) -> Iterator[Mechanism]:
    if world_size > 1:
        yield Mechanism(
            name="other_ranks",
            state=MechanismState.PARTIAL,
            reason=f"{world_size} processes: gradients are as reduced over all of them; loss and "
            "activations are those of rank 0",
        )
