"""The tensors in what a pickle of PyTorch describes, and which of them are the model's.

Source: `torch._utils` for the calls that pickled tensors are made by.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ormas_core.checkpoints.dtypes import bytes_of
from ormas_core.checkpoints.pickles import Call, Name, Persistent, PickleFormatError

DTYPES: Final[Mapping[str, str]] = {
    "float16": "F16", "half": "F16", "bfloat16": "BF16", "float32": "F32", "float": "F32",
    "float64": "F64", "double": "F64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16",
    "short": "I16", "uint32": "U32", "int32": "I32", "int": "I32", "uint64": "U64", "int64": "I64",
    "long": "I64", "bool": "BOOL", "complex32": "C32", "chalf": "C32", "complex64": "C64",
    "cfloat": "C64", "complex128": "C128", "cdouble": "C128", "qint8": "I8", "quint8": "U8",
    "qint32": "I32",
}  # fmt: skip
"""Type of PyTorch -> type as spelled here."""

_STORAGES: Final[Mapping[str, str]] = {
    "HalfStorage": "F16", "BFloat16Storage": "BF16", "FloatStorage": "F32", "DoubleStorage": "F64",
    "ByteStorage": "U8", "CharStorage": "I8", "ShortStorage": "I16", "IntStorage": "I32",
    "LongStorage": "I64", "BoolStorage": "BOOL", "ComplexFloatStorage": "C64",
    "ComplexDoubleStorage": "C128", "QInt8Storage": "I8", "QUInt8Storage": "U8",
    "QInt32Storage": "I32", "UntypedStorage": "U8",
}  # fmt: skip

PLAIN: Final = frozenset(
    ("collections.OrderedDict", "collections.defaultdict", "torch.Size", "torch.device",
     "torch.storage.UntypedStorage", "torch.storage.TypedStorage",
     "torch.serialization._get_layout",
     "builtins.dict", "builtins.set", "builtins.list", "builtins.complex",
     "torch.nn.parameter.Parameter", "torch.Tensor", "torch.per_tensor_affine",
     "torch.per_channel_affine",
     *(f"torch.{name}" for name in DTYPES),
     *(f"torch.{name}" for name in _STORAGES),
     *(f"torch._utils.{name}" for name in (
         "_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter",
         "_rebuild_parameter_with_state", "_rebuild_meta_tensor_no_storage", "_rebuild_qtensor",
         "_rebuild_sparse_tensor")),
     "torch._tensor._rebuild_from_type_v2")
)  # fmt: skip
"""What pickles of tensors import, and nothing else does harm by being named here."""

_MAX_NODES: Final = 500_000
_MAX_DEPTH: Final = 64


@dataclass(frozen=True, slots=True)
class Stored:
    """A run of elements outside the pickle.

    Attributes:
        key: its name in the file.
        dtype: type of its elements.
        elements: how many there are.
    """

    key: str
    dtype: str
    elements: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as a pickle describes it.

    Attributes:
        stored: its elements; None for a placeholder.
        dtype, shape, strides: its own; strides in elements.
        offset: element of `stored` at which it begins.
        packed: why it is packed integers, or "".
    """

    stored: Stored | None
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()
    offset: int = 0
    packed: str = ""

    @property
    def contiguous(self) -> bool:
        """Whether the elements follow each other without gaps, in order."""
        expected = 1
        for length, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if length != 1 and stride != expected:
                return math.prod(self.shape) == 0
            expected *= length
        return True

    @property
    def span(self) -> int:
        """Bytes from the first element to behind the last."""
        if math.prod(self.shape) == 0:
            return 0
        pairs = zip(self.shape, self.strides, strict=True)
        return bytes_of(self.dtype, 1 + sum((length - 1) * stride for length, stride in pairs))


def as_tensor(call: Call) -> Any:
    """Return the tensor or container that a call would make; the call itself for all others.

    Raises:
        PickleFormatError: a tensor is described that cannot be.
    """
    if not isinstance(call.function, Name):
        return call
    arguments = call.arguments if isinstance(call.arguments, tuple) else ()
    try:
        return _made(str(call.function), arguments, call)
    except (TypeError, ValueError, IndexError, RecursionError) as error:
        raise PickleFormatError(f"a tensor is described wrongly: {error!s:.200}") from None


def _made(function: str, arguments: tuple[Any, ...], call: Call) -> Any:
    match function:
        case "collections.OrderedDict" | "collections.defaultdict" | "builtins.dict":
            pairs = arguments[0] if arguments and isinstance(arguments[0], list) else []
            return {str(key): value for key, value in pairs}
        case "builtins.set" | "builtins.list" | "torch.Size":
            return arguments[0] if arguments else []
        case "torch._utils._rebuild_tensor_v2" | "torch._utils._rebuild_tensor":
            return _tensor(*arguments[:4])
        case "torch._utils._rebuild_tensor_v3":
            return _tensor(*arguments[:4], dtype=_dtype(arguments[6]))
        case "torch._utils._rebuild_qtensor":
            return _tensor(*arguments[:4], packed="a quantised tensor of PyTorch")
        case "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state":
            return arguments[0]
        case "torch.nn.parameter.Parameter":
            return arguments[0] if arguments else call
        case "torch._utils._rebuild_meta_tensor_no_storage":
            return Tensor(None, _dtype(arguments[0]), _lengths(arguments[1]))
        case "torch._utils._rebuild_sparse_tensor":
            return dict(zip(("indices", "values"), arguments[1][:2], strict=False))
        case "torch._tensor._rebuild_from_type_v2":
            return as_tensor(Call(arguments[0], arguments[2]))
        case _:
            return call


