"""The user's objects stay clean: during a fit and after it they behave as without the callback."""

import copy
import gc
import io
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning_support import lit, make
from support import add_layers, lightning_net, lightning_trainer, loader, of, toy_loss
from torch import Tensor, nn
from torch.nn.modules import module as module_globals
from torch.optim.swa_utils import AveragedModel

from ormas_core import (
    Measurement,
    Monitor,
    NonfiniteLoss,
    NonfiniteState,
    RunEnd,
    Status,
    StopRequested,
    describe,
)
from ormas_lightning import LightningMonitorCallback

# Lightning 2.6 asks torch.jit for help, which says that it is old.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Plain(nn.Module):
    """The toy network as a plain module that can be exported."""

    def __init__(self) -> None:
        super().__init__()
        add_layers(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


def net() -> Any:
    """Return a LightningModule around a plain module."""

    class Net(type(lightning_net())):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = Plain()

        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            return toy_loss(self.inner, **batch)

    return Net()


def looks(model: Any) -> dict[str, Any]:
    """Return what the usual operations make of a model in the middle of a step."""
    inner, x = model.inner, torch.ones(2, 8)
    buffer = io.BytesIO()
    torch.save(inner, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    average = AveragedModel(inner)
    average.update_parameters(inner)
    exported = torch.export.export(inner, (x,), strict=False).module()
    return {
        "keys": list(model.state_dict()),
        "saved": torch.equal(loaded(x), inner(x)),
        "copied": torch.equal(copy.deepcopy(inner)(x), inner(x)),
        "averaged": torch.equal(average(x), inner(x)),
        "exported": torch.equal(exported(x), inner(x)),
        "traced": torch.equal(torch.jit.trace(inner, x)(x), inner(x)),
        "scripted": torch.equal(torch.jit.script(inner)(x), inner(x)),
        "hooks": sum(len(getattr(m, name)) for m in model.modules() for name in HOOKS),
        "attributes": sorted({name for m in inner.modules() for name in vars(m)}),
    }


class Look(Callback):
    """Looks at the model between backward and step, when a check is due, and when none is."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self.hooked: list[bool] = []

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        self.hooked.append(bool(module_globals._global_forward_hooks))
        with torch.no_grad():
            self.found.append(looks(pl_module))


def test_models_are_saved_copied_averaged_and_exported_as_without_it(tmp_path: Path) -> None:
    """In a sampled step and in one that is not, and after the fit; no hook, no attribute is left.

    The same operations in a fit without the callback find the same.
    """
    found = []
    for callbacks in ([], [make(tmp_path, check_every=2)[0]]):
        model, look = net(), Look()
        lightning_trainer(tmp_path, [*callbacks, look]).fit(model, loader(2))
        found.append([*look.found, looks(model)])
        assert look.hooked == [bool(callbacks), False]
    assert found[0] == found[1]
    assert found[1][0]["hooks"] == 0
    assert all(value is True for value in found[1][0].values() if isinstance(value, bool))


def test_lightnings_weight_averaging_works_on(tmp_path: Path) -> None:
    """Its deep copy of the module, and the weights it puts back, are those without the callback."""
    found = []
    for callbacks in ([], [make(tmp_path)[0]]):
        model = lightning_net()
        swa = StochasticWeightAveraging(swa_lrs=1e-3, swa_epoch_start=1)
        trainer = lightning_trainer(tmp_path, [*callbacks, swa], max_epochs=3)
        trainer.fit(model, loader(3))
        found.append({name: value.clone() for name, value in model.state_dict().items()})
    assert list(found[0]) == list(found[1])
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_case_46_the_callback_pickles_before_during_and_after(tmp_path: Path) -> None:
    """The copy has the settings and no monitor, and watches a fit of its own."""
    copies: list[LightningMonitorCallback] = []

    class Pickles(Callback):
        def on_before_backward(self, *args: Any) -> None:
            copies.append(pickle.loads(pickle.dumps(callback)))  # noqa: S301 - its own bytes

    callback = LightningMonitorCallback(out=tmp_path / "run", check_every=1, optimizer_index=0)
    copies.append(pickle.loads(pickle.dumps(callback)))  # noqa: S301 - its own bytes
    lightning_trainer(tmp_path, [callback, Pickles()]).fit(lightning_net(), loader(1))
    copies.append(copy.deepcopy(callback))
    assert [each.monitor for each in copies] == [None] * 3
    assert {each.state_key for each in copies} == {callback.state_key}
    copies[0]._options["out"] = tmp_path / "other"
    lightning_trainer(tmp_path, [copies[0]]).fit(lightning_net(), loader(1))
    assert copies[0].monitor is not None
    assert copies[0].monitor.facts.checks == 1


def test_case_49_in_place_activations(tmp_path: Path) -> None:
    """ReLU in place: no crash, bit-identical weights, and dead channels are seen as without it."""

    def build(inplace: bool) -> Any:
        torch.manual_seed(3)
        layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=inplace)]
        model = lit(training_step=conv_step)
        model.net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, 2))
        with torch.no_grad():
            model.net[1].bias[1] = -100.0
        return model

    def conv_step(self: Any, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        out = self.net(batch["x"].reshape(-1, 1, 8)[:, :, :].unfold(2, 3, 1)[:, :, :3])
        return nn.functional.cross_entropy(out, batch["labels"])

    summaries, weights = [], []
    for inplace in (False, True):
        callback, sink = make(tmp_path / str(inplace))
        model = build(inplace)
        lightning_trainer(tmp_path, [callback]).fit(model, loader(3))
        summaries.append([m.channels for m in of(sink, Measurement)])
        weights.append(model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert summaries[0] == summaries[1]
    norm = {s.layer: s for s in summaries[1][0]}["net.1"]
    assert (norm.channels, norm.nonpositive) == (4, 1)


def test_case_53_a_monitor_keeps_no_graph_and_no_model(tmp_path: Path) -> None:
    """Live tensors do not grow with the steps, and the model is free once the fit is over."""
    counts = []

    class Count(Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            if trainer.global_step in (30, 60):
                gc.collect()
                counts.append(sum(issubclass(type(each), Tensor) for each in gc.get_objects()))

    callback, sink = make(tmp_path)
    model = lightning_net()
    trainer = lightning_trainer(tmp_path, [callback, Count()], max_epochs=2)
    trainer.fit(model, loader(30))
    assert counts[1] <= counts[0]  # tests before this one may have left some, freed meanwhile
    assert all(m.cost_ns > 0 for m in of(sink, Measurement))
    (module,) = [weakref.ref(model)]
    trainer.strategy.teardown()
    del trainer, model
    gc.collect()
    assert module() is None
    assert callback.monitor is not None
    assert callback.monitor.facts.checks == 60


def test_case_31_a_head_that_is_nan_from_the_start(tmp_path: Path) -> None:
    """Said before the first step, by layer, as no fault of training; the fit stops at its check.

    That check says that the loss is not finite, and which layer is first affected.
    """
    callback, sink = make(tmp_path, stop_on="nonfinite_state")
    model = lightning_net()
    with torch.no_grad():
        model.fc3.weight[0, :3] = float("nan")
    trainer = lightning_trainer(tmp_path, [callback])
    trainer.fit(model, loader(2))
    kinds = [event.kind for event in sink.events]
    assert kinds[:4] == ["run_start", "manifest", "nonfinite_state", "measurement"]
    (state,) = of(sink, NonfiniteState)
    assert [(count.layer, count.nan, count.inf) for count in state.layers] == [("fc3", 3, 0)]
    assert "not training" in describe(state)
    assert [e.step for e in of(sink, NonfiniteLoss)] == [0]
    assert [(e.step, e.reasons) for e in of(sink, StopRequested)] == [(0, ("nonfinite_state",))]
    assert trainer.global_step == 1
    (first,) = [e for e in sink.events if e.kind == "nonfinite_gradient" and e.step == 0]
    assert first.layer == "fc3"
    assert of(sink, RunEnd)[0].status is Status.PROBLEM


@pytest.mark.parametrize("rate", [0.0])
def test_case_25_a_warm_up_that_starts_at_zero_is_no_finding(tmp_path: Path, rate: float) -> None:
    """Nothing moves in the first step of a linear warm-up: no event but the frame of the run."""

    def configure_optimizers(self: Any) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: rate + min(1, at / 8))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    callback, sink = make(tmp_path)
    lightning_trainer(tmp_path, [callback]).fit(
        lit(configure_optimizers=configure_optimizers), loader(12)
    )
    frame = {"run_start", "manifest", "measurement", "anchor", "run_end", "channels"}
    assert {event.kind for event in sink.events} <= frame
    assert of(sink, RunEnd)[0].status is Status.HEALTHY


def test_case_39_replicas_of_data_parallel_do_not_disturb(tmp_path: Path) -> None:
    """Replicas made on the CPU run in a step, and a gathered loss of two elements is averaged."""
    model, found = Plain(), []
    monitor = Monitor(model, out=tmp_path / "run", check_every=1, verbose=False)
    replicas = [model._replicate_for_data_parallel() for _ in range(2)]
    for replica in replicas:
        for name in ("fc1", "fc2", "fc3"):
            setattr(replica, name, getattr(model, name))
        found.append(replica(torch.ones(2, 8)).mean())
    losses = torch.stack(found)
    losses.mean().backward()
    monitor.step(losses)
    monitor.close()
    assert monitor.facts.checks == 1
    assert monitor.facts.counts["loss_reduced"] == 1
    assert not any(getattr(m, name) for m in (*replicas, model) for name in HOOKS)
