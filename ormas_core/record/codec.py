"""Events to JSON values and back, by the types of the event class.

JSON numbers cannot spell NaN, infinities or -0.0 (RFC 8785 refuses or flattens them), nor integers
beyond 2**53 - 1: those are strings. Types come back from the class, never from the JSON, so
`decode(encode(event)) == event` holds for every event (NaN compared by identity of kind).
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, cast

from ormas_core.errors import ConfigError, RecordFormatError
from ormas_core.events import EVENT_TYPES, Event
from ormas_core.record.canonical import MAX_SAFE_INTEGER

LINE_MEMBERS: Final = ("seq", "event", "severity", "prev", "hash")
"""Members of a line that belong to the line or follow from the event's class."""

ADDED: Final[Mapping[str, tuple[str, ...]]] = {
    "Anchor": ("metrics_bytes",),
    "Measurement": (
        "output_peaks",
        "gradient_type",
        "experts",
        "loss_replaced",
        "evaluating",
        "drifting",
        "untouched",
        "clip_norm",
        "clip_factor",
    ),
    "NonfiniteLoss": ("replaced",),
    "MonitorConfig": (
        "lock_stale",
        "lr_max",
        "certify_optimizers",
        "seed",
        "slope_min_layers",
        "slope_min_decades",
        "clip_factor_min",
        "stop_on",
    ),
}
"""Class -> members that records of format version 1 do not have; they decode to their defaults."""

Json = Any
_Encoder = Callable[[Any], Json]
_Decoder = Callable[[Json, str], Any]

_SPECIAL_FLOATS: Final[Mapping[str, float]] = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
    "-0.0": -0.0,
}


def encode(event: Event) -> dict[str, Json]:
    """Return the JSON members of `event`, with its kind and severity."""
    members: dict[str, Json] = _encoder(cast("Any", type(event)))(event)
    members["event"] = event.kind
    members["severity"] = event.severity.value
    return members


def decode(members: Mapping[str, Json]) -> Event:
    """Return the event that `members` (a line's JSON object) spells.

    Raises:
        RecordFormatError: unknown kind, or a member is missing, unexpected or of the wrong type.
    """
    kind = members.get("event")
    cls = EVENT_TYPES.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise RecordFormatError(_shown(kind), f"unknown event kind {_shown(kind)}")
    if members.get("severity") != cls.severity.value:
        found = _shown(members.get("severity"))
        raise RecordFormatError(
            "severity", f"{kind}: severity is {found}, not {cls.severity.value}"
        )
    fields = {name: value for name, value in members.items() if name not in LINE_MEMBERS}
    event: Event = _decoder(cast("Any", cls))(fields, str(kind))
    return event


@functools.cache
def _encoder(tp: Any) -> _Encoder:
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if dataclasses.is_dataclass(tp):
        hints = typing.get_type_hints(tp)
        members = [
            (
                field.name,
                _member(field),
                _encode_decimal if field.name.endswith("_ns") else _encoder(hints[field.name]),
            )
            for field in dataclasses.fields(tp)
            if not is_sparse(field)
        ]
        sparse = [
            (field.name, field.default, _encoder(hints[field.name]))
            for field in dataclasses.fields(tp)
            if is_sparse(field)
        ]

        def encode_members(value: Any) -> Json:
            found = {member: enc(getattr(value, name)) for name, member, enc in members}
            for name, default, enc in sparse:
                if (given := getattr(value, name)) != default:
                    found[name] = enc(given)
            return found

        return encode_members
    if origin in (typing.Union, types.UnionType):
        inner = _encoder(_optional(args))
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        item = _encoder(args[0])
        return lambda value: list(value) if _is_plain(value) else [item(part) for part in value]
    if origin is Mapping:
        item = _encoder(args[1])
        return lambda value: {_text(key): item(element) for key, element in value.items()}
    if issubclass(tp, Enum):
        return lambda value: value.value
    return _SCALAR_ENCODERS[tp]


@functools.cache
def _decoder(tp: Any) -> _Decoder:
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if dataclasses.is_dataclass(tp):
        return _dataclass_decoder(tp)
    if origin in (typing.Union, types.UnionType):
        inner = _decoder(_optional(args))
        return lambda value, at: None if value is None else inner(value, at)
    if origin is tuple:
        item = _decoder(args[0])
        return lambda value, at: tuple(
            item(element, f"{at}[{i}]") for i, element in enumerate(_require(value, list, at))
        )
    if origin is Mapping:
        item = _decoder(args[1])
        return lambda value, at: {
            key: item(element, f"{at}.{key}") for key, element in _require(value, dict, at).items()
        }
    if issubclass(tp, Enum):
        return functools.partial(_decode_enum, tp)
    return _SCALAR_DECODERS[tp]