def _tensor(
    source: Any, offset: Any, shape: Any, strides: Any, *, dtype: str = "", packed: str = ""
) -> Tensor:
    stored = _stored(source)
    found = Tensor(
        stored if stored.key else None,
        dtype or stored.dtype,
        _lengths(shape),
        _lengths(strides),
        _lengths((offset,))[0],
        packed,
    )
    if len(found.shape) != len(found.strides):
        raise ValueError(f"shape {found.shape} and strides {found.strides} do not match")
    return found


def _stored(source: Any) -> Stored:
    if not isinstance(source, Persistent) or not isinstance(source.identity, tuple):
        raise TypeError("its storage is no reference")
    tag, kind, key, location, elements, *_ = source.identity
    plain = isinstance(tag, str | bytes) and isinstance(key, str) and isinstance(location, str)
    if not plain or tag not in ("storage", b"storage") or not isinstance(kind, Name):
        raise TypeError("its storage is of an unknown kind")
    dtype = _STORAGES.get(kind.name, kind.name)
    return Stored("" if location == "meta" else key, dtype, _lengths((elements,))[0])


def _dtype(name: Any) -> str:
    if not isinstance(name, Name):
        raise TypeError("its type is no name")
    return DTYPES.get(name.name, name.name)


def _lengths(value: Any) -> tuple[int, ...]:
    found = tuple(value)
    if not all(type(n) is int and 0 <= n < 2**62 for n in found) or len(found) > _MAX_DEPTH:
        raise ValueError("what should be sizes are none")
    return found


@dataclass(slots=True)
class Found:
    """What was found in a pickle.

    Attributes:
        tensors: path of keys -> tensor.
        calls: names that would be called for objects which are no tensors.
        complete: whether everything was looked through.
    """

    tensors: dict[tuple[str, ...], Tensor] = field(default_factory=dict)
    calls: set[str] = field(default_factory=set)
    complete: bool = True


def tensors_in(root: Any) -> Found:
    """Return every tensor in what `read_pickle` returned, in order."""
    found, nodes = Found(), 0
    waiting: list[tuple[tuple[str, ...], Any]] = [((), root)]
    while waiting:
        path, value = waiting.pop()
        nodes += 1
        if nodes > _MAX_NODES or len(path) > _MAX_DEPTH:
            found.complete = False
            break
        if isinstance(value, Tensor):
            found.tensors[path] = value
        elif isinstance(value, Call):
            found.calls.add(_named(value.function))
        waiting += reversed([((*path, key), inner) for key, inner in _inside(value)])
    return found


def _named(function: Any) -> str:
    """Return the name of what would be called. What has none may be endless: it is not spelled."""
    return str(function)[:200] if isinstance(function, Name) else f"<{type(function).__name__}>"


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what may hold tensors inside a value, with its key."""
    inner: Iterator[tuple[Any, Any]]
    match value:
        case dict():
            inner = iter(value.items())
        case list() | tuple():
            inner = iter(enumerate(value))
        case Call():
            yield from _of_object(value)
            return
        case _:
            return
    for key, part in inner:
        if isinstance(part, dict | list | tuple | Call | Tensor):
            yield str(key), part


def _of_object(call: Call) -> Iterator[tuple[str, Any]]:
    """Yield the members of an object; those of a pickled module by the names that it would have."""
    state = call.state
    if isinstance(state, tuple) and state:  # of members and slots
        state = state[0]
    members = state if isinstance(state, dict) else {}
    for key, value in members.items():
        if key in ("_parameters", "_buffers", "_modules"):
            yield from _inside(value)
        else:
            yield from _inside({key: value})
    yield from _inside(call.items)


WRAPPERS: Final = (
    "state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params",
    "generator", "ema", "model_ema", "ema_state_dict", "params_ema",
)  # fmt: skip
"""Keys of a checkpoint under which weights are; the first of them gives its names as they are."""

_ASIDE: Final = ("optim", "sched", "lr_", "rng", "random", "scaler", "amp", "callback", "loops",
                 "hyper_parameters", "args", "config", "criterion", "loss")  # fmt: skip
_STATE: Final = ("state", "number", "name")


def model_tensors(found: Found, root: Any) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the tensors of the model by name, and the keys of those that are no part of it.

    Optimizers, random states and the like are beside the model. Where the model is in a wrapper
    such as `state_dict`, its names do not bear that; a second one, say `ema`, keeps it.
    """
    if not isinstance(root, dict):  # a module that was pickled as a whole, or a tensor
        return {".".join(path) or "tensor": tensor for path, tensor in found.tensors.items()}, ()
    if found.tensors and _is_optimizer(found):
        return {}, ("an optimizer's state",)
    tops = {path[0]: None for path in found.tensors if len(path) > 1}
    stripped = next((top for top in WRAPPERS if top in tops), None)
    if stripped is not None:  # what else there is at the top need not be weights
        tops |= {path[0]: None for path in found.tensors}
    aside = tuple(top for top in tops if top.lower().startswith(_ASIDE))
    kept = {path: tensor for path, tensor in found.tensors.items() if path[0] not in aside}
    named: dict[str, Tensor] = {}
    for path, tensor in kept.items():
        name = ".".join(path[1:] if len(path) > 1 and path[0] == stripped else path)
        named[name if name not in named else ".".join(path)] = tensor
    return named, aside


def _is_optimizer(found: Found) -> bool:
    """Whether all tensors are in `state`, by number and name, as an optimizer has them."""
    return all(path[:1] == ("state",) and len(path) == len(_STATE) for path in found.tensors)
