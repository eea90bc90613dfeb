"""The user's objects under the Trainer: during and after training they are as without a monitor."""

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_support import make, of
from support import BATCH, FEATURES, ToyNet, global_hooks, hf_arguments, hf_trainer, loader
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from transformers import TrainerCallback

from ormas_core import Measurement
from ormas_hf import HFMonitorCallback


def look(net: nn.Module, optimizer: Any) -> dict[str, Any]:
    """Return everything about a model and its optimizer that a hook or an attribute would show."""
    modules = dict(net.named_modules())
    return {
        "keys": list(net.state_dict()),
        "attributes": {name: sorted(vars(module)) for name, module in modules.items()},
        "hooks": {
            name: [len(value) for key, value in sorted(vars(module).items()) if "hooks" in key]
            for name, module in modules.items()
        },
        "parameter hooks": [p._backward_hooks for p in net.parameters()],
        "optimizer": sorted(vars(optimizer)),
        "size": len(saved(net)),
    }


def saved(net: nn.Module) -> bytes:
    """Return the bytes of the whole model."""
    buffer = io.BytesIO()
    torch.save(net, buffer)
    return buffer.getvalue()


class Uses(TrainerCallback):
    """Does in the middle of sampled steps what users do with a model."""

    def __init__(self) -> None:
        self.average: AveragedModel | None = None
        self.exported: list[Any] = []
        self.seen: list[dict[str, Any]] = []
        self.pickled: list[int] = []
        self.others: list[Any] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        """Before the first forward pass, with our process-wide hook in place."""
        net = kw["model"]
        self.seen.append(look(net, kw["optimizer"]))
        if self.average is None:
            self.average = AveragedModel(net)
        self.average.update_parameters(net)
        copy.deepcopy(net)
        self.pickled.append(len(pickle.dumps(self.others)))

    def on_substep_end(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        """Between two micro-batches, with gradients in place."""
        if state.global_step:
            return
        batch = next(iter(loader(1)))
        twin = copy.deepcopy(kw["model"]).eval()
        self.exported = [
            # Not strictly, as by default since torch 2.7: 2.6 can do that under no global hook.
            torch.export.export(twin, (), kwargs=batch, strict=False),
            torch.jit.trace(Logits(twin), batch["x"]),
        ]
        self.seen.append(look(kw["model"], kw["optimizer"]))


class Logits(nn.Module):
    """The toy network without its loss."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        hidden = torch.relu(self.net.fc2(torch.relu(self.net.fc1(x))))
        return self.net.fc3(hidden)  # type: ignore[no-any-return]


# Users trace all the same.
@pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning")
def test_saving_copying_averaging_and_exporting_are_as_without_a_monitor(tmp_path: Path) -> None:
    """In the middle of sampled steps, between micro-batches, and after the training."""
    found = []
    for watched in (False, True):
        net, uses = ToyNet(), Uses()
        callback, sink = make(tmp_path / str(watched))
        uses.others = [callback] if watched else []
        arguments = hf_arguments(
            tmp_path / "hf", max_steps=3, gradient_accumulation_steps=2, max_grad_norm=1.0
        )
        # Ours comes first: whatever it does at a step's begin is done when the others look.
        trainer = hf_trainer(net, arguments, [callback, uses] if watched else [uses])
        trainer.train()
        assert len(of(sink, Measurement)) == (3 if watched else 0)
        assert len(uses.seen) == 4
        program, traced = uses.exported
        x = torch.ones(BATCH, FEATURES)
        labels = torch.zeros(BATCH, dtype=torch.long)
        assert uses.average is not None
        found.append(
            {
                "during": uses.seen,
                "after": look(net, trainer.optimizer),
                "average": {n: v.tolist() for n, v in uses.average.state_dict().items()},
                "exported": program.module()(x=x, labels=labels)["loss"].item(),
                "traced": traced(x).tolist(),
                "ours": b"ormas" in saved(net),
            }
        )
    assert found[0] == found[1]
    assert found[1]["ours"] is False
    assert not global_hooks()


def test_case_46_the_callback_pickles_before_during_and_after(tmp_path: Path) -> None:
    """What comes out has the settings, watches nothing, and trains in a folder of its own."""
    callback = HFMonitorCallback(out=tmp_path / "run", check_every=1, verbose=False)
    copies = [pickle.dumps(callback)]

    class During(TrainerCallback):
        def on_substep_end(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
            copies.append(pickle.dumps(callback))

    arguments = hf_arguments(tmp_path / "hf", max_steps=2, gradient_accumulation_steps=2)
    hf_trainer(ToyNet(), arguments, [callback, During()]).train()
    copies.append(pickle.dumps(callback))
    assert len(copies) == 4
    for each in copies:
        again = pickle.loads(each)  # noqa: S301 - our own bytes
        assert again.monitor is None
        assert again._options["check_every"] == 1
    fresh = pickle.loads(copies[0])  # noqa: S301 - likewise
    fresh._runs.current.out = str(tmp_path / "other")
    hf_trainer(ToyNet(), arguments, [fresh]).train()
    assert (tmp_path / "other" / "record.jsonl").exists()
