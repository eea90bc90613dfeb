"""What is said of layers, losses and optimizers that are off for a while, or not seen at all."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning_support import Gan, make, of
from support import lightning_net, lightning_trainer, loader, toy_loss
from torch import Tensor

from ormas_core import Alarm, Manifest, NoGradients, RunEnd, Status, describe


def test_layers_that_another_optimizers_turn_switches_off_are_not_said_to_be_frozen(
    tmp_path: Path,
) -> None:
    """`toggle_optimizer` takes `requires_grad` from them for the time of one update."""
    callback, sink = make(tmp_path)
    lightning_trainer(tmp_path, [callback]).fit(Gan(gen_every=2), loader(30))
    said = [line for manifest in of(sink, Manifest) for line in manifest.mechanisms]
    assert not [line for line in said if line.name == "gradient_norms" and line.reason]


def test_a_fit_whose_optimizer_was_exchanged_is_not_called_healthy(tmp_path: Path) -> None:
    """The steps of the new one are not checked, which the manifest says and the verdict knows."""

    class Exchange(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
            if trainer.global_step == 20:
                trainer.strategy.optimizers = [torch.optim.Adam(module.parameters())]

    callback, sink = make(tmp_path)
    lightning_trainer(tmp_path, [callback, Exchange()]).fit(lightning_net(), loader(40))
    (end,) = of(sink, RunEnd)
    assert (end.checks, end.steps) == (20, 40)
    assert end.status is Status.PARTLY_MONITORED
    (line,) = [m for m in of(sink, Manifest)[-1].mechanisms if m.name == "optimizers"]
    assert "Adam" in line.reason


def test_a_loss_that_went_backward_unseen_is_said_with_what_to_do(tmp_path: Path) -> None:
    """Neither `loss.backward()` nor a bare optimizer tells Lightning, and so the callback."""

    class Bare(type(lightning_net())):  # type: ignore[misc] - a class made by a function
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
            optimizer = self.optimizers(use_pl_optimizer=False)
            optimizer.zero_grad()
            toy_loss(self, **batch).backward()
            optimizer.step()

    callback, sink = make(tmp_path)
    lightning_trainer(tmp_path, [callback]).fit(Bare(), loader(10))
    (end,) = of(sink, RunEnd)
    assert end.status is Status.NOT_MONITORED
    (line,) = [m for m in of(sink, Manifest)[-1].mechanisms if m.name == "loss"]
    assert "self.manual_backward(loss)" in line.reason
    assert "use_pl_optimizer=False" in line.reason


def test_layers_whose_optimizer_is_not_to_be_checked_do_not_spoil_the_verdict(
    tmp_path: Path,
) -> None:
    """`optimizer_index` asks for the steps of one; the layers of the others are not missed."""
    callback, sink = make(tmp_path, optimizer_index=1)
    lightning_trainer(tmp_path, [callback]).fit(Gan(), loader(30))
    (end,) = of(sink, RunEnd)
    assert (end.status, end.checks) == (Status.HEALTHY, 30)
    said = [m for m in of(sink, Manifest)[-1].mechanisms if m.name == "gradient_norms"]
    assert not [line for line in said if line.reason]


# It is on purpose.
@pytest.mark.filterwarnings("ignore:`training_step` returned:UserWarning")
def test_a_check_at_a_skipped_batch_is_said_to_be_one_without_backward(tmp_path: Path) -> None:
    """`training_step` returns None: no layer is blamed, and the run was not seen as a whole."""
    skipping = type("Skipping", (type(lightning_net()),), {"training_step": _skip_some})
    callback, sink = make(tmp_path)
    lightning_trainer(tmp_path, [callback]).fit(skipping(), loader(30))
    (found,) = of(sink, NoGradients)
    assert "Nothing went backward in this step" in describe(found)
    assert not of(sink, Alarm)
    (end,) = of(sink, RunEnd)
    assert (end.status, end.checks) == (Status.PARTLY_MONITORED, 30)


def _skip_some(self: Any, batch: dict[str, Tensor], batch_idx: int) -> Tensor | None:
    return None if 20 <= batch_idx < 25 else toy_loss(self, **batch)
