"""Reads a pickle without making anything of it: names are noted, calls kept as what they are.

Every operation of the pickle machine is done on plain values. Where Python would import a name
there is a `Name`, where it would call something a `Call`. So nothing of a file can run, and a file
that could not be loaded without its author's code can still be looked through.

Source: `pickletools` for the operations and their arguments.
"""

import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Final

MAX_OPERATIONS: Final = 2_000_000
"""A pickle with more operations is refused; a model of 10,000 tensors has half a million."""


class PickleFormatError(ValueError):
    """A pickle is damaged, or uses what no pickle of tensors uses."""


@dataclass(frozen=True, slots=True)
class Name:
    """What would be imported.

    Attributes:
        module, name: `from module import name`.
    """

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(slots=True, eq=False)
class Call:
    """What would be made by calling something.

    Attributes:
        function: a `Name`, or whatever else the file would call.
        arguments: what it would be called with.
        state: what the object's state would be set to, or None.
        items: elements that would be added.
    """

    function: Any
    arguments: Any
    state: Any = None
    items: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Persistent:
    """Something that is stored outside the pickle.

    Attributes:
        identity: how the file names it.
    """

    identity: Any


_RENAMED: Final = {"__builtin__": "builtins", "copy_reg": "copyreg"}
"""Modules of Python 2, which older protocols of pickle name, and what they are today."""


class _Mark:
    """Where a group of values begins on the stack."""


_MARK: Final = _Mark()
_SCALARS: Final = (str, int, float, bytes, type(None))
_OWN_ARGUMENT: Final = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
        *("BYTEARRAY8", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    )
)
_BITS: Final = 64
_CONSTANTS: Final[Mapping[str, Any]] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: Final[Mapping[str, Callable[[], Any]]] = {
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": list,
}
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS: Final = frozenset(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"))
_GETS: Final = frozenset(("GET", "BINGET", "LONG_BINGET"))
_NOTHING: Final = frozenset(("PROTO", "FRAME"))


def read_pickle(file: IO[bytes], call: Callable[[Call], Any], names: set[str]) -> Any:
    """Return what the next pickle of a file describes; the file is then behind it.

    Args:
        file: where to read.
        call: returns what stands for a call, which may be the call itself.
        names: receives what the pickle would import.

    Raises:
        PickleFormatError: the pickle is damaged, or too long.
    """
    try:
        return _run(file, _Machine(call, names))
    except PickleFormatError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise PickleFormatError(f"it is damaged: {error!s:.200}") from None


def _run(file: IO[bytes], machine: "_Machine") -> Any:
    for count, (operation, argument, _) in enumerate(pickletools.genops(file)):
        if count >= MAX_OPERATIONS:
            raise PickleFormatError(f"it has more than {MAX_OPERATIONS:,} operations")
        if operation.name == "STOP":
            return machine.pop()
        machine.do(operation.name, argument)
    raise PickleFormatError("it has no end")


class _Machine:
    def __init__(self, call: Callable[[Call], Any], names: set[str]) -> None:
        self._call, self._names = call, names
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise PickleFormatError("it ends in the midst of a group")
        return value

    def _group(self) -> list[Any]:
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise PickleFormatError("a group has no beginning")
        found = self._stack[at + 1 :]
        del self._stack[at:]
        return found

    def do(self, what: str, argument: Any) -> None:
        stack = self._stack
        if what in _OWN_ARGUMENT:
            stack.append(argument)
        elif what in _PUTS:
            self._memo[len(self._memo) if what == "MEMOIZE" else int(argument)] = stack[-1]
        elif what in _GETS:
            stack.append(self._memo[int(argument)])
        elif what in _CONSTANTS:
            stack.append(_CONSTANTS[what])
        elif what in _EMPTY:
            stack.append(_EMPTY[what]())
        elif what in _TUPLES:
            count = _TUPLES[what]
            if len(stack) < count:
                raise PickleFormatError("a tuple lacks elements")
            stack[-count:] = [tuple(stack[-count:])]
        elif what not in _NOTHING:
            self._do_rarer(what, argument)

    def _do_rarer(self, what: str, argument: Any) -> None:
        stack = self._stack
        match what:
            case "MARK":
                stack.append(_MARK)
            case "TUPLE":
                stack.append(tuple(self._group()))
            case "LIST" | "FROZENSET":
                stack.append(self._group())
            case "DICT":
                found: dict[Any, Any] = {}
                _set(found, self._group())
                stack.append(found)
            case "APPEND" | "SETITEM":
                values = [self.pop()] if what == "APPEND" else [self.pop(), self.pop()][::-1]
                _set(stack[-1], values) if what == "SETITEM" else _add(stack[-1], values)
            case "APPENDS" | "ADDITEMS":
                values = self._group()
                _add(stack[-1], values)
            case "SETITEMS":
                values = self._group()
                _set(stack[-1], values)
            case "POP":
                stack.pop()
            case "POP_MARK":
                self._group()
            case "DUP":
                stack.append(stack[-1])
            case "PERSID":
                stack.append(Persistent(argument))
            case "BINPERSID":
                stack.append(Persistent(self.pop()))
            case _:
                self._do_objects(what, argument)

    def _do_objects(self, what: str, argument: Any) -> None:
        stack = self._stack
        match what:
            case "GLOBAL":
                stack.append(self._name(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                name, module = self.pop(), self.pop()
                stack.append(self._name(module, name))
            case "REDUCE" | "NEWOBJ":
                arguments, function = self.pop(), self.pop()
                stack.append(self._call(Call(function, arguments)))
            case "NEWOBJ_EX":
                keywords, arguments, function = self.pop(), self.pop(), self.pop()
                stack.append(self._call(Call(function, (arguments, keywords))))
            case "OBJ":
                function, *arguments = self._group()
                stack.append(self._call(Call(function, tuple(arguments))))
            case "INST":
                function = self._name(*argument.split(" ", 1))
                stack.append(self._call(Call(function, tuple(self._group()))))
            case "BUILD":
                state = self.pop()
                if isinstance(stack[-1], Call):
                    stack[-1].state = state
            case _:
                raise PickleFormatError(f"it uses the operation {what}")

    def _name(self, module: Any, name: Any) -> Name:
        if not isinstance(module, str) or not isinstance(name, str):
            raise PickleFormatError("a name to import is no text")
        found = Name(_RENAMED.get(module, module), name)
        self._names.add(str(found))
        return found


def _add(into: Any, values: list[Any]) -> None:
    if isinstance(into, list):
        into.extend(values)
    elif isinstance(into, Call):
        into.items.extend(values)
    else:
        raise PickleFormatError("elements are added to what has none")


def _set(into: Any, values: list[Any]) -> None:
    if len(values) % 2:
        raise PickleFormatError("a key has no value")
    if isinstance(into, Call):
        into.items.extend(values)
        return
    if not isinstance(into, dict):
        raise PickleFormatError("members are set in what has none")
    for key, value in zip(values[::2], values[1::2], strict=True):
        # What is no plain key might be anything, deeply nested: it is never hashed or compared.
        plain = isinstance(key, _SCALARS) and (
            not isinstance(key, int) or key.bit_length() <= _BITS
        )
        into[key if plain else f"<{type(key).__name__} {len(into)}>"] = value
