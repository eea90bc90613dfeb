"""What a run is, what of it is observed and what is not, and why."""

import platform
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from ormas_core import ranks
from ormas_core.config import MonitorConfig
from ormas_core.events import Manifest, RunStart
from ormas_core.hooks import TORCH_VERSION, Reading, Selection, unread
from ormas_core.host import Host
from ormas_core.terms import ALARMS, GRADIENT_NORMS, Mechanism, MechanismState, Stage
from ormas_core.version import RECORD_SCHEMA, VERSION

_OFF: Final = "optimizer", MechanismState.OFF
_STAGE: Final = "gradient_stage"
_EXPERTS: Final = "expert_usage"
_UNREAD: Final = "not looked at before the first step: sharded, without data yet, or quantised"
_NO_LOSS: Final = "no loss was given: pass it to step(loss) or note_loss(loss)"


def first_lines(
    selection: Selection, host: Host, optimizers: Sequence[Any], scaler: Any, world_size: int
) -> tuple[Mechanism, ...]:
    """Return what is known before the first step."""
    return (
        *_gradient_norms(selection),
        _stage_line(host.stage),
        *_forward(selection),
        *_experts(selection),
        *_optimizers(selection, optimizers, host.watched),
        *_scaling(scaler, len(optimizers)),
        *_line("starting_values", MechanismState.UNOBSERVABLE, _UNREAD, unread(selection)),
        *_distributed(world_size),
        *host.notes,
    )


def run_start(
    selection: Selection,
    config: MonitorConfig,
    host: Host,
    optimizers: Sequence[Any],
    name: str | None,
) -> RunStart:
    """Return the event that begins a run or a segment."""
    parameters, trainable = selection.sizes()
    return RunStart(
        step=0,
        run_id=host.run_id or uuid.uuid4().hex,
        name=name,
        framework=host.framework,
        model=type(selection.model).__name__,
        optimizer=", ".join(type(one).__name__ for one in optimizers) or None,
        layers=tuple(layer.name for layer in selection.layers),
        parameters=parameters,
        trainable=trainable,
        world_size=ranks.world_size(),
        segment=host.segment,
        schema=RECORD_SCHEMA,
        versions={
            "python": platform.python_version(),
            "torch": TORCH_VERSION,
            "ormas": VERSION,
        },
        config=config,
    )


class Observing(Protocol):
    """A part of the monitor that knows whether it is at work."""

    def mechanisms(self) -> Iterable[Mechanism]:
        """Return its lines of the manifest."""


