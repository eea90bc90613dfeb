"""What users do with the callback in the middle of a fit."""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback
from lightning_support import make, of
from support import lightning_net, lightning_trainer, loader

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
