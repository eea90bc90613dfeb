"""Every private name of torch that the hook engine relies on, in one place.

Each is guarded, so that a torch without it costs one mechanism and not the run.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

TORCH_VERSION = str(torch.__version__)

WRAPPER_SEGMENTS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Attribute names that torch's own wrappers put into module names."""


CONVOLUTION = nn.modules.conv._ConvNd
"""The common base of all convolutions."""

BATCH_NORM = nn.modules.batchnorm._BatchNorm
"""The common base of all batch normalisations."""


def foreach_norm(tensors: Sequence[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    """Return the Euclidean norm of each tensor, accumulated in `dtype`; one device each."""
    norms: Sequence[Tensor] = torch._foreach_norm(list(tensors), 2, dtype=dtype)
    return norms


def compiled_inner(module: nn.Module) -> nn.Module | None:
    """Return the user's module inside a `torch.compile` wrapper, or None."""
    inner = module.__dict__.get("_modules", {}).get("_orig_mod")
    return inner if isinstance(inner, nn.Module) else None


def is_compiled(module: nn.Module) -> bool:
    """Whether calling this module runs compiled code (either way of compiling it)."""
    return (
        compiled_inner(module) is not None
        or getattr(module, "_compiled_call_impl", None) is not None
    )


def is_sharded(parameter: Tensor) -> bool:
    """Whether this process holds only its part of the parameter (DTensor or FSDP1 flat parameter).

    FSDP1 leaves parameters of other ranks with no elements; such a view says nothing here.
    """
    return hasattr(parameter, "_local_tensor") or hasattr(parameter, "_is_flat_param")


def bare(tensor: Tensor) -> Tensor | None:
    """Return a tensor's values without the class that someone gave it, and without its graph.

    None where that class keeps its values elsewhere, as those of shards and quantised weights do.
    """
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return None
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach().as_subclass(Tensor)


def flattened(model: nn.Module) -> frozenset[int]:
    """Return the ids of the parameters of which FSDP1 leaves this process its part alone.

    Their own tensors do not show it: each is a view into the part of a flat one.
    """
    handles = [getattr(module, "_handle", None) for module in model.modules()]
    flat = [
        getattr(handle, "flat_param", None)
        for handle in handles
        if getattr(handle, "uses_sharded_strategy", False)
    ]
    return frozenset(id(p) for one in flat for p in getattr(one, "_params", None) or ())


def is_transformed(tensor: Tensor) -> bool:
    """Whether the tensor lives only inside a functorch transform, such as `torch.func.vmap`."""
    try:
        wrapped: bool = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    except AttributeError:
        return False
    return wrapped


def backward_pass() -> int | None:
    """Return the number of the backward pass that this thread is in; None outside of one."""
    number: int = torch._C._current_graph_task_id()
    return None if number == -1 else number


def in_backward() -> bool:
    """Whether this thread is inside a backward pass: a forward call there is a recomputation."""
    return backward_pass() is not None


def is_tracing() -> bool:
    """Whether `torch.jit.trace` is recording."""
    return torch._C._get_tracing_state() is not None


def watch_calls(hook: Callable[..., None]) -> Callable[[], None]:
    """Call `hook(module, args, kwargs, output)` after every module call of the process.

    The hook is held weakly, so that one whose owner is dropped, as after an exception, goes along.

    Returns:
        A function that ends it. torch's own handle forgets to take the mark "with keyword
        arguments" back, and from then on takes the process for one that has global hooks.
    """

    def call(*seen: Any) -> None:
        # First, so that code being compiled meanwhile sees a hook that does nothing.
        if not torch.compiler.is_compiling() and (living := held()) is not None:
            living(*seen)

    handle = torch.nn.modules.module.register_module_forward_hook(call, with_kwargs=True)

    def end() -> None:
        handle.remove()
        marks = getattr(torch.nn.modules.module, "_global_forward_hooks_with_kwargs", {})
        marks.pop(handle.id, None)

    held = weakref.ref(hook, lambda gone: end())
    return end


def after_backward(loss: Tensor, call: Callable[[], None]) -> None:
    """Call `call` once, at the very end of each backward pass through `loss`, which is no leaf.

    An engine callback queued from within backward runs when the pass is done, after those queued
    before it. Queueing a second one from the first puts ours behind DDP's and FSDP's own, which
    they queue while the pass is running; so the gradients are final, reduced, and not yet clipped.
    A pass of `torch.autograd.grad`, as for a penalty on gradients, fills no `.grad` and is none.
    """
    engine = torch.autograd.Variable._execution_engine
    # Not `loss` itself: a hook that held its own graph would keep it for ever.
    leaf = _first_leaf(loss)

    def start(gradient: Tensor) -> None:
        if _accumulates(leaf):
            engine.queue_callback(lambda: engine.queue_callback(call))

    loss.register_hook(start)  # type: ignore[no-untyped-call]


def _first_leaf(tensor: Tensor) -> Any:
    """Return the first node of a leaf in the graph behind a tensor; None where there is none."""
    nodes, seen = [tensor.grad_fn], set[Any]()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            return node
        nodes.extend(following for following, _ in node.next_functions)
    return None


def _accumulates(leaf: Any) -> bool:
    """Whether the pass that is running fills `.grad`: as this leaf fares."""
    try:
        return leaf is None or bool(torch._C._will_engine_execute_node(leaf))
    except RuntimeError:  # torch's answer where the gradient is handed out instead
        return False


def scaler_tensors(scaler: Any) -> tuple[Tensor | None, Tensor | None]:
    """Return a `GradScaler`'s scale and growth tracker without copying them to the host."""
    return getattr(scaler, "_scale", None), getattr(scaler, "_growth_tracker", None)


def has_unscaled(scaler: Any, optimizer: Any) -> bool:
    """Whether `scaler.unscale_(optimizer)` has run since the last update.

    Where the optimizer is not known, whether it has run for any.
    """
    states: Mapping[int, Any] = getattr(scaler, "_per_optimizer_states", {})
    # Indexing this defaultdict would create an entry in the user's object.
    asked = states.values() if optimizer is None else [states.get(id(optimizer), {})]
    return any(getattr(state.get("stage"), "name", "") == "UNSCALED" for state in asked)
