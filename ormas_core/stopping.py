"""When a training is to stop, decided after the same check on every rank."""

from collections.abc import Iterable, Iterator, Sequence

from ormas_core import ranks
from ormas_core.events import Alarm, Event
from ormas_core.run_events import StopRequested
from ormas_core.terms import Mechanism, MechanismState


class Stopping:
    """Compares what a check says with `stop_on`, and asks the other ranks.

    The loss of a step differs between ranks, so one of them may see a NaN that the others do not.
    With `stop_on` the ranks ask each other at each check, and never between checks.

    Args:
        stop_on: see `MonitorConfig.stop_on`.
    """

    def __init__(self, stop_on: Sequence[str]) -> None:
        self._stop_on = tuple(stop_on)
        self._agreement = ranks.Agreement()
        self._said = False
        self._early: set[str] = set()

    def remember(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yield what is said before the first check, where a reason among it will count."""
        for event in events:
            self._early.update(_names(event))
            yield event

    def check(self, step: int, events: Iterable[Event]) -> Iterator[StopRequested]:
        """Yield the request to stop, once, if an event of this check is a reason on any rank.

        Every rank must call it at the same checks; with `stop_on` and several ranks it blocks.
        """
        if not self._stop_on or self._said:
            return
        own = self._early.union(name for event in events for name in _names(event))
        every = self._agreement.gather(bytes(name in own for name in self._stop_on))
        if every is None or not any(map(any, every)):
            return
        self._said = True
        yield StopRequested(
            step=step,
            reasons=tuple(
                name
                for place, name in enumerate(self._stop_on)
                if any(found[place] for found in every)
            ),
            ranks=tuple(rank for rank, found in enumerate(every) if any(found)),
        )

    def mechanisms(self) -> Iterator[Mechanism]:
        """Yield whether `stop_on` is at work, where it was given, and why not."""
        problem = self._agreement.problem
        if problem:
            yield Mechanism(
                name="stop_on",
                state=MechanismState.OFF,
                reason=f"the ranks could not ask each other, so none stops alone: {problem}",
            )
        elif self._stop_on:
            yield Mechanism(name="stop_on", state=MechanismState.ACTIVE)


def _names(event: Event) -> Iterator[str]:
    """Yield what `stop_on` may call an event."""
    yield event.kind
    if isinstance(event, Alarm):
        yield f"alarm:{event.diagnosis}"
