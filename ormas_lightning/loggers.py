"""Metrics and alarms of a run for one of the trainer's loggers, whatever it is."""

import fnmatch
import math
import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ormas_core import (
    Alarm,
    AlarmCleared,
    ConfigError,
    Event,
    LossRecovered,
    LossSpike,
    Measurement,
    NonfiniteGradient,
    NonfiniteLoss,
    RunEnd,
    RunStart,
    Severity,
)

PREFIX: Final = "ormas/"
DIRECT: Final = frozenset({"CSVLogger", "TensorBoardLogger", "WandbLogger"})
"""Loggers that are called in the training thread: they write to this machine and do not wait.

The others may wait for a server, and are called in a thread of their own.
"""
MOST_WAITING: Final = 1000
"""Calls that wait for a slow logger; further ones are left out, and their number is logged."""
LAST_WAIT_S: Final = 10.0
"""Seconds that the end of a run waits for a slow logger."""

_Call = tuple[dict[str, float], int]


def check_patterns(to_loggers: object) -> tuple[str, ...] | None:
    """Return the patterns of layers that a `to_loggers` option asks for; None where it is off.

    Raises:
        ConfigError: it is neither True, False, a pattern nor a list of patterns.
    """
    if isinstance(to_loggers, bool):
        return ("*",) if to_loggers else None
    patterns = (to_loggers,) if isinstance(to_loggers, str) else to_loggers
    if isinstance(patterns, Sequence) and all(isinstance(p, str) and p for p in patterns):
        return tuple(patterns)
    raise ConfigError(
        "to_loggers",
        "to_loggers must be True, False, or fnmatch patterns of the layers whose scalars are "
        f"wanted, such as 'encoder.*'; got {to_loggers!r}",
    )


class LoggerSink:
    """Sends a run to one Lightning logger by its `log_metrics`.

    Args:
        logger: the logger.
        patterns: fnmatch patterns of the layers whose own scalars are sent.
    """

    def __init__(self, logger: Any, patterns: Sequence[str]) -> None:
        self._logger = logger
        self._patterns = tuple(patterns)
        self._alarms = 0
        self._sender = None if type(logger).__name__ in DIRECT else _Sender(logger)

    def write(self, event: Event, /) -> None:
        """Take one event. May raise what a direct logger raises: the sink is then dropped."""
        if isinstance(event, RunStart):
            self._alarms = 0
        values = self._values(event)
        if not values:
            return
        named = {f"{PREFIX}{name}": value for name, value in values.items()}
        if self._sender is not None:
            self._sender.send(named, event.step)
        else:
            self._logger.log_metrics(named, step=event.step)

    def close(self) -> None:
        """Wait a little for a slow logger."""
        if self._sender is not None:
            self._sender.close()

    def _wanted(self, layer: str) -> bool:
        return any(fnmatch.fnmatchcase(layer, pattern) for pattern in self._patterns)

    def _values(self, event: Event) -> Mapping[str, float]:
        lane = f"{event.lane.replace(':', '_')}/" if event.lane else ""  # few trackers take colons
        match event:
            case Measurement():
                return {f"{lane}{name}": value for name, value in self._measured(event).items()}
            case Alarm():
                return self._alarm({f"{lane}alarm/{event.layer}": 1.0})
            case AlarmCleared():
                return {f"{lane}alarm/{event.layer}": 0.0}
            case LossSpike():
                return self._alarm({f"{lane}alarm/loss": 1.0})
            case LossRecovered():
                return {f"{lane}alarm/loss": 0.0}
            case NonfiniteLoss():
                return self._alarm({f"{lane}nonfinite_loss": 1.0})
            case NonfiniteGradient():
                return self._alarm({f"{lane}nonfinite_gradient/{event.layer}": 1.0})
            case RunEnd():
                return {"alarms": float(self._alarms)}
            case _ if event.severity is Severity.CRITICAL:
                return self._alarm({f"{lane}{event.kind}": 1.0})
            case _:
                return {}

    def _alarm(self, values: dict[str, float]) -> dict[str, float]:
        self._alarms += 1
        return {**values, "alarms": float(self._alarms)}

    def _measured(self, event: Measurement) -> dict[str, float]:
        norms = dict(zip(event.layers, event.norms, strict=True))
        present = [norm for norm in norms.values() if norm is not None]
        values = {
            "loss": event.loss,
            "gradient_norm": math.hypot(*present) if present else None,
            "clip_factor": event.clip_factor,
            **{f"gradient_norm/{layer}": n for layer, n in norms.items() if self._wanted(layer)},
        }
        return {name: float(value) for name, value in values.items() if value is not None}


class _Sender:
    """Calls a logger in a thread of its own, so that a server that is away costs no step."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger
        self._calls: queue.Queue[_Call | None] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._left_out = 0
        self._error: Exception | None = None

    def send(self, values: dict[str, float], step: int) -> None:
        """Have one call made. Raises the error of an earlier one, after which none is made."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ormas-logger", daemon=True)
            self._thread.start()
        try:
            self._calls.put_nowait((values, step))
        except queue.Full:
            self._left_out += 1

    def close(self) -> None:
        """Wait for the calls that are left, a limited time.

        Raises:
            RuntimeError: some were not made, or could not be.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            self._calls.put_nowait(None)
            thread.join(LAST_WAIT_S)
        except queue.Full:
            self._left_out += 1
        error, self._error = self._error, None
        if error is not None:
            raise error
        if thread.is_alive() or self._left_out:
            raise RuntimeError(
                f"the logger {type(self._logger).__name__} is too slow: "
                f"{self._calls.qsize() + self._left_out} of its calls were not made in time"
            )

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                self._logger.log_metrics(call[0], step=call[1])
            except Exception as error:  # noqa: BLE001 - handed to the training thread, which drops the sink
                self._error = error
                return
