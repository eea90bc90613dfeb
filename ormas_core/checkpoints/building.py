"""Builds a model from the settings of a stranger: no code of others, no download, bounded work."""

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from ormas_core.errors import ConfigError

MOST_PARTS: Final = 20_000
"""Layers and parameters that any model may have; one with a large file may have more."""

_FOR_EACH: Final = 8
"""Layers and parameters for each tensor of the file: wrappers and activations are layers too."""

_LARGEST: Final = 2**24
_MOST_LABELS: Final = 2**20
_LARGE_BY_RIGHT: Final = re.compile("theta|base|seed|length|size|token", re.IGNORECASE)
"""Settings that no loop runs to: the largest positions, bytes and bases are beyond `_LARGEST`."""

_CODE: Final = re.compile("implementation")
"""Settings by which transformers fetches kernels from a hub, and runs them."""

_ONE_AT_A_TIME: Final = threading.Lock()


def harmless(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without what names code or weights of others.

    Raises:
        ConfigError: a number is so large that building alone would take all memory.
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        if _CODE.search(key):
            continue
        _require_modest(key, value)
        if key == "use_pretrained_backbone":
            found[key] = False
        else:
            found[key] = harmless(value) if isinstance(value, Mapping) else value
    return found


def _require_modest(key: str, value: Any) -> None:
    for number in value if isinstance(value, list) else (value,):
        most = _MOST_LABELS if key == "num_labels" else _LARGEST
        large = isinstance(number, int) and number > most and not _LARGE_BY_RIGHT.search(key)
        if large:
            raise ConfigError("arch", f"config.json sets {key[:80]} to {number:.3g}: not built")


@contextmanager
def bounded_building(tensors: int) -> Iterator[None]:
    """Within it, no model of many more parts than the file has is built, and nothing is fetched.

    Args:
        tensors: how many the file has.

    Raises:
        ConfigError: the model has too many.
    """
    most = MOST_PARTS + _FOR_EACH * tensors
    count, owner = 0, threading.get_ident()

    def note(*_: Any) -> None:
        nonlocal count
        count += threading.get_ident() == owner
        if count > most:
            raise ConfigError(
                "arch",
                f"the architecture has more than {most:,} parts, the file {tensors:,} tensors",
            )

    with _ONE_AT_A_TIME, _offline():
        hooks = (
            register_module_module_registration_hook(note),
            register_module_parameter_registration_hook(note),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


@contextmanager
def _offline() -> Iterator[None]:
    """A backbone that a config names is looked up in the hub, unless that is off."""
    try:
        from huggingface_hub import constants
    except ImportError:
        yield
        return
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
