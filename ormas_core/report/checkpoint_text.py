"""The check of a checkpoint as lines for a terminal. They hold text of strangers: escape them."""

from collections.abc import Iterator
from typing import Final

from ormas_core.checkpoint_check import CheckResult

_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")
_STEP: Final = 1024


def checkpoint_lines(result: CheckResult) -> Iterator[str]:
    """Yield what was checked, every finding, and the counts."""
    files = f" in {len(result.files)} files" if len(result.files) > 1 else ""
    yield f"{result.path}: {result.kind}, {result.tensors} tensors{files}, {amount(result.size)}"
    for name in ("base", "wiring", "record"):
        value = getattr(result, name)
        if value:
            yield f"{name:<9}{value}"
    for one in result.findings:
        yield f"{one.severity.upper():<9}{one.code}: {one.where}"
        yield f"         {one.detail}"
        yield f"         {one.advice}"
    yield summary_line(result)


def summary_line(result: CheckResult) -> str:
    """Return the counts: findings by severity, and tensors that were read and not read."""
    counts = ", ".join(f"{count} {name}" for name, count in result.counts.items())
    parts = [f"{result.read} of {result.tensors} tensors read"]
    if result.packed:
        parts.append(f"{result.packed} packed and not judged")
    rest = result.tensors - result.read - result.packed
    if rest:
        parts.append(f"{rest} not inspected")
    return f"{counts}; {', '.join(parts)}"


def amount(size: int) -> str:
    """Return a number of bytes in the unit that fits."""
    number, unit = float(size), 0
    while number >= _STEP and unit < len(_UNITS) - 1:
        number, unit = number / _STEP, unit + 1
    return f"{number:.2f} {_UNITS[unit]}" if unit else f"{size} bytes"
