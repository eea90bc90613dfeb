"""What people do to a model before Lightning trains it: compile, tie, adapt, penalise."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from causal_support import tiny_llama, token_rows
from lightning.pytorch import LightningModule
from lightning_support import assert_closed_now_at_most, clipped_fit, lit, make
from support import (
    FEATURES,
    kill_unit,
    layer_norms,
    lightning_net,
    lightning_trainer,
    loader,
    of,
    plant_explosion,
    toy_loss,
    weights,
)
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from ormas_core import (
    TROUBLE,
    Alarm,
    Certificate,
    EvalMode,
    Manifest,
    Measurement,
    MemorySink,
    RunStart,
    StatisticsAtOdds,
)


def lines(sink: MemorySink, name: str) -> list[Any]:
    """Return the last manifest's lines about a mechanism."""
    return [m for m in of(sink, Manifest)[-1].mechanisms if m.name == name]


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_nothing_that_is_measured(
    tmp_path: Path, *, reentrant: bool
) -> None:
    """Both kinds of `torch.utils.checkpoint`: order, norms and loss are those without it."""

    def training_step(self: Any, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            return torch.relu(self.fc2(torch.relu(x)))

        hidden = checkpoint(inner, self.fc1(batch["x"]), use_reentrant=reentrant)
        return nn.functional.cross_entropy(self.fc3(hidden), batch["labels"])

    plain = clipped_fit(tmp_path / "plain", lightning_net())
    saved = clipped_fit(tmp_path / "saved", lit(training_step=training_step))
    for found, expected in zip(of(saved, Measurement), of(plain, Measurement), strict=True):
        assert found.layers == expected.layers
        assert found.norms == pytest.approx(expected.norms, rel=1e-5)
        assert found.loss == pytest.approx(expected.loss, rel=1e-5)


def compile_wrapped(net: Any) -> Any:
    return torch.compile(net, backend="eager")


def compile_in_place(net: Any) -> Any:
    net.compile(backend="eager")
    return net


def compile_a_layer(net: Any) -> Any:
    net.fc2 = torch.compile(net.fc2, backend="eager")
    return net


# Of Lightning's own code, and of torch's where it compiles a region.
@pytest.mark.filterwarnings(
    "ignore:.*isinstance.treespec, LeafSpec.", "ignore:The .grad attribute of a Tensor that is not"
)
@pytest.mark.parametrize("how", [compile_wrapped, compile_in_place, compile_a_layer])
def test_case_42_compiled_code_is_watched_by_its_parameters(
    tmp_path: Path, how: Callable[[Any], Any]
) -> None:
    """Compiled and run before the fit: no hook is used, which is said, and gradients are judged.

    The weights are those of a fit without the callback.
    """
    found = []
    for watched in (False, True):
        torch._dynamo.reset()
        net = lightning_net()
        plant_explosion(net, 20)
        compiled = how(net)
        with torch.no_grad():
            toy_loss(net, **next(iter(loader())))
        callback, sink = make(tmp_path)
        lightning_trainer(tmp_path, [callback] if watched else []).fit(compiled, loader())
        found.append(list(weights(net).values()))
    assert all(map(torch.equal, *found))
    torch._dynamo.reset()
    assert {layer for m in of(sink, Measurement) for layer in m.layers} == {"fc1", "fc2", "fc3"}
    assert all(m.loss is not None and m.channels == () for m in of(sink, Measurement))
    assert of(sink, Alarm)[0].layer == "fc2"
    for name in ("channel_maxima", "output_gradients"):
        (line,) = lines(sink, name)
        assert line.state.value == "unobservable"
        assert line.layers == (("fc2",) if how is compile_a_layer else ("LitNet",))
        assert "compiled code" in line.reason


class Causal(LightningModule):
    """A language model as people wrap it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = self.model(**batch).loss
        return loss

    def configure_optimizers(self) -> Optimizer:
        return torch.optim.SGD((p for p in self.parameters() if p.requires_grad), lr=1e-3)


def tokens() -> DataLoader[Any]:
    """Return four batches of two rows."""
    return DataLoader(token_rows(8), batch_size=2)  # type: ignore[arg-type]


def test_tied_weights_are_reported_once(tmp_path: Path) -> None:
    """The head shares the embedding's weight: one norm, and the manifest names the other."""
    sink = clipped_fit(tmp_path, Causal(tiny_llama(tie_word_embeddings=True)), tokens())
    assert "model.model.embed_tokens" in layer_norms(sink)[0]
    assert "model.lm_head" not in layer_norms(sink)[0]
    (line,) = [m for m in lines(sink, "gradient_norms") if m.layers == ("model.lm_head",)]
    assert line.state.value == "partial"
    assert "counted in model.model.embed_tokens" in line.reason


def adafactor(folder: Path, make_optimizer: Callable[[Any], Optimizer]) -> MemorySink:
    """Fit a network with a dead unit with an optimizer of that name."""
    net = lit(configure_optimizers=lambda self: make_optimizer(self.parameters()))
    kill_unit(net)
    sink = clipped_fit(folder, net)
    assert of(sink, RunStart)[0].optimizer == "Adafactor"
    return sink


def test_adafactor_of_transformers_has_no_certificates_and_says_so(tmp_path: Path) -> None:
    """Gradients are judged as ever; a dead unit is refused, with the optimizer as reason."""
    from transformers.optimization import Adafactor

    sink = adafactor(tmp_path, lambda params: Adafactor(params, lr=1e-3, relative_step=False))
    assert_closed_now_at_most(sink, "Adafactor")


def test_adafactor_of_torch_is_certified(tmp_path: Path) -> None:
    """Same name, another optimizer: its dead unit is stuck for ever."""
    sink = adafactor(tmp_path, lambda params: torch.optim.Adafactor(params, lr=1e-3))
    found = [c.units for c in of(sink, Certificate) if c.cls.value == "absorbing"]
    assert found == [(0,)]


@pytest.mark.filterwarnings("ignore:`(is_)?gradient_checkpointing.*` is deprecated:FutureWarning")
def test_adapters_are_watched_and_a_frozen_base_is_no_finding(tmp_path: Path) -> None:
    """LoRA: layers have the names of `named_modules()`, and what is frozen is unused, not ill."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    net = Causal(get_peft_model(tiny_llama(), config))
    sink = clipped_fit(tmp_path, net, tokens())
    own = "model.base_model.model.model.layers.0.self_attn.q_proj"
    assert set(layer_norms(sink)[0]) == {f"{own}.lora_A.default", f"{own}.lora_B.default"}
    assert f"{own}.lora_A.default" in dict(net.named_modules())
    assert not [e for e in sink.events if isinstance(e, TROUBLE)]
    frozen = [m for m in lines(sink, "gradient_norms") if f"{own}.base_layer" in m.layers]
    assert [m.state.value for m in frozen] == ["unused"]


def test_a_penalty_on_gradients_is_not_taken_for_the_backward_pass(tmp_path: Path) -> None:
    """`torch.autograd.grad` in the step: gradients and loss are those of the update."""

    def training_step(self: Any, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss = toy_loss(self, **batch)
        (slope,) = torch.autograd.grad(loss, self.fc1.weight, create_graph=True)
        losses.append((loss + slope.square().sum()).item())
        return loss + slope.square().sum()

    losses: list[float] = []
    sink = clipped_fit(tmp_path, lit(training_step=training_step))
    assert [m.loss for m in of(sink, Measurement)] == pytest.approx(losses)
    assert not [e for e in sink.events if isinstance(e, TROUBLE)]


@pytest.mark.filterwarnings("ignore:Found 1 module.s. in eval mode")  # Lightning says so too
@pytest.mark.parametrize("trains", [False, True])
def test_case_21_a_frozen_batch_norm_is_named_where_lightning_trains_it(
    tmp_path: Path, *, trains: bool
) -> None:
    """Lightning leaves `eval()` as it is; without it, a frozen norm's statistics go on moving."""

    def training_step(self: Any, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return toy_loss(self, self.bn(batch["x"]), batch["labels"])

    net = lit(training_step=training_step)
    net.bn = nn.BatchNorm1d(FEATURES)
    net.bn.running_mean.fill_(0.1)  # as in a network that was trained before
    net.bn.requires_grad_(requires_grad=False).train(trains)
    callback, sink = make(tmp_path)
    lightning_trainer(tmp_path, [callback]).fit(net, loader())
    assert net.bn.training is trains
    found = [event.drifting for event in of(sink, StatisticsAtOdds)]
    assert found == ([("bn",)] if trains else [])
    assert [event.modules for event in of(sink, EvalMode)] == ([] if trains else [("bn",)])
