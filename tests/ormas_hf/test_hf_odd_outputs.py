"""Models that return what cannot be read: the training goes on, and it is said."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hf_support import make, of
from support import Toy, ToyNet, hf_arguments
from torch import Tensor
from transformers import Trainer

from ormas_core import Manifest, Measurement, MonitorError


class _Lazy(Mapping[str, Any]):
    """An output that refuses what was not asked for."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.found = found

    def __getitem__(self, key: str) -> Any:
        if key == "attentions":
            raise RuntimeError("pass output_attentions=True")
        return self.found[key]

    def __iter__(self) -> Iterator[str]:
        return iter(("attentions", *self.found))

    def __len__(self) -> int:
        return len(self.found) + 1


def test_an_output_that_cannot_be_read_harms_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, and the manifest says that no loss was seen and gradients are clipped."""

    class Net(ToyNet):
        def forward(self, x: Tensor, labels: Tensor) -> Any:
            return _Lazy(super().forward(x, labels))

    class Own(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
            loss: Tensor = model(**inputs)["loss"]
            return loss

    callback, sink = make(tmp_path)
    arguments = hf_arguments(tmp_path / "hf", max_steps=3, max_grad_norm=1.0)
    Own(model=Net(), args=arguments, train_dataset=Toy(4), callbacks=[callback]).train()
    assert len(of(sink, Measurement)) == 3
    assert not of(sink, MonitorError)
    assert [record.message.count("output_attentions") for record in caplog.records].count(1) == 1
    said = {line.name: line for line in of(sink, Manifest)[-1].mechanisms}
    assert said["gradient_stage"].reason.startswith("gradients are seen after clipping")
