"""Manual optimization under Lightning: every optimizer is watched by itself."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning_support import Gan, make
from support import lightning_trainer, loader, of, weights
from torch.amp import GradScaler
from torch.nn.modules import module as module_globals

from ormas_core import (
    Alarm,
    ConfigError,
    Diagnosis,
    Manifest,
    Measurement,
    MemorySink,
    RunEnd,
    RunResumed,
    RunStart,
    replay_run,
    verify_record,
)

DISC, GEN = "0:SGD", "1:Adam"


def by_lane(sink: MemorySink, kind: type) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for event in of(sink, kind):
        found.setdefault(event.lane, []).append(event)
    return found


def test_case_45_both_sides_of_a_gan_are_watched(tmp_path: Path) -> None:
    """Own layers, losses, baselines; the generator of every 4th batch alarms at its own step.

    Toggling `requires_grad` and the generator's pauses are no alarm. Steps are the trainer's.
    """
    callback, sink = make(tmp_path)
    trainer = lightning_trainer(tmp_path, [callback])
    trainer.fit(Gan(gen_every=4, explode_at=39), loader(40))
    checks = by_lane(sink, Measurement)
    assert {lane: len(found) for lane, found in checks.items()} == {DISC: 40, GEN: 10}
    assert {layer for m in checks[DISC] for layer in m.layers} == {"disc.0", "disc.2"}
    assert {layer for m in checks[GEN] for layer in m.layers} == {"gen.0", "gen.2"}
    assert all(m.loss is not None for m in of(sink, Measurement))
    assert [m.step for m in of(sink, Measurement)] == list(range(50))
    assert {(a.lane, a.diagnosis, a.step) for a in of(sink, Alarm)} == {
        (GEN, Diagnosis.EXPLODING, 49)
    }
    assert of(sink, RunStart)[0].optimizer == "SGD, Adam"
    assert of(sink, RunEnd)[0].steps == trainer.global_step == 50
    lines = [m for m in of(sink, Manifest)[-1].mechanisms if m.name == "optimizer"]
    assert [(m.reason, m.layers) for m in lines] == [
        (DISC, ("disc.0", "disc.2")),
        (GEN, ("gen.0", "gen.2")),
    ]
    assert verify_record(tmp_path / "run").complete
    assert replay_run(tmp_path / "run").same
    assert not module_globals._global_forward_hooks


def test_the_index_narrows_it_to_one_optimizer(tmp_path: Path) -> None:
    """Only its steps are checked, in the trainer's count, and the manifest says so."""
    callback, sink = make(tmp_path, optimizer_index=1)
    lightning_trainer(tmp_path, [callback]).fit(Gan(gen_every=2), loader(8))
    assert [(m.lane, m.step) for m in of(sink, Measurement)] == [
        (GEN, step) for step in (2, 5, 8, 11)
    ]
    lines = [m for m in of(sink, Manifest)[0].mechanisms if m.name == "optimizer"]
    assert [m.state.value for m in lines] == ["off", "active"]
    assert "as was asked for" in lines[0].reason
    assert of(sink, RunEnd)[0].steps == 12


@pytest.mark.parametrize("index", [-1, True, "0"])
def test_an_index_that_cannot_be_one_is_refused_at_once(tmp_path: Path, index: Any) -> None:
    """Where the callback is constructed."""
    with pytest.raises(ConfigError, match="optimizer_index"):
        make(tmp_path, optimizer_index=index)


def test_an_index_beyond_the_optimizers_is_refused_before_training(tmp_path: Path) -> None:
    """How many there are is known when the fit starts; nothing has been trained or written."""
    callback, _ = make(tmp_path, optimizer_index=2)
    net = Gan()
    before = weights(net)
    with pytest.raises(ConfigError, match="configures 2 optimizers"):
        lightning_trainer(tmp_path, [callback]).fit(net, loader(2))
    assert all(torch.equal(before[name], value) for name, value in weights(net).items())
    assert not (tmp_path / "run").exists()


def test_manual_optimization_is_bit_identical_with_and_without_it(tmp_path: Path) -> None:
    """All weights after 20 batches of two optimizers."""
    found = []
    for callbacks in ([], [make(tmp_path)[0]]):
        net = Gan(gen_every=3)
        lightning_trainer(tmp_path, callbacks).fit(net, loader(20))
        found.append(weights(net))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_hooks_exist_only_around_steps_that_are_due(tmp_path: Path) -> None:
    """With a check every 5th step of each optimizer, most batches see no hook."""
    hooked = []

    class Look(Callback):
        def on_before_backward(self, *args: Any) -> None:
            hooked.append(bool(module_globals._global_forward_hooks))

    callback, sink = make(tmp_path, check_every=5)
    lightning_trainer(tmp_path, [callback, Look()]).fit(Gan(), loader(11))
    assert [m.step for m in of(sink, Measurement)] == [0, 1, 10, 11, 20, 21]
    assert [place for place, seen in enumerate(hooked) if seen] == [0, 1, 9, 10, 11, 19, 20, 21]


def test_a_resumed_fit_goes_on_with_both_optimizers(tmp_path: Path) -> None:
    """Steps, counts and baselines of each come from the checkpoint; replay gives the same."""
    saved = str(tmp_path / "saved.ckpt")
    first, _ = make(tmp_path)
    trainer = lightning_trainer(tmp_path, [first])
    trainer.fit(Gan(2), loader(20))
    trainer.save_checkpoint(saved)
    second, sink = make(tmp_path)
    trainer = lightning_trainer(tmp_path, [second], max_epochs=2)
    trainer.fit(Gan(2, explode_at=1), loader(4), ckpt_path=saved)
    assert of(sink, RunResumed)[0].restored
    assert {(a.lane, a.step) for a in of(sink, Alarm)} == {(GEN, 32)}
    assert replay_run(tmp_path / "run").same


def test_one_scaler_serves_both_optimizers(tmp_path: Path) -> None:
    """Norms and losses of both are unscaled under fp16; what cannot be told apart is said."""
    found = []
    for plugins in (
        [],
        [MixedPrecision("16-mixed", "cpu", scaler=GradScaler("cpu", init_scale=64.0))],
    ):
        callback, sink = make(tmp_path / str(len(plugins)))
        lightning_trainer(tmp_path, [callback], plugins=plugins).fit(Gan(), loader(3))
        found.append(sink)
    for plain, scaled in zip(*(of(sink, Measurement) for sink in found), strict=True):
        assert scaled.scale == 64.0
        assert scaled.lane == plain.lane
        assert scaled.norms == pytest.approx(plain.norms, rel=0.1)
        assert scaled.loss == pytest.approx(plain.loss, rel=1e-2)
    lines = {m.name: m for m in of(found[1], Manifest)[-1].mechanisms}
    assert "which of them skipped" in lines["loss_scaling"].reason
