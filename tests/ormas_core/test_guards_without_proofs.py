"""What becomes of certificates where a step proves nothing, or the engine cannot go on."""

import gc
from typing import Any

import pytest
import torch
from repair_support import CERTIFIED, sgd
from run_support import Make, Run, started, write_gradient
from torch import Tensor, nn

from ormas_core import Manifest, MechanismState
from ormas_core.certificates import candidates, live
from ormas_core.certificates.candidates import structure
from ormas_core.certificates.graph import GraphReader
from ormas_core.certificates.rules import SETTINGS


def open_by_shift(run: Run) -> None:
    with torch.no_grad():
        run.net.norm.bias[3] = 0.5


def write_filter(run: Run) -> None:
    with torch.no_grad():
        run.net.conv.weight[5] += 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (open_by_shift, {(3,): "norm put out 0.5 in a closed channel"}),
        (write_filter, {(5,): "its weights were changed from outside the optimizer"}),
        (lambda run: None, {}),
    ],
)
def test_a_step_without_a_graph_may_disprove(
    change: Any, expected: dict[tuple[int, ...], str], make: Make
) -> None:
    """Its loss was not shown: what guards need no graph are asked, and said once."""
    run = started(make)
    change(run)
    run.accumulate(note=(False,))
    run.accumulate(note=(False,))
    assert run.revoked() == expected


def test_that_proofs_have_ended_is_said(make: Make) -> None:
    """A run whose losses are not shown any more does not pass for one that is proven to its end."""
    run = started(make)
    run.accumulate(note=(False,))
    run.close()
    *_, last = [event for event in run.news() if isinstance(event, Manifest)]
    (line,) = [m for m in last.mechanisms if m.name == "certificates"]
    assert line.state is MechanismState.PARTIAL
    assert line.reason.endswith("no loss with a graph was given")


def test_a_gradient_at_a_step_without_a_graph_revokes(make: Make) -> None:
    """Those of the unit's own weights, and those of what its proof rests on."""
    run = started(make)

    def write() -> None:
        write_gradient(run.net, "conv.weight", 3)
        write_gradient(run.net, "norm.weight", 5)

    run.accumulate(note=(False,), before_check=write)
    assert run.revoked() == {
        (3,): "the gradient of conv is not zero there",
        (5,): "the gradient of norm.weight is not zero where the proof needs it",
    }


def test_an_engine_that_fails_withdraws_all(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing guards the certificates any more; what was revoked before it failed is said too."""

    def fail(*_: Any) -> None:
        raise RuntimeError("no room")

    run = started(make)
    monkeypatch.setattr(live, "values_of", fail)
    open_by_shift(run)
    run.steps(3)
    assert run.revoked() == {
        (3,): "norm put out 0.5 in a closed channel",
        (5,): "the engine failed and stopped: RuntimeError: no room",
    }


def test_a_layer_that_is_cut_down_revokes(make: Make) -> None:
    """Its units are others then; those that are closed are certified anew."""
    run = started(make)
    net, kept = run.net, 4
    with torch.no_grad():
        for parameter in (net.conv.weight, net.conv.bias, net.norm.weight, net.norm.bias):
            parameter.data, parameter.grad = parameter[:kept].clone(), None
        net.after.weight.data, net.after.weight.grad = net.after.weight[:, :kept].clone(), None
        net.norm.running_mean = net.norm.running_mean[:kept].clone()
        net.norm.running_var = net.norm.running_var[:kept].clone()
    run.step()
    events = run.proofs()
    revoked = [event for event in events if event.kind == "certificate_revoked"]
    assert [(one.units, one.reason) for one in revoked] == [
        (CERTIFIED, "conv has another size now")
    ]
    assert [event.units for event in events if event.kind == "certificate"] == [(3,)]


class ScaledFromOutside(nn.Module):
    """linear -> a scale that is no parameter of the module -> ReLU; unit 3 is closed."""

    def __init__(self, scale: nn.Parameter) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.fc, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.scale = [scale]
        with torch.no_grad():
            self.fc.weight[3], self.fc.bias[3] = 0, 0

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.scale[0] * self.fc(x)))


def test_a_proof_may_meet_a_parameter_of_no_layer(make: Make) -> None:
    """A loss with parameters of its own, say: the certificates go on to be guarded."""
    scale = nn.Parameter(torch.ones(8))
    with torch.no_grad():
        scale[3] = 0
    net = ScaledFromOutside(scale)
    source = (net(torch.randn(16, 6)).square().mean() for _ in range(9))
    run = Run(make, net, sgd(net), source)
    run.steps(3)
    assert run.certified() == [((3,), "absorbing", True)]
    with torch.no_grad():
        scale[3], net.fc.bias[3] = 1, 0.1
    run.step()
    assert set(run.revoked()) == {(3,)}


def test_the_form_of_a_graph_is_forgotten_with_it() -> None:
    """Batches of ever other sizes make ever other graphs."""
    layer, reader = nn.Linear(3, 2), GraphReader(SETTINGS)
    gc.collect()
    before = len(candidates._SEEN)
    for size in range(1, 40):
        graph = reader.read([layer(torch.ones(size, 3)).sum()], {})
        assert structure(graph) is structure(graph)
    gc.collect()
    assert len(candidates._SEEN) - before <= 9
