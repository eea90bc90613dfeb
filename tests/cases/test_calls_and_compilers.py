"""Reports about forward hooks that fire twice or never, in a plain loop and under the Trainer.

Links: 41 github.com/pytorch/pytorch/issues/81296, 42 github.com/pytorch/pytorch/issues/117758.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import (
    Toy,
    ToyNet,
    hf_arguments,
    hf_trainer,
    loader,
    of,
    plain_loop,
    plant_explosion,
    sgd,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ormas_core import (
    Alarm,
    Manifest,
    Measurement,
    MechanismState,
    MemorySink,
    Monitor,
    MonitorError,
)
from ormas_hf import HFMonitorCallback

STEPS = 20


def plainly(net: nn.Module, folder: Path, steps: int = STEPS) -> MemorySink:
    """Train in a plain loop with a check at each step."""
    sink, optimizer = MemorySink(), sgd(net)
    with Monitor(
        net, optimizer, out=folder / "run", check_every=1, sinks=[sink], verbose=False
    ) as monitor:
        plain_loop(net, monitor.step, list(loader(steps)), optimizer)
    return sink


def with_trainer(net: nn.Module, folder: Path, steps: int = STEPS) -> MemorySink:
    """Train the same under the Trainer."""
    sink = MemorySink()
    callback = HFMonitorCallback(out=folder / "run", check_every=1, sinks=[sink], verbose=False)
    arguments = hf_arguments(folder / "hf")
    with callback:
        hf_trainer(net, arguments, [callback], train_dataset=Toy(steps)).train()
    return sink


LOOPS = pytest.mark.parametrize("loop", [plainly, with_trainer])


class Recomputed(ToyNet):
    """A block of shared layers that is called twice, checkpointed one way, the other, or not."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.twin = nn.Linear(16, 16)
        self.twin.weight = self.fc2.weight
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def block(self, hidden: Tensor) -> Tensor:
        hidden = torch.relu(self.twin(torch.relu(self.fc2(hidden))))
        return torch.cat([self.experts[0](hidden[:5]), self.experts[1](hidden[5:])])

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.fc1(x))
        for _ in range(2):
            if self.reentrant is None:
                hidden = self.block(hidden)
            else:
                hidden = checkpoint(self.block, hidden, use_reentrant=self.reentrant)
        return {"loss": nn.functional.cross_entropy(self.fc3(hidden), labels)}


@LOOPS
@pytest.mark.parametrize("reentrant", [False, True])
def test_case_41_a_call_that_is_repeated_in_backward_counts_once(
    loop: Callable[..., MemorySink], tmp_path: Path, *, reentrant: bool
) -> None:
    """All that a check reads is as without checkpointing; the rows of experts are not doubled."""
    (plain, saved) = (
        loop(Recomputed(kind), tmp_path / str(kind), steps=3) for kind in (None, reentrant)
    )
    for expected, found in zip(of(plain, Measurement), of(saved, Measurement), strict=True):
        assert by_layer(found, found.norms) == pytest.approx(by_layer(expected, expected.norms))
        peaks = by_layer(expected, expected.output_peaks)
        assert by_layer(found, found.output_peaks) == pytest.approx(peaks)
        assert {c.layer: c.peak for c in found.channels} == pytest.approx(
            {c.layer: c.peak for c in expected.channels}
        )
        assert found.loss == pytest.approx(expected.loss)
        assert [(e.container, e.rows) for e in found.experts] == [("experts", (10, 22))]
        # The re-entrant kind makes its first pass as a validation does, without gradients.
        assert reentrant or found.layers == expected.layers
    assert not of(saved, MonitorError)


@LOOPS
@pytest.mark.parametrize("reentrant", [False, True])
def test_case_41_a_tied_weight_is_reported_once_with_both_names(
    loop: Callable[..., MemorySink], tmp_path: Path, *, reentrant: bool
) -> None:
    """The first layer has it; the other is measured without it, and a line names both."""
    net, last = Recomputed(reentrant), dict[str, float]()
    for name, parameter in net.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: last.update({name: p.grad.norm().item()})
        )
    sink = loop(net, tmp_path, steps=3)
    (line,) = [m for m in of(sink, Manifest)[-1].mechanisms if m.reason.startswith("tied")]
    assert (line.layers, line.reason.endswith(" fc2")) == (("twin",), True)
    norms = by_layer(of(sink, Measurement)[-1], of(sink, Measurement)[-1].norms)
    assert norms["twin"] == pytest.approx(last["twin.bias"])
    assert norms["fc2"] == pytest.approx(math.hypot(last["fc2.weight"], last["fc2.bias"]))


def by_layer(measurement: Measurement, values: tuple[float | None, ...]) -> dict[str, Any]:
    """Return what a check read by the layer's name."""
    return dict(zip(measurement.layers, values, strict=True))


class TakesAll(ToyNet):
    """Takes what the Trainer gives a model whose arguments it cannot see, as those of a wrapper."""

    def forward(self, x: Tensor, labels: Tensor, **others: Any) -> dict[str, Tensor]:
        return super().forward(x, labels)


def wrapped(net: nn.Module) -> Any:
    """Compile as `torch.compile(model)` does."""
    return torch.compile(net, backend="eager", fullgraph=True)


def in_place(net: nn.Module) -> Any:
    """Compile as `model.compile()` does."""
    net.compile(backend="eager", fullgraph=True)
    return net


@LOOPS
@pytest.mark.parametrize("compiled", [wrapped, in_place])
def test_case_42_a_model_compiled_before_the_monitor_came_is_said_to_be(
    compiled: Callable[[nn.Module], Any], loop: Callable[..., MemorySink], tmp_path: Path
) -> None:
    """No hook is used, so the compiled code is kept; what is not seen is said from the first line.

    Gradients of parameters are judged as ever: an explosion is named.
    """
    net = TakesAll()
    plant_explosion(net, at_step=STEPS - 1)
    model = compiled(net)
    torch._dynamo.reset()
    batch = next(iter(loader(1)))
    model(**batch)
    compilations = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert compilations
    sink = loop(model, tmp_path)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compilations
    lines = {m.name: m for m in of(sink, Manifest)[0].mechanisms}
    for name in ("channel_maxima", "output_gradients"):
        assert lines[name].state is MechanismState.UNOBSERVABLE
        assert "compiled code" in lines[name].reason
    assert not any(m.channels or m.output_peaks for m in of(sink, Measurement))
    assert [(a.layer, a.step) for a in of(sink, Alarm)] == [("fc2", STEPS - 1)]
    assert not of(sink, MonitorError)