class Sightings:
    """What the checks have shown, and what they have not.

    Args:
        first: the lines known before the first step.
        selection: the watched layers.
        warmup: checks that make a baseline.
        loss_hint: why there may be no loss, as the host knows it.

    Attributes:
        checks: checks noted.
    """

    def __init__(
        self, first: Sequence[Mechanism], selection: Selection, warmup: int, loss_hint: str = ""
    ) -> None:
        self.checks = 0
        self._first = self._said = tuple(first)
        self._warmup = warmup
        self._compiled = bool(selection.compiled)
        self._experts = {group.container for group in selection.experts if group.named}
        # Layers that should have a gradient -> checks in which they had one that is not zero.
        off = {n for line in first if (line.name, line.state) == _OFF for n in line.layers}
        named = [layer.name for layer, own in selection.readable() if own]
        self._seen = {name: 0 for name in named if name not in off}
        # Of each optimizer that steps apart: a GAN turns the layers of the others off meanwhile.
        self._trainable: dict[str, frozenset[str]] = {}
        self._measured: set[str] = set()
        self._called: set[str] = set()
        self._forward_failures: dict[str, str] = {}
        self._unreadable: dict[str, str] = {}
        self._loss = False
        self._clipped = False
        self._loss_problem = ""
        self._loss_hint = loss_hint or _NO_LOSS

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must not forget: checks, and in how many a layer was seen."""
        return {"checks": self.checks, "seen": dict(self._seen)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state_dict` returned, or leave everything as it is."""
        checks, seen = int(state["checks"]), {n: int(s) for n, s in state["seen"].items()}
        self.checks = checks
        self._seen = {name: seen.get(name, 0) for name in self._seen}

    def note(self, reading: Reading) -> None:
        """Take what one check has seen."""
        measurement = reading.measurement
        self.checks += 1
        self._trainable[measurement.lane] = frozenset(measurement.layers)
        self._measured.update(measurement.layers)
        for name, norm in zip(measurement.layers, measurement.norms, strict=True):
            seen = self._seen.setdefault(name, 0)
            self._seen[name] = seen + (norm is not None and norm != 0.0)
        self._called |= reading.called
        self._experts -= {found.container for found in measurement.experts}
        self._forward_failures.update(reading.forward_failures)
        self._unreadable.update(reading.unreadable)
        self._loss_problem = reading.loss_problem or self._loss_problem
        self._loss = self._loss or measurement.loss is not None
        self._clipped = self._clipped or measurement.stage is Stage.CLIPPED

    def news(self, step: int, *others: Observing, ended: bool = False) -> Iterator[Manifest]:
        """Yield a manifest if the warm-up is over, or the run, and it differs from the last one.

        Args:
            step: optimizer updates completed.
            others: parts of the monitor with mechanisms of their own.
            ended: no further check will come.
        """
        if not ended and self.checks < self._warmup:
            return
        own = self._lines(ended=ended)
        lines = (*own, *(line for part in others for line in part.mechanisms()))
        if lines != self._said:
            self._said = lines
            yield Manifest(step=step, mechanisms=lines)

    def _lines(self, *, ended: bool) -> Iterator[Mechanism]:
        yield from (line for line in self._first if not (self._clipped and line.name == _STAGE))
        yield from self._without_gradient()
        yield from self._without_forward()
        if self._clipped:
            yield _stage_line(Stage.CLIPPED)
        if self._loss:
            yield Mechanism(name="loss", state=MechanismState.ACTIVE)
        else:
            yield Mechanism(
                name="loss", state=MechanismState.OFF, reason=self._loss_problem or self._loss_hint
            )
        if ended:
            yield from self._without_baseline()

    def _without_gradient(self) -> Iterator[Mechanism]:
        blind, partial = MechanismState.UNOBSERVABLE, MechanismState.PARTIAL
        now = frozenset(self._unreadable).union(*self._trainable.values())
        frozen = self._seen.keys() - now if self._trainable else set()
        yield from _line(
            GRADIENT_NORMS,
            blind,
            "requires a gradient and had none but zeros in any check: unused in the forward pass, "
            "detached from the loss, or behind dead units",
            [name for name in self._measured if self._seen[name] == 0],
        )
        yield from _line(
            GRADIENT_NORMS,
            blind,
            "required a gradient when the run began, and at none of the checks",
            [name for name in frozen if name not in self._measured],
        )
        yield from _line(
            GRADIENT_NORMS,
            partial,
            "was measured and does not require a gradient any more",
            [name for name in frozen if self._seen[name]],
        )
        for name, reason in self._unreadable.items():
            yield from _line(GRADIENT_NORMS, blind, f"cannot be read: {reason}", [name])

    def _without_forward(self) -> Iterator[Mechanism]:
        blind = MechanismState.UNOBSERVABLE
        for name, reason in self._forward_failures.items():
            yield from _line("channel_maxima", blind, f"cannot be read: {reason}", [name])
        if not self._compiled:
            yield from _line(
                _EXPERTS, blind, "no call of an expert was seen in any check", list(self._experts)
            )
            yield from _line(
                "channel_maxima",
                blind,
                "no forward call of the module was seen: its parameters are used directly, by a "
                "replica, or by compiled code",
                [name for name, seen in self._seen.items() if seen and name not in self._called],
            )

    def _without_baseline(self) -> Iterator[Mechanism]:
        if self.checks <= self._warmup:
            yield Mechanism(
                name=ALARMS,
                state=MechanismState.UNOBSERVABLE,
                reason=f"{self.checks} checks were made and {self._warmup} are needed for a "
                "baseline: no layer could alarm; check more often or train longer",
            )
            return
        yield from _line(
            ALARMS,
            MechanismState.UNOBSERVABLE,
            f"had a gradient in fewer than the {self._warmup} checks that make a baseline",
            [name for name, seen in self._seen.items() if 0 < seen < self._warmup],
        )


