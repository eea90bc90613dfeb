"""What accelerate and transformers put around a model: precision, compiling, adapters."""

from pathlib import Path

import pytest
from hf_support import make, of
from support import ToyNet, hf_arguments, hf_trainer, plant_explosion
from torch.amp import GradScaler

from ormas_core import (
    Alarm,
    Manifest,
    Measurement,
    Stage,
)


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_real_scaler_gives_unscaled_norms(clip: float, tmp_path: Path) -> None:
    """With an active CPU scaler, norms are those without one."""
    found = []
    for scaled in (False, True):
        callback, sink = make(tmp_path / str(scaled))
        arguments = hf_arguments(tmp_path / "hf", max_steps=3, max_grad_norm=0.0)
        trainer = hf_trainer(ToyNet(), arguments, [callback])
        if scaled:
            trainer.accelerator.scaler = GradScaler("cpu")
        trainer.args.max_grad_norm = clip if not scaled else 0.0
        trainer.train()
        found.append(of(sink, Measurement))
    plain, scaled_run = found
    assert [m.scale for m in scaled_run] == [65536.0] * 3
    assert {m.stage for m in scaled_run} == {Stage.SCALED}
    assert scaled_run[0].norms == pytest.approx(plain[0].norms, rel=1e-5)


def test_a_compiled_model_is_watched_by_its_parameters(tmp_path: Path) -> None:
    """With `torch_compile` no hook is used, gradients are judged, and the manifest says why."""
    net = ToyNet()
    plant_explosion(net, 20)
    callback, sink = make(tmp_path)
    arguments = hf_arguments(
        tmp_path / "hf", torch_compile=True, torch_compile_backend="eager", max_grad_norm=0.0
    )
    hf_trainer(net, arguments, [callback]).train()
    lines = {m.name: m for m in of(sink, Manifest)[-1].mechanisms}
    assert lines["channel_maxima"].state.value == "unobservable"
    assert lines["loss"].state.value == "off"
    assert of(sink, Alarm)[0].layer == "fc2"
