"""Recognises integers that stand for quantised weights: they are not to be judged as weights."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from ormas_core.checkpoints.opened import Entry

_INTEGERS: Final = frozenset(("U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"))
_BY_NAME: Final[Mapping[str, str]] = {
    "qweight": "packed weights of GPTQ or AWQ",
    "qzeros": "packed zero points of GPTQ or AWQ",
    "g_idx": "group numbers of GPTQ",
    "absmax": "scales of bitsandbytes",
    "nested_absmax": "scales of bitsandbytes",
    "quant_map": "table of values of bitsandbytes",
    "nested_quant_map": "table of values of bitsandbytes",
    "weight_packed": "packed weights of compressed-tensors",
    "weight_zero_point": "zero points of compressed-tensors",
    "weight_shape": "shape of a packed weight of compressed-tensors",
    "weight_g_idx": "group numbers of compressed-tensors",
    "weight_format": "format mark of bitsandbytes",
    "W_q": "packed weights of HQQ",
    "_packed_params": "packed weights of PyTorch",
}
_BITSANDBYTES: Final = "quant_state."
_SCALED_BY: Final[tuple[tuple[str, str], ...]] = (
    ("absmax", "packed weights of bitsandbytes"),
    ("SCB", "8-bit weights of bitsandbytes"),
    ("weight_scale", "integer weights with scales"),
    ("weight_scale_inv", "integer weights with scales"),
    ("scales", "integer weights with scales"),
    ("scale", "integer weights with scales"),
)
_MX: Final = (("_blocks", "_scales"), ("_packed", "_scale"))
_MATRIX: Final = 2


def mark_packed(entries: Iterable[Entry], config: Mapping[str, Any] | None) -> list[Entry]:
    """Return entries, those marked that are packed weights or belong to such.

    Args:
        entries: those of a model.
        config: its `config.json`, whose `quantization_config` names the method.
    """
    found = list(entries)
    names = {entry.name for entry in found}
    method = _method(config)
    return [
        entry
        if entry.packed or not (why := _reason(entry, names, method))
        else replace(entry, packed=why)
        for entry in found
    ]


def _reason(entry: Entry, names: set[str], method: str) -> str:
    above, _, last = entry.name.rpartition(".")
    if _BITSANDBYTES in entry.name:
        return "state of a quantised weight of bitsandbytes"
    if last in ("absmax", "quant_map", "nested_absmax", "nested_quant_map"):
        return _BY_NAME[last]
    if entry.dtype not in _INTEGERS:
        return ""
    if last in _BY_NAME:
        return _BY_NAME[last]
    for ending, scales in _MX:
        for one, other in ((ending, scales), (scales, ending)):
            if last.endswith(one) and entry.name.removesuffix(one) + other in names:
                return "packed weights or scales of a microscaling format"
    if len(entry.shape) < _MATRIX:
        return ""
    for scale, what in _SCALED_BY:
        if f"{entry.name}.{scale}" in names or f"{above}.{scale}" in names:
            return what
    if last.startswith("weight"):
        return f"integer weights{f' of {method}' if method else ''}"
    return ""


def _method(config: Mapping[str, Any] | None) -> str:
    found = (config or {}).get("quantization_config")
    method = found.get("quant_method") if isinstance(found, dict) else None
    return method[:40] if isinstance(method, str) else ""
