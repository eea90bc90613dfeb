"""Several optimizers on one model: whose step it is, whose turn it is, and which parameters it has.

A lane is what is counted, sampled and judged together. One optimizer is one lane, which has no name
and reads every layer. Several are one lane too while `step()` is not told which of them steps: then
all do at once. Told apart, each is a lane of its own, of the layers whose parameters it has.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from torch.optim import Optimizer

from ormas_core.errors import ConfigError
from ormas_core.hooks.select import unwrap_optimizer
from ormas_core.terms import OPTIMIZERS, Mechanism, MechanismState

_LOG: Final = logging.getLogger("ormas")

MOST_WAITING: Final = 32
"""Steps of other optimizers for which forward passes are observed for one whose check is due."""

ALL: Final = ""
"""Name of the lane in which every optimizer steps at once."""


def optimizers_of(given: Any) -> tuple[Optimizer, ...]:
    """Return the torch optimizers of an `optimizer` option: one, several, or None.

    Raises:
        ConfigError: one of several is no torch optimizer, or is there twice.
    """
    if not isinstance(given, list | tuple):
        found = unwrap_optimizer(given)
        return () if found is None else (found,)
    several: list[Optimizer] = []
    for place, one in enumerate(given):
        inner = unwrap_optimizer(one)
        if inner is None or any(inner is other for other in several):
            what = "is there twice" if inner is not None else "is no torch optimizer"
            raise ConfigError(
                "optimizer",
                f"optimizer must be a torch optimizer or a list of different ones; number {place} "
                f"of {len(given)}, a {type(one).__name__}, {what}",
            )
        several.append(inner)
    return tuple(several)


class Lane:
    """One optimizer, or all of them.

    Attributes:
        name: place and class (`1:Adam`); empty where all optimizers step at once.
        optimizer: the one that steps; None where there are several, or none.
        attempt: calls of `step()` so far.
        waiting: steps of other lanes since the check of this one became due.
    """

    def __init__(self, name: str, optimizer: Optimizer | None, *, reads_all: bool) -> None:
        self.name = name
        self.optimizer = optimizer
        self.attempt = self.waiting = 0
        self._reads_all = reads_all

    def parameters(self) -> frozenset[int] | None:
        """Return the ids of the parameters that are its own now; None for all of the model."""
        if self._reads_all or self.optimizer is None:
            return None
        groups = self.optimizer.param_groups
        return frozenset(id(parameter) for group in groups for parameter in group["params"])


class Lanes:
    """The lanes of one run.

    Args:
        optimizers: all that write the model's parameters.
        every: steps of a lane between two of its checks.
        watched: places of those that are checked; None for all.

    Attributes:
        attempt: calls of `step()` so far, over all lanes.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], every: int, watched: Sequence[int] | None = None
    ) -> None:
        self._every = every
        self.attempt = 0
        places = range(len(optimizers)) if watched is None else watched
        apart = len(optimizers) > 1
        one = optimizers[0] if len(optimizers) == 1 else None
        self._all = Lane(ALL, one, reads_all=True)
        self._own = {
            id(optimizers[place]): Lane(
                f"{place}:{type(optimizers[place]).__name__}", optimizers[place], reads_all=False
            )
            for place in (places if apart else ())
        }
        self._known = frozenset(map(id, optimizers))
        # Until a step shows whether they step apart, both are possible.
        self._together = self._apart = False
        self._checked: set[str] = set()
        self._unknown: list[str] = []

    @property
    def together(self) -> Lane:
        """The lane of all optimizers at once, or of the only one."""
        return self._all

    def forget(self) -> None:
        """Let go of the optimizers; counts stay."""
        self._own, self._all.optimizer = {}, None

    def find(self, optimizer: Any) -> Lane | None:
        """Return the lane of the optimizer that steps; None where its steps are not watched.

        Args:
            optimizer: the one that steps, wrapped or not; None where all do.
        """
        inner = unwrap_optimizer(optimizer)
        # Of an optimizer that is none of torch's nothing is known, neither before nor now.
        alien = inner is None and not self._known
        if optimizer is None or alien or (inner is not None and inner is self._all.optimizer):
            return self._all
        if id(inner) not in self._known:
            self._refuse(type(inner if inner is not None else optimizer).__name__)
        return self._own.get(id(inner))

    def _refuse(self, kind: str) -> None:
        if kind not in self._unknown:
            self._unknown.append(kind)
            _LOG.error(
                "step(optimizer=...) was given a %s that the monitor does not know; its steps are "
                "not checked. Give all optimizers to Monitor(model, [...]).",
                kind,
            )

    def mechanisms(self) -> Iterator[Mechanism]:
        """Yield what steps were not watched because their optimizer is not known."""
        if self._unknown:
            yield Mechanism(
                name=OPTIMIZERS,
                state=MechanismState.UNOBSERVABLE,
                reason=f"step() was told of an optimizer that was not given to the monitor "
                f"({', '.join(self._unknown)}): its steps are not checked; give all to "
                "Monitor(model, [...])",
            )

    def due(self, lane: Lane) -> bool:
        """Whether the step in progress of a lane is sampled."""
        return lane.attempt % self._every == 0

    def wanted(self) -> bool:
        """Whether the step that comes next may be one that is sampled."""
        return any(self.due(lane) and lane.waiting <= MOST_WAITING for lane in self._expected())

    def stepped(self, lane: Lane | None) -> None:
        """Count a step, its check being over; None where its optimizer is not watched."""
        self.attempt += 1
        if lane is not None:
            lane.attempt += 1
            lane.waiting = 0
            self._together |= lane is self._all
            self._apart |= lane is not self._all
        for other in self._expected():
            other.waiting += other is not lane and self.due(other)

    def completes(self, lane: Lane) -> bool:
        """Note a check; whether every lane that takes part has had one since this was last so."""
        self._checked.add(lane.name)
        missing = [
            other
            for other in self._expected(lane)
            if other.name not in self._checked and other.waiting <= MOST_WAITING
        ]
        if not missing:
            self._checked.clear()
        return not missing

    def _expected(self, stepping: Lane | None = None) -> Iterator[Lane]:
        """Yield the lanes that may step next, as far as the steps so far tell."""
        apart = self._apart or (stepping is not None and stepping is not self._all)
        if self._together or not apart:
            yield self._all
        if apart or (stepping is None and not self._together):
            yield from self._own.values()

    def go_on(self, attempt: int) -> None:
        """Count from here on; what each of several optimizers had is in `load_state_dict`."""
        self.attempt = attempt
        if not self._own:
            self._all.attempt = attempt

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of the lanes by name."""
        return {lane.name: lane.attempt for lane in (self._all, *self._own.values())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state_dict` returned, or leave everything as it is."""
        counts = {str(name): int(count) for name, count in state.items()}
        for lane in (self._all, *self._own.values()):
            lane.attempt = counts.get(lane.name, 0)
        self._together = self._all.attempt > 0
        self._apart = any(lane.attempt > 0 for lane in self._own.values())
