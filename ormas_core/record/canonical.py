"""Canonical JSON by RFC 8785, several times faster than the package of that name.

`tests/ormas_core/record/test_canonical.py` holds it byte for byte to that package.
"""

import functools
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring  # the one of ensure_ascii=False
from typing import Any, Final

MAX_SAFE_INTEGER: Final = 2**53 - 1
_DECIMAL_FROM: Final = -6
_DECIMAL_TO: Final = 21
_ODD: Final = ("e", "n", ".0,", ".0]")
"""What the text of a list of numbers has where Python spells one of them in a way of its own."""


def dumps(value: Any) -> bytes:
    """Return the canonical bytes of a JSON value: dicts, lists, text, numbers, booleans, None.

    Raises:
        ValueError: NaN, an infinity, an integer beyond 2**53 - 1, or a lone surrogate.
        TypeError: something else than a JSON value.
    """
    try:
        return _text(value).encode("utf-8")
    except KeyError as error:
        raise TypeError(f"no JSON value: {error}") from None


def _text(value: Any) -> str:
    return _ENCODERS[type(value)](value)


def _list(value: list[Any]) -> str:
    # Names and norms of layers: one kind throughout, and by far the most of what is written.
    kinds = set(map(type, value))
    if kinds == {float}:
        text = repr(value)
        if not any(odd in text for odd in _ODD):
            return text.replace(" ", "")
    encode = _ENCODERS.get(kinds.pop(), _text) if len(kinds) == 1 else _text
    return f"[{','.join(map(encode, value))}]"


def _dict(value: dict[str, Any]) -> str:
    kinds, shape = _ENCODERS, _shape(tuple(value))
    return f"{{{','.join([begin + kinds[type(v := value[key])](v) for key, begin in shape])}}}"


@functools.lru_cache(maxsize=1024)
def _shape(keys: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the keys in the order of their UTF-16 code units, each with its member's beginning."""
    ordered = sorted(keys, key=lambda key: key.encode("utf-16-be"))
    return tuple((key, f"{encode_basestring(key)}:") for key in ordered)


def _int(value: int) -> str:
    if abs(value) > MAX_SAFE_INTEGER:
        raise ValueError(f"integer beyond 2**53 - 1: {value}")
    return repr(value)


def _float(value: float) -> str:
    """Spell a number as ECMAScript does: the same digits as Python, exponents elsewhere."""
    text = repr(value)
    if "e" in text:
        return _exponential(text)
    if text.endswith(".0"):
        return text[:-2] if value else "0"
    if "n" in text:  # nan, inf
        raise ValueError(f"no JSON number: {text}")
    return text


def _exponential(text: str) -> str:
    mantissa, _, power = text.partition("e")
    sign = "-" if mantissa[0] == "-" else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits, exponent = whole + fraction, int(power)
    if exponent < _DECIMAL_FROM or exponent >= _DECIMAL_TO:
        dotted = whole + (f".{fraction}" if fraction else "")
        return f"{sign}{dotted}e{exponent:+d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    return sign + digits.ljust(exponent + 1, "0")


_ENCODERS: Final[Mapping[type, Callable[[Any], str]]] = {
    str: encode_basestring,
    float: _float,
    int: _int,
    list: _list,
    dict: _dict,
    bool: lambda value: "true" if value else "false",
    type(None): lambda value: "null",
}
