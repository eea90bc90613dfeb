"""What the monitor does with the certificate engine, channel health and repair at each check."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from ormas_core.certificates import CertificateWatch, ChannelHealth, Evidence
from ormas_core.config import MonitorConfig
from ormas_core.events import Event
from ormas_core.hooks import ForwardWatch, Reading, Selection
from ormas_core.repairs import RepairMode, Repairs
from ormas_core.terms import CERTIFICATES, Mechanism, MechanismState

V = TypeVar("V")

_DEPTH: Final = 4
_LIMIT: Final = 300
_CACHES: Final = frozenset({"past_key_values"})
"""Outputs of transformers models that no loss is computed from."""


class Proofs:
    """Certificates and channel health of one run.

    Args:
        selection: the model; all its layers are examined, watched or not.
        optimizers: all that write its parameters.
        config: settings of the run.
        repair: see `Repairs`.

    Raises:
        ConfigError: `repair` cannot be used here.
    """

    def __init__(
        self,
        selection: Selection,
        optimizers: Sequence[Optimizer],
        config: MonitorConfig,
        repair: RepairMode = False,
    ) -> None:
        self._watch = CertificateWatch(
            selection.model,
            [(layer.name, layer.module) for layer in selection.owners],
            optimizers,
            lr_max=config.lr_max,
            asserted=config.certify_optimizers,
        )
        self._health = ChannelHealth(config.patience)
        self._repairs = Repairs(repair, selection, optimizers, config)
        self._has_optimizer = bool(optimizers)
        self._proven = False
        self._problem = self._failed = ""
        # Of lanes whose steps were checked since the last proof.
        self._earlier: list[Reading] = []

    @property
    def watched_inputs(self) -> frozenset[str]:
        """Layers whose input's size the next check should measure."""
        return self._watch.watched_inputs

    def arm(self) -> None:
        """Get ready for a step that is sampled."""
        if self._failed:
            return
        try:
            self._watch.arm()
        except Exception as error:  # noqa: BLE001 - a tensor that takes no hook costs the proofs only
            self._fail(error)

    def note(self, output: Any) -> None:
        """Read the graph behind a loss, or behind the outputs of a model, however nested."""
        if self._failed:
            return
        try:
            roots = [t for t in tensors(output) if t.grad_fn is not None]
            if roots:
                self._watch.note(roots)
        except Exception as error:  # noqa: BLE001 - an odd graph costs the proofs, not the run
            self._fail(error)

    def pause(self) -> None:
        """End a step of which nothing can be judged yet; its graphs count for the next check."""
        self._watch.pause()

    def skip(self) -> None:
        """Forget the step in progress: the optimizer that it was observed for did not step."""
        self._watch.skip()

    def forget(self) -> None:
        """Let go of the model and the optimizers; no further check will come."""
        self._watch.clear()
        self._watch, self._health = CertificateWatch(nn.Module(), [], []), ChannelHealth(1)
        self._repairs.forget()
        self._earlier = []

    def check(self, reading: Reading, *, whole: bool = True) -> list[Event]:
        """Return what the check says of certificates and channels.

        Args:
            reading: what was read.
            whole: False where optimizers step apart and others have yet to: nothing can be proven
                before the losses of all were seen, and the claims in force are guarded.
        """
        if whole:
            self._repairs.begin()
        events: list[Event] = []
        try:
            if not self._failed:
                events.extend(self._check(reading) if whole else self._look(reading))
        except Exception as error:  # noqa: BLE001 - what failed here must not stop the monitor
            self._fail(error)
        if self._failed:
            if whole:
                self._repairs.abstain()
            events.extend(self._watch.withdraw(reading.measurement.step, self._failed))
        return events

    def _fail(self, error: Exception) -> None:
        self._failed = f"the engine failed and stopped: {type(error).__name__}: {error}"[:_LIMIT]
        self._watch.clear()

    def _check(self, reading: Reading) -> Iterator[Event]:
        measurement = reading.measurement
        readings, self._earlier = [*self._earlier, reading], []
        evidence = _evidence(readings)
        if evidence.finite:
            self._health.note(evidence.channel_max)
        self._problem = self._watch.problem
        yield from self._watch.check(measurement.step, evidence)
        if self._watch.fresh:
            self._proven = True
            yield from self._health.update(measurement.step, self._watch)
        yield from self._repairs.check(measurement.step, self._watch, self._health)

    def _look(self, reading: Reading) -> Iterator[Event]:
        self._earlier.append(reading)
        self.pause()
        evidence = replace(_evidence([reading]), whole=False)
        yield from self._watch.look(reading.measurement.step, evidence)

    def mechanisms(self) -> Iterator[Mechanism]:
        """Yield whether certificates and repair are at work, and why not."""
        proven = self._proven and not self._failed
        yield self._repairs.mechanism(proven=proven, problem=self._failed or self._problem)
        if self._failed:
            yield Mechanism(
                name=CERTIFICATES, state=MechanismState.UNOBSERVABLE, reason=self._failed
            )
        elif self._proven and self._problem:
            yield Mechanism(
                name=CERTIFICATES,
                state=MechanismState.PARTIAL,
                reason=f"nothing new could be proven at the last check: {self._problem}",
            )
        elif self._proven and self._has_optimizer:
            yield Mechanism(name=CERTIFICATES, state=MechanismState.ACTIVE)
        elif self._proven:
            yield Mechanism(
                name=CERTIFICATES,
                state=MechanismState.PARTIAL,
                reason="no torch optimizer was given: only what is closed now can be proven",
            )
        else:
            yield Mechanism(
                name=CERTIFICATES,
                state=MechanismState.UNOBSERVABLE,
                reason=self._problem
                or "no loss with a graph was given: pass the loss tensor itself",
            )


def _evidence(readings: Sequence[Reading]) -> Evidence:
    return Evidence(
        finite=all(map(_is_finite, readings)),
        channel_max=_largest([each.channel_max for each in readings], _larger),
        input_peak=_largest([each.input_peak for each in readings], max),
    )


def _is_finite(reading: Reading) -> bool:
    loss = reading.measurement.loss
    return not reading.measurement.nonfinite and (loss is None or math.isfinite(loss))


def _larger(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the larger of each pair; the later values where the shapes differ."""
    found: NDArray[np.float64] = np.maximum(one, other) if one.shape == other.shape else other
    return found


def _largest(found: Sequence[Mapping[str, V]], larger: Callable[[V, V], V]) -> dict[str, V]:
    """Return, for each layer, the largest value (or values) that any reading has."""
    whole: dict[str, V] = {}
    for part in found:
        for layer, value in part.items():
            whole[layer] = larger(whole[layer], value) if layer in whole else value
    return whole


def tensors(output: Any, depth: int = _DEPTH) -> Iterator[Tensor]:
    """Yield the tensors of a model's output, some levels deep; caches of keys and values aside."""
    if isinstance(output, Tensor):
        yield output
    elif depth and isinstance(output, Mapping):
        for key, value in output.items():
            if key not in _CACHES:
                yield from tensors(value, depth - 1)
    elif depth and isinstance(output, list | tuple):
        for value in output:
            yield from tensors(value, depth - 1)


def hooks_off(watch: ForwardWatch, proofs: Proofs) -> Callable[[], None]:
    """Return what takes the hooks of a step off; it does not hold the monitor."""

    def detach() -> None:
        watch.detach()
        proofs.forget()

    return detach
