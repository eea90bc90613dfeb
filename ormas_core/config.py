"""Every threshold of the monitor, in one frozen value that is stored whole in the record."""

import dataclasses
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ormas_core.errors import ConfigError, UnknownOptionError
from ormas_core.terms import STOP_REASONS


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorConfig:
    """Settings of one run.

    Thresholds are design choices, not tuned optima: see `docs/concepts/alarms.md` for what each
    one trades.

    Attributes:
        layers: fnmatch patterns of module names to watch; None watches every module that owns
            parameters.
        check_every: optimizer steps between two checks.
        warmup: checks that make a layer's (and the loss's) baseline before it can alarm.
        sigma: standard deviations off the baseline that an alarm needs at least.
        baseline_memory: checks over which the running mean and variance forget.
        alarm_min_decades: factors of ten off the baseline that an alarm needs at least.
        alarm_confirmations: consecutive checks that must agree.
        alarm_decades_at_once: factors of ten from which a single check is enough.
        loss_spike_ratio: factor over a positive loss baseline that a loss spike needs at least.
        skipped_steps_limit: consecutive updates skipped by a loss scaler from which the run is
            said not to learn. A scaler that starts at 65,536 skips at most 16 on its way to 1.
        anchor_every: checks between two anchors (record heads sent to the sinks).
        patience: checks without a positive output after which a channel is reported as silent, and
            after which a flat, decayed or silent one is repaired; and checks in a row without a
            token after which an expert can be said to starve.
        lr_max: learning rate that certificates must cover; None for ten times the largest seen.
        certify_optimizers: class names of further optimizers of which you vouch that a zero
            gradient and zero state move nothing.
        seed: seed of the numbers that repairs draw.
        slope_min_layers: layers of one kind that a steady slope of gradients must run through.
        slope_min_decades: factors of ten from one end of such a slope to the other.
        clip_factor_min: clip factor from which downward, where one layer alone is the cause, the
            others are said to starve; 0 never says so.
        stop_on: what ends the training by the framework's own means: kinds of event such as
            "nonfinite_loss", and alarms of one diagnosis such as "alarm:exploding".
        lock_stale: seconds without a sign of life after which the run folder of a process on
            another machine may be taken over.
    """

    layers: tuple[str, ...] | None = None
    check_every: int = 50
    warmup: int = 8
    sigma: float = 2.5
    baseline_memory: int = 64
    alarm_min_decades: float = 1.0
    alarm_confirmations: int = 2
    alarm_decades_at_once: float = 4.0
    loss_spike_ratio: float = 1.5
    skipped_steps_limit: int = 25
    anchor_every: int = 20
    lock_stale: float = 600.0
    patience: int = 4
    lr_max: float | None = None
    certify_optimizers: tuple[str, ...] = ()
    seed: int = 0
    slope_min_layers: int = 8
    slope_min_decades: float = 8.0
    clip_factor_min: float = 0.01
    stop_on: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", _patterns(self.layers))
        for name, least_int in _INTEGERS.items():
            _require_int(name, getattr(self, name), least_int)
        for name, least in _NUMBERS.items():
            object.__setattr__(self, name, _require_number(name, getattr(self, name), least))
        if self.lr_max is not None:
            object.__setattr__(self, "lr_max", _require_number("lr_max", self.lr_max, 0.0))
        object.__setattr__(self, "certify_optimizers", _names(self.certify_optimizers))
        object.__setattr__(self, "stop_on", _reasons(self.stop_on))

    def replace(self, changes: Mapping[str, Any]) -> "MonitorConfig":
        """Return a copy with `changes` applied.

        Raises:
            UnknownOptionError: a name is no field of the config.
            ConfigError: a value is out of range.
        """
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise UnknownOptionError(
                    name, f"Unknown option {name!r}. The options are: {', '.join(known)}."
                )
        return dataclasses.replace(self, **changes)


_INTEGERS: Final[Mapping[str, int]] = {
    "check_every": 1,
    "warmup": 2,
    "baseline_memory": 2,
    "alarm_confirmations": 1,
    "skipped_steps_limit": 1,
    "anchor_every": 1,
    "patience": 1,
    "seed": 0,
    "slope_min_layers": 6,
}
_NUMBERS: Final[Mapping[str, float]] = {
    "sigma": 0.0,
    "alarm_min_decades": 0.0,
    "alarm_decades_at_once": 0.0,
    "loss_spike_ratio": 1.0,
    "slope_min_decades": 1.0,
    "clip_factor_min": 0.0,
    "lock_stale": 1.0,
}


def _require_int(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(name, f"{name} must be a whole number of at least {least}; got {value!r}")


def _require_number(name: str, value: object, least: float) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not least <= value <= sys.float_info.max
    ):
        raise ConfigError(name, f"{name} must be a finite number >= {least}; got {value!r}")
    return float(value)


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        value = (value,)
    names = tuple(value)
    if not all(isinstance(name, str) and name for name in names):
        raise ConfigError(
            "certify_optimizers",
            f"certify_optimizers must be class names, such as ['Lion']; got {value!r}",
        )
    return names


def _reasons(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        value = (value,)
    names = tuple(value)
    for name in names:
        if name not in STOP_REASONS:
            raise ConfigError(
                "stop_on",
                f"stop_on can name {', '.join(STOP_REASONS)}; got {name!r}",
            )
    return tuple(dict.fromkeys(str(name) for name in names))


def _patterns(layers: object) -> tuple[str, ...] | None:
    if layers is None:
        return None
    patterns = (layers,) if isinstance(layers, str) else layers
    if (
        not isinstance(patterns, Sequence)
        or not patterns
        or not all(isinstance(pattern, str) and pattern for pattern in patterns)
    ):
        raise ConfigError(
            "layers",
            "layers must be an fnmatch pattern or a non-empty list of them, such as "
            f"'encoder.layer.*' or ['features.*', 'head']; got {layers!r}",
        )
    return tuple(patterns)
