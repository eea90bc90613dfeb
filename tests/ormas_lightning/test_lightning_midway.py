"""What users do with the callback in the middle of a fit."""

import contextlib
import gc
import math
import weakref
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback
from lightning_support import Totals, lit, make, of
from support import (
    global_hooks,
    layer_norms,
    lightning_net,
    lightning_trainer,
    loader,
    toy_loss,
)
from torch import Tensor

from ormas_core import Measurement, RunEnd, Status


def test_a_callback_added_in_the_middle_watches_from_there_on(tmp_path: Path) -> None:
    """Lightning sends it no beginning; its steps are counted from its own."""

    class Add(Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            if trainer.global_step == 10:
                trainer.callbacks.append(callback)

    callback, sink = make(tmp_path)
    lightning_trainer(tmp_path, [Add()]).fit(lightning_net(), loader(40))
    (end,) = of(sink, RunEnd)
    assert (end.status, end.steps) == (Status.HEALTHY, 30)
    assert [m.step for m in of(sink, Measurement)] == list(range(30))


def test_gradients_of_several_backward_passes_are_read_after_the_last(tmp_path: Path) -> None:
    """As where two tasks have a loss each: the norms are those of the step that is made."""

    def training_step(self: Any, batch: dict[str, Tensor], batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        for weight in (1.0, 10.0):
            self.manual_backward(weight * toy_loss(self, **batch))
        optimizer.step()

    callback, sink = make(tmp_path)
    totals, net = Totals(), lit(training_step=training_step)
    net.automatic_optimization = False
    lightning_trainer(tmp_path, [callback, totals]).fit(net, loader(6))
    found = [math.hypot(*(norm for norm in norms.values() if norm)) for norms in layer_norms(sink)]
    assert len(found) == 6
    assert found == pytest.approx(totals.values, rel=1e-4)


def test_a_fit_that_is_dropped_after_an_exception_leaves_nothing(tmp_path: Path) -> None:
    """An exception in a sampled step: hooks and model go with the trainer, the record is ended."""

    def training_step(self: Any, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss = toy_loss(self, **batch)
        if batch_idx == 2:
            raise RuntimeError("of the user")
        return loss

    callback, sink = make(tmp_path)
    trainer, net = lightning_trainer(tmp_path, [callback]), lit(training_step=training_step)
    model = weakref.ref(net)
    with contextlib.suppress(RuntimeError):
        trainer.fit(net, loader(6))
    assert not global_hooks()
    del trainer, net, callback
    gc.collect()
    assert model() is None
    (end,) = of(sink, RunEnd)
    assert (end.status, end.checks, end.error) == (Status.INTERRUPTED, 2, "RuntimeError")
