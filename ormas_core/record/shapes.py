"""What a line of each kind looks like, as a pattern: accepts nearly every line without parsing it.

A line that matches its pattern is one that the codec would accept; that is a law, and a test. One
that does not match may still be good (a layer's name with a backslash): the codec decides.
"""

import dataclasses
import functools
import json
import re
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from ormas_core.events import EVENT_TYPES
from ormas_core.record.codec import is_sparse

_TEXT: Final = r'"[^"\\\x00-\x1f]*+"'
_DECIMAL: Final = r'"-?[0-9]{1,20}+"'
_INTEGER: Final = r"-?(?:0|[1-9][0-9]{0,14}+)"
_NUMBER: Final = (
    rf'(?:{_INTEGER}(?:\.[0-9]{{1,40}}+)?(?:e[-+][0-9]{{1,2}}+)?|"(?:NaN|-?Infinity|-0\.0)")'
)
_OPTIONAL: Final = "optional "
"""Begins the pattern of a member that a line need not have."""
_HASH: Final = "(?s:.{64})"
"""Any 64 bytes: whoever reads the line compares them with the hash that must stand there."""
_SCALARS: Final[Mapping[Any, str]] = {
    bool: "(?:true|false)",
    int: _INTEGER,
    float: _NUMBER,
    str: _TEXT,
}


@functools.cache
def shapes() -> dict[bytes, re.Pattern[bytes]]:
    """Return the pattern of a whole line, without its newline, by kind of event.

    Groups, in this order: `prev`, `seq` and `hash`. A kind whose values have rules of their own has
    no pattern.
    """
    found = {}
    for kind, cls in EVENT_TYPES.items():
        members = _members(cls)
        if members is None:
            continue
        members["event"] = f'"{kind}"'
        members["severity"] = f'"{cls.severity.value}"'
        members["prev"] = f'"(?P<prev>{_HASH})"'
        members["seq"] = "(?P<seq>0|[1-9][0-9]{0,14})"
        text = _object(members)[: -len(r"\}")] + rf',"hash":"(?P<hash>{_HASH})"\}}'
        found[kind.encode()] = re.compile(text.encode())
    return found


def _members(cls: Any) -> dict[str, str] | None:
    if hasattr(cls, "__post_init__"):
        return None
    hints, found = typing.get_type_hints(cls), {}
    for field in dataclasses.fields(cls):
        value = _DECIMAL if field.name.endswith("_ns") else _value(hints[field.name])
        if value is None:
            return None
        name = field.metadata.get("member", field.name)
        found[name] = f"{_OPTIONAL}{value}" if is_sparse(field) else value
    return found


def _object(members: Mapping[str, str]) -> str:
    """Return the pattern of an object; its last member is not an optional one."""
    text = ""
    for name in sorted(members):
        value = members[name]
        member = f'"{name}":{value.removeprefix(_OPTIONAL)},'
        text += f"(?:{member})?+" if value.startswith(_OPTIONAL) else member
    return r"\{" + text.removesuffix(",") + r"\}"


def _value(tp: Any) -> str | None:
    """Return the pattern of a value of type `tp`, or None where one pattern cannot tell."""
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if dataclasses.is_dataclass(tp):
        members = _members(tp)
        return None if members is None else _object(members)
    if origin in (typing.Union, types.UnionType):
        inner = [_value(arg) for arg in args if arg is not types.NoneType]
        return f"(?:null|{inner[0]})" if len(inner) == 1 and inner[0] else None
    if origin is tuple:
        item = _value(args[0])
        return rf"\[(?:{item}(?:,{item})*+)?+\]" if item else None
    if isinstance(tp, type) and issubclass(tp, Enum):
        return "(?:" + "|".join(re.escape(json.dumps(member.value)) for member in tp) + ")"
    return _SCALARS.get(tp)