def _line(
    name: str, state: MechanismState, reason: str, layers: Sequence[str]
) -> Iterator[Mechanism]:
    """Yield one line for the layers, in the order of their names, if there are any."""
    if layers:
        yield Mechanism(name=name, state=state, reason=reason, layers=tuple(sorted(layers)))


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
    name = GRADIENT_NORMS
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


def _stage_line(stage: Stage) -> Mechanism:
    if stage is Stage.CLIPPED:
        return Mechanism(
            name=_STAGE,
            state=MechanismState.PARTIAL,
            reason="gradients are seen after clipping: an explosion in one layer shows as shrunken "
            "gradients in the others",
        )
    return Mechanism(name=_STAGE, state=MechanismState.ACTIVE, reason=stage.value)


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


def _experts(selection: Selection) -> Iterator[Mechanism]:
    named = [group.container for group in selection.experts if group.named]
    if selection.compiled:
        yield from _line(
            _EXPERTS, MechanismState.UNOBSERVABLE, "the model runs compiled code", named
        )
    else:
        yield from _line(_EXPERTS, MechanismState.ACTIVE, "", named)
    yield from _line(
        _EXPERTS,
        MechanismState.UNOBSERVABLE,
        "all experts are slices of one parameter: which of them get tokens is not seen",
        selection.fused,
    )


def _optimizers(
    selection: Selection, optimizers: Sequence[Any], watched: Sequence[int] | None
) -> Iterator[Mechanism]:
    """Yield a line for each optimizer, and one for the layers that are in none of several."""
    name = "optimizer"
    if not optimizers:
        yield Mechanism(
            name=name,
            state=MechanismState.OFF,
            reason="no torch optimizer was given; gradients are read all the same",
        )
    elif len(optimizers) == 1:
        kind = type(optimizers[0]).__name__
        yield Mechanism(name=name, state=MechanismState.ACTIVE, reason=kind)
    else:
        own = [_layers_of(selection, [optimizer]) for optimizer in optimizers]
        for place, layers in enumerate(own):
            kind = f"{place}:{type(optimizers[place]).__name__}"
            seen = watched is None or place in watched
            yield Mechanism(
                name=name,
                state=MechanismState.ACTIVE if seen else MechanismState.OFF,
                reason=kind if seen else f"{kind}: its steps are not checked, as was asked for",
                layers=layers,
            )
        owned = set(_layers_of(selection, optimizers))
        yield from _line(
            GRADIENT_NORMS,
            MechanismState.PARTIAL,
            "in none of the optimizers that were given: read only where all of them step together",
            [
                layer.name
                for layer in selection.layers
                if layer.name not in owned and next(layer.trainable(), None) is not None
            ],
        )


def _layers_of(selection: Selection, optimizers: Sequence[Any]) -> tuple[str, ...]:
    """Return the watched layers of which optimizers have a parameter."""
    ids = {
        id(parameter)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    return tuple(
        layer.name
        for layer in selection.layers
        if any(id(p) in ids for p in layer.module.parameters(recurse=False))
    )


def _scaling(scaler: Any, optimizers: int) -> Iterator[Mechanism]:
    name = "loss_scaling"
    if scaler is None or not scaler.is_enabled():
        yield Mechanism(
            name=name, state=MechanismState.UNUSED, reason="no enabled GradScaler was given"
        )
    elif optimizers > 1:
        yield Mechanism(
            name=name,
            state=MechanismState.PARTIAL,
            reason="one loss scale for several optimizers: which of them skipped an update is not "
            "seen from it, only how often it was lowered",
        )
    else:
        yield Mechanism(name=name, state=MechanismState.ACTIVE)


def _distributed(world_size: int) -> Iterator[Mechanism]:
    if world_size > 1:
        yield Mechanism(
            name="other_ranks",
            state=MechanismState.PARTIAL,
            reason=f"{world_size} processes: gradients are as reduced over all of them; loss and "
            "activations are those of rank 0",
        )
