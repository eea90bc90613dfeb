"""Results in order from threads that work ahead, without the start-up cost of a library's pool.

`concurrent.futures` imports the logging package: a tenth of what checking a small file costs.
"""

import threading
from collections.abc import Callable, Generator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class _Work(Generic[T, R]):
    """Items, what has become of them, and who is to do the next one."""

    def __init__(self, items: Sequence[T], ahead: int) -> None:
        self._items, self._ahead = items, ahead
        self._change = threading.Condition()
        self._begun = self._taken = 0
        self._stopped = False
        self._done: dict[int, R] = {}
        self._failure: BaseException | None = None

    def run(self, work: Callable[[T], R]) -> None:
        """Do items until there are no more; what a thread runs."""
        while (at := self._next()) is not None:
            try:
                result = work(self._items[at])
            except BaseException as error:  # noqa: BLE001 - raised again by whoever takes
                with self._change:
                    self._failure, self._stopped = error, True
                    self._change.notify_all()
                return
            with self._change:
                self._done[at] = result
                self._change.notify_all()

    def _next(self) -> int | None:
        with self._change:
            self._change.wait_for(lambda: self._stopped or self._begun < self._taken + self._ahead)
            if self._stopped or self._begun == len(self._items):
                return None
            self._begun += 1
            return self._begun - 1

    def take(self) -> R:
        """Return the next result, in order; wait for it."""
        with self._change:
            self._change.wait_for(lambda: self._failure or self._taken in self._done)
            if self._failure is not None:
                raise self._failure
            self._taken += 1
            self._change.notify_all()
            return self._done.pop(self._taken - 1)

    def stop(self) -> None:
        """Have threads end after the item that they are at."""
        with self._change:
            self._stopped = True
            self._change.notify_all()


def in_order(
    items: Sequence[T], makers: Sequence[Callable[[T], R]], ahead: int
) -> Generator[R, None, None]:
    """Yield what the makers return for each item, in the order of the items.

    Args:
        items: what is to be worked on.
        makers: one for each thread.
        ahead: how many items may be begun that were not taken yet.
    """
    work: _Work[T, R] = _Work(items, ahead)
    threads = [threading.Thread(target=work.run, args=(maker,), daemon=True) for maker in makers]
    for thread in threads:
        thread.start()
    try:
        for _ in items:
            yield work.take()
    finally:
        work.stop()
        for thread in threads:
            thread.join()
