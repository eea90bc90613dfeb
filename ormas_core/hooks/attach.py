"""Watches the forward passes of one sampled step, and leaves nothing behind.

The hooks are torch's process-wide forward hook, not hooks of single modules: nothing is ever put
on the user's objects, so saving, copying or exporting the model in the middle of a step is as
without a monitor. The gradient hooks sit on output tensors and die with the step's graph.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from ormas_core.hooks import _torch
from ormas_core.hooks.experts import ExpertGroup, RowCounts
from ormas_core.hooks.statistics import channel_maxima, magnitude

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

_ERROR_LIMIT: Final = 200


class ForwardWatch:
    """Observes calls of the given modules while attached.

    Args:
        modules: pairs of name and module.
        channels: names of those whose channel maxima are wanted.
        groups: modules that may share the rows of a step between them.

    Attributes:
        called: names of the modules whose calls were seen.
        order: module name -> position of its last completed call; backward runs from high to low.
            Activation checkpointing calls again during backward, which does not count.
        channel_max: layer name -> maximum of each output channel over all calls, on the device.
        output_peak: module name -> largest absolute gradient that reached its outputs.
        wanted_inputs: layers whose largest absolute input is wanted.
        input_peak: layer name -> largest absolute value of its first input, on the device.
        types: types of those gradients.
        rows: how many rows each module was called with.
        failures: module name -> what went wrong in its hook; it never reaches the user's passes.
    """

    def __init__(
        self,
        modules: Iterable[tuple[str, nn.Module]],
        channels: Iterable[str],
        groups: Sequence[ExpertGroup] = (),
    ) -> None:
        self.rows = RowCounts(groups)
        self._names = {id(module): name for name, module in modules}
        self._channels = frozenset(channels)
        self._handle: RemovableHandle | None = None
        self._peak_handles: list[RemovableHandle] = []
        self.wanted_inputs: frozenset[str] = frozenset()
        self.clear()

    def clear(self) -> None:
        """Forget what was observed."""
        self._calls = 0
        self.called: set[str] = set()
        self.order: dict[str, int] = {}
        self.channel_max: dict[str, Tensor] = {}
        self.output_peak: dict[str, Tensor] = {}
        self.input_peak: dict[str, Tensor] = {}
        self.types: set[torch.dtype] = set()
        self.rows.clear()
        self.failures: dict[str, str] = {}

    def attach(self) -> None:
        """Start observing. Attaching twice is attaching once."""
        if self._handle is None and self._names:
            self.clear()
            self._handle = register_module_forward_hook(self._after_forward)

    def detach(self) -> None:
        """Stop observing; what was observed stays until `clear`."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        for handle in self._peak_handles:  # a graph that is kept would keep them
            handle.remove()
        self._peak_handles = []

    def _after_forward(self, module: nn.Module, inputs: Any, output: Any) -> None:
        # First, so that code being compiled meanwhile sees a hook that does nothing.
        if torch.compiler.is_compiling():
            return
        name = self._names.get(id(module))
        if (
            name is None
            or not torch.is_grad_enabled()  # validation between two steps is not training
            or _torch.is_tracing()
        ):
            return
        try:
            self._observe(name, module, inputs, output)
        except Exception as error:  # noqa: BLE001 - the user's forward pass must not fail over it
            self.fail(name, error)

    def fail(self, name: str, error: Exception) -> None:
        """Note that a module cannot be observed; its first failure counts."""
        self.failures.setdefault(name, f"{type(error).__name__}: {error}"[:_ERROR_LIMIT])

    def _observe(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        tensors = [t for t in _tensors(output) if not _torch.is_transformed(t)]
        self.called.add(name)
        if not _torch.in_backward():
            self._calls += 1
            self.order[name] = self._calls
        if any(map(_torch.is_sharded, tensors)):
            raise ValueError("its output is sharded: this process holds only a part of it")
        self.rows.note(name, tensors)
        for tensor in tensors:
            if tensor.grad_fn is not None and tensor.is_floating_point():
                handle = tensor.register_hook(_PeakHook(self, name))  # type: ignore[no-untyped-call]
                self._peak_handles.append(handle)
        if name in self._channels and isinstance(output, Tensor) and tensors:
            self._note_channels(name, channel_maxima(module, output))
        if name in self.wanted_inputs and inputs and isinstance(inputs[0], Tensor):
            self._note_input(name, inputs[0])

    def _note_input(self, name: str, value: Tensor) -> None:
        if _torch.is_transformed(value) or _torch.is_sharded(value):
            return
        peak = magnitude(value.detach())
        before = self.input_peak.get(name)
        self.input_peak[name] = peak if before is None else torch.maximum(before, peak)

    def _note_channels(self, name: str, maxima: Tensor | None) -> None:
        before = self.channel_max.get(name)
        if maxima is None:
            return
        if before is not None and before.shape == maxima.shape:
            maxima = torch.maximum(before, maxima.to(before.dtype))
        self.channel_max[name] = maxima


class _PeakHook:
    """Notes the magnitude of the gradient at one output and changes nothing."""

    def __init__(self, watch: ForwardWatch, name: str) -> None:
        self._watch = watch
        self._name = name

    def __call__(self, gradient: Tensor) -> None:
        if torch.compiler.is_compiling() or _torch.is_transformed(gradient):
            return
        try:
            with torch.no_grad():
                peak = magnitude(gradient.detach())
                before = self._watch.output_peak.get(self._name)
                if before is not None:
                    peak = torch.maximum(peak, before.to(peak.device))
                self._watch.output_peak[self._name] = peak
                self._watch.types.add(gradient.dtype)
        except Exception as error:  # noqa: BLE001 - the user's backward pass must not fail over it
            self._watch.fail(self._name, error)


def _tensors(output: Any) -> list[Tensor]:
    """Return the tensors of a module's output, one level deep."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        output = output.values()
    elif not isinstance(output, list | tuple):
        return []
    return [item for item in output if isinstance(item, Tensor)]
