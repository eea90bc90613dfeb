"""Builds the architecture of a checkpoint on the meta device and watches what feeds what.

No weight is loaded, no element is computed, nothing is downloaded, and code that a folder brings
along is never run: only classes of the installed libraries are built.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ormas_core.checkpoints.building import bounded_building, harmless
from ormas_core.checkpoints.wire import Plan
from ormas_core.errors import ConfigError, MissingExtraError, missing_extra

_PASSES: Final = frozenset(
    {"clone", "contiguous", "dropout", "feature_dropout", "float", "half", "identity", "to"}
)
"""Functions whose result is what goes in, outside of training."""

_NORMS: Final = frozenset({"batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"})
_IMAGES: Final = ((2, 3, 224, 224), (2, 3, 299, 299), (2, 3, 16, 112, 112))


def plan(arch: str, config: Mapping[str, Any] | None, tensors: int) -> Plan:
    """Return names, shapes and wiring of an architecture.

    Args:
        arch: `torchvision:NAME` or `hf`.
        config: the parsed `config.json` of the folder.
        tensors: how many the file has: a model of many more parts is not built.

    Raises:
        ConfigError: it names nothing that can be built.
        MissingExtraError: its library is not installed.
    """
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice of the libraries on how to train
        model = build(arch, config, tensors).eval()
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    followers, untraced = _follow(model)
    return Plan(
        name=arch if arch != "hf" else type(model).__name__,
        shapes=shapes,
        tied=tied_names(model),
        followers=followers,
        untraced=untraced,
    )


def build(arch: str, config: Mapping[str, Any] | None, tensors: int) -> nn.Module:
    """Return a model of an architecture on the current default device, freshly initialised.

    Raises: as `plan`.
    """
    library, _, name = arch.partition(":")
    if library == "torchvision" and name:
        return _torchvision(name)
    if arch == "hf":
        with bounded_building(tensors):
            return _transformers(config)
    raise ConfigError(
        "arch",
        f"arch must be 'torchvision:NAME' or 'hf' (for a folder with config.json); got {arch!r}",
    )


def batches(model: nn.Module) -> Iterator[Mapping[str, Tensor]]:
    """Yield inputs that the model may take, the likeliest first; on the current default device."""
    config = getattr(model, "config", None)
    name = getattr(model, "main_input_name", "")
    if config is None:
        for shape in _IMAGES:
            yield {"": torch.randn(shape)}
    elif name == "pixel_values":
        size = getattr(config, "image_size", None) or 224
        height, width = size if isinstance(size, list | tuple) else (size, size)
        channels = getattr(config, "num_channels", None) or 3
        yield {name: torch.randn(2, channels, height, width)}
    elif name == "input_values":
        yield {name: torch.randn(2, 16_000)}
    else:
        tokens = torch.zeros(2, 8, dtype=torch.long)
        yield {"input_ids": tokens}
        yield {"input_ids": tokens, "decoder_input_ids": tokens}


def tied_names(model: nn.Module) -> frozenset[str]:
    """Return the tensors of a model that others fill where a file does not hold them."""
    return frozenset(getattr(model, "all_tied_weights_keys", None) or ())


def call(model: nn.Module, batch: Mapping[str, Tensor]) -> Any:
    """Return what the model gives for a batch of `batches`."""
    return model(*batch.values()) if "" in batch else model(**batch)


def _torchvision(name: str) -> nn.Module:
    try:
        from torchvision.models import get_model
    except ImportError as error:
        raise MissingExtraError(
            "torchvision", f"arch='torchvision:{name}' needs torchvision: pip install torchvision"
        ) from error
    try:
        model: nn.Module = get_model(name, weights=None)
    except Exception as error:  # noqa: BLE001 - what a constructor raises is its own affair
        raise ConfigError("arch", f"torchvision cannot build {name!r}: {error}") from None
    return model


def _transformers(config: Mapping[str, Any] | None) -> nn.Module:
    if not config:
        raise ConfigError(
            "arch", "arch='hf' needs a model folder with a config.json that can be read"
        )
    try:
        import transformers
    except ImportError as error:
        raise missing_extra("transformers", "hf") from error
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    cls = getattr(transformers, name, None) if isinstance(name, str) else None
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise ConfigError(
            "arch",
            f"config.json names the architecture {name!r}, which transformers "
            f"{transformers.__version__} does not have; code of the folder is not run",
        )
    try:
        settings = cls.config_class.from_dict(harmless(config))  # type: ignore[union-attr]
        model: nn.Module = cls(settings)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - a config of strangers may break anything in there
        raise ConfigError("arch", f"{name} cannot be built from config.json: {error}") from None
    return model


def _follow(model: nn.Module) -> tuple[dict[str, tuple[str, ...]], str]:
    """Return what takes the output of each layer, or why that is unknown."""
    reason = "no input is known for it"
    for batch in _on_meta(model):
        watch = _Watch(model)
        try:
            with torch.no_grad(), watch:
                call(model, batch)
        except Exception as error:  # noqa: BLE001 - a guessed input may break anything in a model
            reason = f"{type(error).__name__}: {error}"
            continue
        return watch.followers(), ""
    return {}, f"what follows what is unknown, since it does not run on a guessed input ({reason})"


def _on_meta(model: nn.Module) -> Iterator[Mapping[str, Tensor]]:
    with torch.device("meta"):
        yield from list(batches(model))


def _name(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return the name of a function; that of a hardtanh from zero is `relu6`."""
    name = str(getattr(func, "__name__", ""))
    lower = kwargs.get("min_val", args[1] if len(args) > 1 else -1.0)
    return "relu6" if name == "hardtanh" and lower == 0 else name


class _Watch(TorchFunctionMode):
    """Notes which layer each tensor comes from, and which function takes it.

    A layer is known by its weight among the arguments of a function.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._layers = {id(p): n.rpartition(".")[0] for n, p in model.named_parameters()}
        self._source: dict[int, str] = {}
        self._kept: list[Any] = []  # an id must not be given to a second tensor
        self._after: dict[str, list[str]] = defaultdict(list)

    def followers(self) -> dict[str, tuple[str, ...]]:
        """Return the functions that took the output of each layer."""
        return {name: tuple(dict.fromkeys(found)) for name, found in self._after.items()}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        _types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = [a for a in (*args, *(kwargs or {}).values()) if isinstance(a, Tensor)]
        sources = [self._source[id(tensor)] for tensor in given if id(tensor) in self._source]
        out = func(*args, **(kwargs or {}))
        if not isinstance(out, Tensor):
            return out
        self._kept.append(out)
        name = _name(func, args, kwargs or {})
        layers = [self._layers[id(tensor)] for tensor in given if id(tensor) in self._layers]
        self._source.pop(id(out), None)
        if name in _PASSES and sources:
            self._source[id(out)] = sources[0]
            return out
        for source in sources:
            known = name in _NORMS and layers
            self._after[source].append(f"norm:{layers[0]}" if known else name)
        if layers:
            self._source[id(out)] = layers[0]
        return out
