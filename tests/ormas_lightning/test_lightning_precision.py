"""Precision, accumulation, clipping and shortened data under Lightning."""

import math
from pathlib import Path

import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning_support import lit, make, scaled_step
from support import lightning_net, lightning_trainer, loader, of
from torch import Tensor
from torch.amp import GradScaler

from ormas_core import Measurement, RunEnd, SkippedStep, Stage


def fit(folder: Path, batches: int = 3, net: object = None, **options: object) -> list[Measurement]:
    """Fit with every step checked and return the measurements."""
    callback, sink = make(folder)
    net = net if net is not None else lightning_net()
    lightning_trainer(folder, [callback], **options).fit(net, loader(batches))
    return of(sink, Measurement)


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16-mixed", 0.1), ("64-true", 1e-4)])
def test_other_precisions_give_the_numbers_of_float32(
    tmp_path: Path, precision: str, tolerance: float
) -> None:
    """Norms and losses agree to the precision's own error, and no scaler is claimed."""

    def double(self: torch.nn.Module, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        dtype = self.fc1.weight.dtype
        return scaled_step({})(self, {**batch, "x": batch["x"].to(dtype)}, batch_idx)

    plain = fit(tmp_path / "32")
    found = fit(tmp_path / precision, net=lit(training_step=double), precision=precision)
    for expected, seen in zip(plain, found, strict=True):
        assert seen.norms == pytest.approx(expected.norms, rel=tolerance)
        assert seen.loss == pytest.approx(expected.loss, rel=tolerance)
        assert (seen.scale, seen.stage) == (None, Stage.UNSCALED)
    kinds = {"bf16-mixed": "bfloat16", "64-true": "float64"}
    assert {m.gradient_type for m in found} == {kinds[precision]}


def test_an_overflow_under_a_real_scaler_is_a_skipped_step(tmp_path: Path) -> None:
    """The layer that overflowed is named, `step` does not count the update, nothing is critical."""
    scaler = GradScaler("cpu", init_scale=2.0**15)
    callback, sink = make(tmp_path)
    trainer = lightning_trainer(
        tmp_path, [callback], plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)]
    )
    trainer.fit(lit(training_step=scaled_step({3: 1e30})), loader(8))
    assert scaler.get_scale() == 2.0**14
    assert [(e.step, e.layer) for e in of(sink, SkippedStep)] == [(3, "fc3")]
    assert [m.step for m in of(sink, Measurement)] == [0, 1, 2, 3, 3, 4, 5, 6]
    assert of(sink, RunEnd)[0].steps == 7


def test_accumulated_gradients_are_judged_once_for_each_update(tmp_path: Path) -> None:
    """8 batches accumulated by 4 give the two checks of one batch of four times the size."""
    parts = fit(tmp_path / "parts", 8, accumulate_grad_batches=4)
    callback, sink = make(tmp_path / "whole")
    lightning_trainer(tmp_path, [callback]).fit(lightning_net(), loader(8, batch_size=64))
    whole = of(sink, Measurement)
    assert len(parts) == 2
    for expected, seen in zip(whole, parts, strict=False):
        assert seen.norms == pytest.approx(expected.norms, rel=1e-4)
        assert seen.loss == pytest.approx(expected.loss, rel=1e-4)


def test_the_clip_factor_is_that_of_the_trainer(tmp_path: Path) -> None:
    """Norms are read before clipping; the factor is what the optimizer's gradients show after."""
    clipped = []

    def look(self: torch.nn.Module, *args: object) -> None:
        clipped.append(math.sqrt(sum(float(p.grad.square().sum()) for p in self.parameters())))

    found = fit(tmp_path, net=lit(on_train_batch_end=look), gradient_clip_val=0.05)
    assert {m.stage for m in found} == {Stage.PRE_CLIP}
    for seen, after in zip(found, clipped, strict=True):
        total = math.hypot(*seen.norms)
        assert seen.clip_norm == 0.05 < total
        assert seen.clip_factor * total == pytest.approx(after, rel=1e-4)


@pytest.mark.parametrize("how", ["value", "own"])
def test_another_way_of_clipping_has_no_factor(tmp_path: Path, how: str) -> None:
    """By value, or by a method of the user's own: norms are those before it all the same."""
    plain = fit(tmp_path / "plain", 1)

    def own(self: torch.nn.Module, optimizer: object, *args: object, **kwargs: object) -> None:
        for parameter in self.parameters():
            parameter.grad *= 0.5

    net = lit(configure_gradient_clipping=own) if how == "own" else lightning_net()
    algorithm = "value" if how == "value" else None
    found = fit(tmp_path / how, 1, net, gradient_clip_val=1e-3, gradient_clip_algorithm=algorithm)
    assert found[0].norms == plain[0].norms
    assert found[0].clip_factor is None


def test_overfit_batches_is_an_ordinary_fit(tmp_path: Path) -> None:
    """Two batches, three epochs: six checks, and steps that go on from epoch to epoch."""
    found = fit(tmp_path, 8, overfit_batches=2, max_epochs=3)
    assert [m.step for m in found] == list(range(6))
    assert found[4].loss < found[0].loss
