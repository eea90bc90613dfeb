"""Repair of a run: what is due at a check, whether it may be written, and what is said of it."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from ormas_core import ranks
from ormas_core.certificate_events import Repair
from ormas_core.certificates import (
    Candidate,
    CertificateWatch,
    ChannelHealth,
    confirmed,
    counted,
    storage_address,
)
from ormas_core.config import MonitorConfig
from ormas_core.errors import ConfigError
from ormas_core.hooks import Selection
from ormas_core.repair import Part, Site, digest, draw, obstacle, write
from ormas_core.terms import Mechanism, MechanismState

CONFIRMATIONS: Final = 2
"""Checks that must have confirmed a certificate, the one that issued it included."""

MOST_REPAIRS: Final = 3
"""Repairs of one unit, after which another would not help either."""

RepairMode = bool | Literal["all"]

_NAME: Final = "repair"
_OF_NORMS: Final = (
    ("weight", 1.0),
    ("bias", 0.0),
    ("running_mean", 0.0),
    ("running_var", 1.0),
)
_FAILED: Final = b"\xff" * 16
_NO_OPTIMIZER: Final = "no torch optimizer was given, whose state would have to be reset"
_PER_RANK: Final = "silent channels are an observation of each rank's own activations"
_WORN: Final = f"repaired {MOST_REPAIRS} times before, and stuck again: the cause lies elsewhere"
_DISAGREE: Final = "the ranks do not agree on what to repair"


class Repairs:
    """Repairs the channels of one model during a run.

    Args:
        mode: False never; True certified, flat and decayed channels; "all" silent ones too.
        selection: the model.
        optimizers: all that write its parameters.
        config: settings of the run.

    Raises:
        ConfigError: "all" on several processes.
    """

    def __init__(
        self,
        mode: RepairMode,
        selection: Selection,
        optimizers: Sequence[Optimizer],
        config: MonitorConfig,
    ) -> None:
        if mode == "all" and ranks.world_size() > 1:
            raise ConfigError(
                "repair",
                f"repair='all' on {ranks.world_size()} processes: {_PER_RANK}, so the ranks would "
                "write different weights; use repair=True",
            )
        self._mode = mode
        self._modules = {layer.name: layer.module for layer in selection.owners}
        self._optimizers = tuple(optimizers)
        self._has_optimizer = bool(optimizers)
        self._config = config
        self._agreement = ranks.Agreement()
        self._answered = False
        self._streaks: dict[tuple[str, str], NDArray[np.int64]] = {}
        self._done: Counter[tuple[str, int]] = Counter()
        self._said: set[tuple[str, str, str]] = set()

    def forget(self) -> None:
        """Let go of the model and the optimizers."""
        self._modules, self._optimizers = {}, ()

    def begin(self) -> None:
        """Begin a check: on several processes each must end in `check` or in `abstain`."""
        self._answered = False

    def abstain(self) -> None:
        """Tell the other ranks that this one cannot repair, if it has not answered them yet.

        They would wait for it otherwise.
        """
        if self._mode is not False and not self._answered:
            self._agree(_FAILED, binding=True)

    def check(self, step: int, watch: CertificateWatch, health: ChannelHealth) -> Iterator[Repair]:
        """Repair what is due after a check, and yield what was done or refused.

        On several processes every rank must call it, or `abstain`, at the same checks.

        Args:
            step: optimizer updates completed.
            watch: the certificates, after the check.
            health: the channels, after the check.
        """
        if self._mode is False:
            return
        due = self._due(watch, health) if watch.fresh else {}
        sites, refused = self._sites(due, watch)
        values = draw(sites, seed=self._config.seed, step=step)
        if not self._agree(digest(sites, values), binding=bool(sites)):
            refused += [(site, self._agreement.problem or _DISAGREE) for site in sites]
            sites = []
        for site, reason in refused:
            yield from self._refuse(step, site, reason)
        written: dict[str, set[str]] = {}
        for site, drawn in zip(sites, values, strict=False):
            change = write(site, drawn)
            names = tuple(part.name for part in site.parts)
            written.setdefault(site.layer, set()).update(names)
            self._done.update((site.layer, unit) for unit in site.units)
            yield Repair(
                step=step,
                layer=site.layer,
                units=site.units,
                cause=site.cause,
                changed=names,
                delta=change.delta,
                relative=change.relative,
            )
        if sites:
            self._forget(sites, written, watch, health)

    def _agree(self, what: bytes, *, binding: bool) -> bool:
        self._answered = True
        return self._agreement.all_equal(what, binding=binding)

    def mechanism(self, *, proven: bool, problem: str) -> Mechanism:
        """Return whether repair is at work, and why not.

        Args:
            proven: whether any check could look for stuck channels.
            problem: why none could.
        """
        state, reason = MechanismState.ACTIVE, ""
        if self._mode is False:
            state, reason = MechanismState.UNUSED, "not asked for: repair=False"
        elif not self._has_optimizer:
            state, reason = MechanismState.OFF, _NO_OPTIMIZER
        elif self._agreement.problem:
            state = MechanismState.OFF
            reason = f"the ranks could not be asked: {self._agreement.problem}"
        elif not proven:
            state = MechanismState.UNOBSERVABLE
            reason = problem or "no loss with a graph was given: pass the loss tensor itself"
        elif self._mode == "all" and ranks.world_size() > 1:
            state, reason = MechanismState.PARTIAL, f"{_PER_RANK}, and are not repaired"
        return Mechanism(name=_NAME, state=state, reason=reason)

    def _due(
        self, watch: CertificateWatch, health: ChannelHealth
    ) -> dict[tuple[str, str], list[Candidate]]:
        """Return what has waited long enough, by layer and cause, in an order all ranks share."""
        due: dict[tuple[str, str], list[Candidate]] = {}
        for candidate in confirmed(watch, CONFIRMATIONS):
            due.setdefault((candidate.layer, "certified"), []).append(candidate)
        for cause in ("flat", "decayed"):
            for candidate in counted(watch, health, cause):
                rows = self._patient(candidate, cause)
                if rows.any():
                    waited = replace(candidate, rows=rows)
                    due.setdefault((candidate.layer, cause), []).append(waited)
        if self._mode == "all":
            for candidate in counted(watch, health, "silent"):
                if candidate.rows.any():
                    due.setdefault((candidate.layer, "silent"), []).append(candidate)
        return {key: due[key] for key in sorted(due)}

    def _sites(
        self, due: Mapping[tuple[str, str], Sequence[Candidate]], watch: CertificateWatch
    ) -> tuple[list[Site], list[tuple[Site, str]]]:
        """Return what may be written, and what must not be with the reason."""
        sites: list[Site] = []
        refused: list[tuple[Site, str]] = []
        if not due:
            return sites, refused
        resolver = _Resolver(self._modules, watch, self._optimizers)
        for (layer, cause), candidates in due.items():
            often = [each.rows & self._worn(layer, each.rows.size) for each in candidates]
            worn = _only(candidates, often)
            left = _only(candidates, [c.rows & ~o for c, o in zip(candidates, often, strict=True)])
            if worn:
                refused.append((resolver.site(layer, cause, worn)[0], _WORN))
            if not left:
                continue
            site, reason = resolver.site(layer, cause, left)
            if cause == "silent" and ranks.world_size() > 1:
                reason = _PER_RANK
            if reason:
                refused.append((site, reason))
            else:
                sites.append(site)
        return sites, refused

    def _worn(self, layer: str, size: int) -> NDArray[np.bool_]:
        return np.array([self._done[layer, unit] >= MOST_REPAIRS for unit in range(size)])

    def _patient(self, candidate: Candidate, cause: str) -> NDArray[np.bool_]:
        key = candidate.layer, cause
        before = self._streaks.get(key)
        if before is None or before.size != candidate.rows.size:
            before = np.zeros(candidate.rows.size, np.int64)
        self._streaks[key] = streak = np.where(candidate.rows, before + 1, 0)
        found: NDArray[np.bool_] = streak >= self._config.patience
        return found

    def _refuse(self, step: int, site: Site, reason: str) -> Iterator[Repair]:
        key = site.layer, site.cause, reason
        if key not in self._said:
            self._said.add(key)
            yield Repair(
                step=step,
                layer=site.layer,
                units=site.units,
                cause=site.cause,
                changed=(),
                delta=0.0,
                relative=0.0,
                refused=reason,
            )

    def _forget(
        self,
        sites: Sequence[Site],
        written: Mapping[str, set[str]],
        watch: CertificateWatch,
        health: ChannelHealth,
    ) -> None:
        """Forget what was known of the repaired layers, and what rested on their old weights."""
        resting: dict[str, set[int]] = {}
        for (layer, _, _, unit), held in watch.live.items():
            others = {name for own, names in written.items() if own != layer for name in names}
            if any(step.name in others for step in held.claim.trace):
                resting.setdefault(layer, set()).add(unit)
        for layer, units in resting.items():
            watch.drop(layer, units)
        for site in sites:
            watch.drop(site.layer, site.units)
        for site in sites:
            streaks = [streak for key, streak in self._streaks.items() if key[0] == site.layer]
            known = health.counted.get(site.layer)
            if known is not None and known[0].gate_layer in health.streaks:
                streaks.append(health.streaks[known[0].gate_layer])
            for streak in streaks:
                streak[[unit for unit in site.units if unit < streak.size]] = 0


class _Resolver:
    """From candidates to the elements that are written, with the reason where they cannot be."""

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        watch: CertificateWatch,
        optimizers: Sequence[Optimizer],
    ) -> None:
        self._modules = modules
        self._owners = watch.owners
        self._optimizers = tuple(optimizers)
        self._storages: Counter[int] | None = None
        self._frozen_norms = [
            module
            for module in self._modules.values()
            if hasattr(module, "eps") and any(not p.requires_grad for p in module.parameters())
        ]

    def site(self, layer: str, cause: str, candidates: Sequence[Candidate]) -> tuple[Site, str]:
        """Return what is to be written, and why it must not be; empty if it may be."""
        parts: dict[tuple[int, tuple[int, ...]], Part] = {}
        reason = ""
        for candidate in candidates:
            for part in self._parts(candidate):
                parts.setdefault((id(part.tensor), part.rows), part)
            reason = reason or self._refusal(candidate)
        reason = reason or next(filter(None, map(self._part_refusal, parts.values())), "")
        units = {int(unit) for each in candidates for unit in np.flatnonzero(each.rows)}
        return Site(layer, cause, tuple(sorted(units)), tuple(parts.values())), reason

    def _parts(self, candidate: Candidate) -> Iterator[Part]:
        weight, count = candidate.parameter, candidate.rows.size
        rows = tuple(map(int, np.flatnonzero(candidate.rows)))

        def part(tensor: Tensor, name: str, value: float | None, axis: int = 0) -> Part:
            owner = self._owners.get(id(tensor))
            state = owner.slot.state if owner is not None and owner.slot is not None else {}
            states = {key: each for key, each in state.items() if isinstance(each, Tensor)}
            own = owner.name if owner is not None else name
            return Part(own, tensor, axis, rows, value, states)

        yield part(weight, candidate.layer, None, candidate.axis)
        module = self._modules.get(candidate.layer)
        bias = getattr(module, "bias", None)
        biases = list(candidate.around.biases)
        # The graph does not show one that is frozen.
        if getattr(module, "weight", None) is weight and _fits(bias, count):
            biases += [bias] if isinstance(bias, Tensor) else []
        for each in biases:
            yield part(each, f"{candidate.layer}.bias", 0.0)
        for pair in candidate.around.norms:
            for tensor, value in zip(pair, (1.0, 0.0), strict=True):
                if tensor is not None:
                    yield part(tensor, "", value)
            yield from self._norm(pair, count, part)

    def _norm(
        self,
        pair: tuple[Tensor | None, Tensor | None],
        count: int,
        part: Callable[..., Part],
    ) -> Iterator[Part]:
        """Yield what the graph does not show of a norm: frozen tensors and running statistics."""
        known = [self._owners.get(id(tensor)) for tensor in pair if tensor is not None]
        layer = known[0].layer if known and known[0] is not None else ""
        module = self._modules.get(layer)
        for name, value in _OF_NORMS if hasattr(module, "eps") else ():
            tensor = getattr(module, name, None)
            if _fits(tensor, count):
                yield part(tensor, f"{layer}.{name}", value)

    def _refusal(self, candidate: Candidate) -> str:
        if not self._optimizers:
            return _NO_OPTIMIZER
        if any(isinstance(optimizer, LBFGS) for optimizer in self._optimizers):
            return "LBFGS keeps one state for all parameters"
        if candidate.around.elsewhere:
            return f"a parameter of {candidate.layer} or of the norm behind it is used elsewhere"
        hidden = any(scale is None and shift is None for scale, shift in candidate.around.norms)
        if hidden and any(
            _fits(getattr(norm, "weight", None), candidate.rows.size) for norm in self._frozen_norms
        ):
            return f"the norm behind {candidate.layer} is frozen"
        return ""

    def _part_refusal(self, part: Part) -> str:
        reason = obstacle(part)
        if reason or not isinstance(part.tensor, nn.Parameter):
            return reason
        owner = self._owners.get(id(part.tensor))
        if owner is None or owner.slot is None:
            return f"{part.name} is not in exactly one group of the optimizer that was given"
        if self._storages is None:
            self._storages = _storages(self._modules.values())
        if self._storages[storage_address(part.tensor)] != 1:
            return f"{part.name} is shared: another layer has it too"
        return ""


def _only(candidates: Sequence[Candidate], rows: Sequence[NDArray[np.bool_]]) -> list[Candidate]:
    """Return the candidates with other rows, as far as any are left."""
    return [
        replace(candidate, rows=own)
        for candidate, own in zip(candidates, rows, strict=True)
        if own.any()
    ]


def _fits(tensor: Any, count: int) -> bool:
    """Whether something is a tensor with one element for each feature."""
    return isinstance(tensor, Tensor) and tensor.dim() == 1 and tensor.numel() == count


def _storages(modules: Iterable[nn.Module]) -> Counter[int]:
    """Count how often each storage is registered in the model, as a parameter or a buffer."""
    return Counter(
        storage_address(tensor)
        for module in modules
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
    )