def is_sparse(field: "dataclasses.Field[Any]") -> bool:
    """Whether a line has the member of a field only where it differs from its default."""
    return bool(field.metadata.get("sparse"))


def _member(field: "dataclasses.Field[Any]") -> str:
    """Return the JSON member of a field; a field whose member's name is taken states another."""
    name: str = field.metadata.get("member", field.name)
    return name


def _optional(args: tuple[Any, ...]) -> Any:
    """Return T of `T | None`, the only kind of union that event fields use."""
    (inner,) = (arg for arg in args if arg is not types.NoneType)
    return inner


def _dataclass_decoder(cls: Any) -> _Decoder:
    hints = typing.get_type_hints(cls)
    fields = [
        (field.name, _member(field), _decoder(hints[field.name]))
        for field in dataclasses.fields(cls)
    ]
    sparse = [field.name for field in dataclasses.fields(cls) if is_sparse(field)]
    added = (*ADDED.get(cls.__name__, ()), *sparse)

    def decode_members(value: Json, at: str) -> Any:
        members = _require(value, dict, at)
        found, known = {}, set()
        for name, member, decoder in fields:
            if member not in members:
                if name in added:
                    continue
                raise RecordFormatError(at, f"{at}: member {member!r} is missing")
            known.add(member)
            found[name] = decoder(members[member], f"{at}.{member}")
        if len(found) != len(members):
            extra = sorted(members.keys() - known)
            raise RecordFormatError(at, f"{at}: unexpected members {extra}")
        try:
            return cls(**found)
        except ConfigError as error:
            raise RecordFormatError(at, f"{at}: {error}") from None

    return decode_members


def _decode_enum(cls: type[Enum], value: Json, at: str) -> Enum:
    try:
        return cls(value)
    except ValueError:
        raise RecordFormatError(at, f"{at}: {_shown(value)} is no {cls.__name__}") from None


def _require(value: Json, cls: type, at: str) -> Any:
    if not isinstance(value, cls) or (isinstance(value, bool) and cls is not bool):
        raise RecordFormatError(at, f"{at}: expected {cls.__name__}, found {type(value).__name__}")
    return value


def _shown(value: Json) -> str:
    """Return a value for a message; what a stranger wrote may be long."""
    if isinstance(value, list | dict):
        return type(value).__name__
    return repr(value[:40] if isinstance(value, str) else value)[:60]


def _text(value: str) -> str:
    """Return `value` with lone surrogates, which UTF-8 cannot spell, escaped."""
    text = str(value)  # a numpy text is one too, and no plain one
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _is_plain(values: tuple[Any, ...]) -> bool:
    """Whether all are texts, or all numbers, that JSON spells as they are: the names and norms."""
    kinds = set(map(type, values))
    if kinds == {str}:
        return "".join(values).isascii()
    return kinds == {float} and all(map(math.isfinite, values)) and 0.0 not in values


def _encode_decimal(value: int) -> str:
    return str(int(value))


def _encode_int(value: int) -> int | str:
    value = int(value)
    return value if abs(value) <= MAX_SAFE_INTEGER else str(value)


def _decode_int(value: Json, at: str) -> int:
    if isinstance(value, str):
        digits = value.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) <= 40:  # noqa: PLR2004 - any 128-bit integer
            return int(value)
    result: int = _require(value, int, at)
    if abs(result) > MAX_SAFE_INTEGER:  # written as a string; a stranger's may have any length
        raise RecordFormatError(at, f"{at}: a number beyond 2^53 - 1 that is no string")
    return result


def _encode_float(value: float) -> float | str:
    value = float(value)
    if math.isfinite(value) and (value != 0.0 or math.copysign(1.0, value) > 0):
        return value
    if value == 0.0:
        return "-0.0"
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _decode_float(value: Json, at: str) -> float:
    if isinstance(value, str) and value in _SPECIAL_FLOATS:
        return _SPECIAL_FLOATS[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RecordFormatError(at, f"{at}: expected a number, found {_shown(value)}")
    try:
        return float(value)
    except OverflowError:
        raise RecordFormatError(at, f"{at}: number out of range") from None


_SCALAR_ENCODERS: Final[Mapping[Any, _Encoder]] = {
    bool: bool,
    int: _encode_int,
    float: _encode_float,
    str: _text,
}
_SCALAR_DECODERS: Final[Mapping[Any, _Decoder]] = {
    bool: lambda value, at: _require(value, bool, at),
    int: _decode_int,
    float: _decode_float,
    str: lambda value, at: _require(value, str, at),
}
