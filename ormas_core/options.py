"""The keyword options of `Monitor`, shared with the adapters and checked before training."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypedDict

from ormas_core.config import MonitorConfig
from ormas_core.errors import ConfigError, UnknownOptionError
from ormas_core.sinks import Sink

DEFAULTS: Final = MonitorConfig()
DEFAULT_OUT: Final = "ormas_run"


class MonitorOptions(TypedDict, total=False):
    """Keyword options of `Monitor` that an adapter passes through; see there for each."""

    out: str | os.PathLike[str]
    layers: str | Sequence[str] | None
    check_every: int
    patience: int
    sigma: float
    warmup: int
    repair: bool | Literal["all"]
    scaler: Any
    sinks: Iterable[Sink]
    name: str | None
    config: MonitorConfig | None
    overwrite: bool
    verbose: bool
    resume: bool
    stop_on: str | Iterable[str]


SHORTCUTS: Final = ("layers", "check_every", "patience", "sigma", "warmup", "stop_on")
"""Config fields that are keywords of `Monitor` too."""


def make_config(config: MonitorConfig | None, shortcuts: Mapping[str, Any]) -> MonitorConfig:
    """Return `config` (or the defaults) with every shortcut that differs from its default.

    Raises:
        ConfigError: `config` is no MonitorConfig, or a value is out of range.
    """
    if config is not None and not isinstance(config, MonitorConfig):
        raise ConfigError("config", f"config must be a MonitorConfig; got {type(config).__name__}")
    changes = {name: value for name, value in shortcuts.items() if value != getattr(DEFAULTS, name)}
    return (config or DEFAULTS).replace(changes)


def check_options(options: MonitorOptions) -> MonitorOptions:
    """Return a copy of the options, refusing those that `Monitor` would refuse.

    Needs no model, so that an adapter fails where it is constructed and not when training starts.

    Raises:
        UnknownOptionError: an option does not exist.
        ConfigError: a value cannot be used.
    """
    known = MonitorOptions.__annotations__
    for name in options:
        if name not in known:
            raise UnknownOptionError(
                name, f"Unknown option {name!r}. The options are: {', '.join(known)}."
            )
    shortcuts = {name: value for name, value in options.items() if name in SHORTCUTS}
    make_config(options.get("config"), shortcuts)
    sinks = check_sinks(options.get("sinks", ()))
    check_repair(options.get("repair", False))
    overwrite, resume = options.get("overwrite", False), options.get("resume", False)
    check_flags(overwrite=overwrite, resume=resume, verbose=options.get("verbose", True))
    if overwrite and resume:
        raise ConfigError(
            "resume",
            "resume=True and overwrite=True exclude each other: one goes on "
            "with the record in the folder, the other deletes it; leave one out",
        )
    check_scaler(options.get("scaler"))
    check_out(options.get("out", DEFAULT_OUT))
    check_name(options.get("name"))
    return MonitorOptions(**{**options, "sinks": sinks})


def check_sinks(sinks: object) -> tuple[Sink, ...]:
    """Return the sinks as a tuple.

    Raises:
        ConfigError: not an iterable of objects with `write` and `close`.
    """
    if isinstance(sinks, str | bytes) or not isinstance(sinks, Iterable):
        raise ConfigError("sinks", f"sinks must be a list of sinks; got {sinks!r}")
    found = tuple(sinks)
    for sink in found:
        if isinstance(sink, type) or not isinstance(sink, Sink):
            raise ConfigError(
                "sinks", f"each of sinks needs the methods write(event) and close(); got {sink!r}"
            )
    return found


def check_repair(repair: object) -> None:
    """Refuse what does not say what to repair.

    Raises:
        ConfigError: `repair` is neither False, True nor "all".
    """
    if not isinstance(repair, bool) and not (isinstance(repair, str) and repair == "all"):
        raise ConfigError(
            "repair",
            "repair must be False, True (certified, flat and decayed channels) or 'all' (silent "
            f"ones too); got {repair!r}",
        )


def check_name(name: object) -> None:
    """Refuse a run name that the record could not hold.

    Raises:
        ConfigError: `name` is neither text nor None.
    """
    if name is not None and not isinstance(name, str):
        raise ConfigError("name", f"name must be a text or None; got {name!r}")


def check_flags(**flags: object) -> None:
    """Refuse a switch that is neither True nor False: "no" would count as True.

    Raises:
        ConfigError: a flag is no bool.
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ConfigError(name, f"{name} must be True or False; got {value!r}")


def check_scaler(scaler: object) -> None:
    """Refuse what cannot be a `GradScaler`.

    Raises:
        ConfigError: it does not say whether it is enabled, or what its scale is.
    """
    if scaler is not None and not (hasattr(scaler, "is_enabled") and hasattr(scaler, "get_scale")):
        raise ConfigError("scaler", f"scaler must be a torch GradScaler or None; got {scaler!r}")


def check_out(out: object) -> None:
    """Refuse what cannot be a folder name.

    Raises:
        ConfigError: `out` is no non-empty path.
    """
    if not isinstance(out, str | os.PathLike) or not os.fspath(out):
        raise ConfigError("out", f"out must be the path of the run folder; got {out!r}")
