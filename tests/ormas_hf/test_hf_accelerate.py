"""What accelerate and transformers put around a model: precision, compiling, adapters."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_support import Logged, layer_norms, make, of, tiny_llama, token_rows
from peft import LoraConfig, get_peft_model
from support import ToyNet, hf_arguments, hf_trainer, plant_explosion
from torch.amp import GradScaler
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
)

from ormas_core import (
    TROUBLE,
    Alarm,
    Certificate,
    Manifest,
    Measurement,
    MemorySink,
    MonitorError,
    RunStart,
    Stage,
    verify_record,
)

# The names that every version knows; peft uses them too.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`(is_)?gradient_checkpointing(_kwargs)?` is deprecated:FutureWarning"
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


def test_what_the_launcher_of_accelerate_compiles_is_known_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`accelerate launch --dynamo_backend` sets a variable; the arguments ask for nothing."""
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "eager")
    callback, sink = make(tmp_path)
    arguments = hf_arguments(tmp_path / "hf", max_steps=3)
    trainer = hf_trainer(ToyNet(), arguments, [callback])
    trainer.train()
    assert not arguments.torch_compile
    assert trainer.model_wrapped is not trainer.model
    lines = {m.name: m for m in of(sink, Manifest)[-1].mechanisms}
    assert lines["channel_maxima"].state.value == "unobservable"
    assert "compiled code" in lines["loss"].reason


def causal(folder: Path, model: Any, **changes: Any) -> tuple[Any, MemorySink, Any]:
    """Train a causal model four steps of two rows; return model, events and what was logged."""
    callback, sink = make(folder)
    norms = Logged("grad_norm")
    settings = {
        "per_device_train_batch_size": 2,
        "max_steps": 4,
        "max_grad_norm": 1.0,
        "logging_strategy": "steps",
        "logging_steps": 1,
        **changes,
    }
    arguments = hf_arguments(folder / "hf", **settings)
    hf_trainer(model, arguments, [callback, norms], train_dataset=token_rows()).train()
    return model, sink, norms


def assert_totals_are_the_trainers(sink: MemorySink, norms: Any) -> None:
    """The total of the layers is what the Trainer found before it clipped."""
    totals = [math.hypot(*(n for n in found.values() if n)) for found in layer_norms(sink)]
    assert totals == pytest.approx(norms.values, rel=1e-4)
    assert {m.stage for m in of(sink, Measurement)} == {Stage.PRE_CLIP}
    factors = [m.clip_factor for m in of(sink, Measurement)]
    assert factors == pytest.approx([min(1.0, 1.0 / total) for total in totals], rel=1e-4)


def test_bf16_autocast_is_watched_at_full_precision(tmp_path: Path) -> None:
    """Activations are bfloat16, gradients float32: norms are those the Trainer has."""
    _, sink, norms = causal(tmp_path, tiny_llama(), bf16=True)
    assert_totals_are_the_trainers(sink, norms)
    assert {m.gradient_type for m in of(sink, Measurement)} == {"bfloat16"}
    assert not of(sink, MonitorError)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_nothing_that_is_measured(
    tmp_path: Path, *, reentrant: bool
) -> None:
    """Both kinds: norms and loss are those without it; the order too, but for the re-entrant one.

    Its first pass is without gradients, as validation is, so layers go by their place in the model.
    """
    _, plain, _ = causal(tmp_path / "plain", tiny_llama(num_hidden_layers=2))
    model, sink, norms = causal(
        tmp_path / "saved",
        tiny_llama(num_hidden_layers=2),
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": reentrant},
    )
    assert model.is_gradient_checkpointing
    assert_totals_are_the_trainers(sink, norms)
    for ours, theirs in zip(layer_norms(sink), layer_norms(plain), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
    for found, expected in zip(of(sink, Measurement), of(plain, Measurement), strict=True):
        assert reentrant or found.layers == expected.layers
        assert found.loss == pytest.approx(expected.loss, rel=1e-5)


def test_tied_weights_are_reported_once(tmp_path: Path) -> None:
    """The head shares the embedding's weight: one norm, and the manifest names the other."""
    _, sink, norms = causal(tmp_path, tiny_llama(tie_word_embeddings=True))
    assert_totals_are_the_trainers(sink, norms)
    assert "model.embed_tokens" in layer_norms(sink)[0]
    assert "lm_head" not in layer_norms(sink)[0]
    lines = [m for m in of(sink, Manifest)[0].mechanisms if m.layers == ("lm_head",)]
    assert [(m.name, m.state.value) for m in lines] == [("gradient_norms", "partial")]
    assert "counted in model.embed_tokens" in lines[0].reason


def test_adapters_are_watched_and_a_frozen_base_is_no_finding(tmp_path: Path) -> None:
    """LoRA: layers have the names of `named_modules()`, and what is frozen is unused, not ill."""
    config = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    model, sink, norms = causal(tmp_path, get_peft_model(tiny_llama(), config))
    assert_totals_are_the_trainers(sink, norms)
    own = "base_model.model.model.layers.0.self_attn.q_proj"
    assert set(layer_norms(sink)[0]) == {f"{own}.lora_A.default", f"{own}.lora_B.default"}
    assert f"{own}.lora_A.default" in dict(model.named_modules())
    assert not [e for e in sink.events if isinstance(e, TROUBLE)]
    lines = {m.name: m for m in of(sink, Manifest)[0].mechanisms if m.name == "gradient_norms"}
    frozen = [m for m in of(sink, Manifest)[0].mechanisms if f"{own}.base_layer" in m.layers]
    assert [m.state.value for m in frozen] == ["unused"], lines


def test_adafactor_has_no_certificates_and_says_so(tmp_path: Path) -> None:
    """Gradients are judged as ever; the optimizer is named."""
    callback, sink = make(tmp_path)
    model = tiny_llama()
    arguments = hf_arguments(
        tmp_path / "hf", optim="adafactor", max_steps=3, per_device_train_batch_size=2
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=token_rows(), callbacks=[callback])
    trainer.train()
    assert of(sink, RunStart)[0].optimizer == "Adafactor"
    assert len(layer_norms(sink)) == 3
    assert not of(sink, Certificate)
    assert not of(sink, MonitorError)


def test_the_seq2seq_trainer_is_a_trainer(tmp_path: Path) -> None:
    """With generation in its evaluations, which is not training and is not observed."""
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=32,
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
        max_new_tokens=4,
    )
    callback, sink = make(tmp_path)
    norms = Logged("grad_norm")
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(tmp_path / "hf"),
        predict_with_generate=True,
        eval_strategy="steps",
        eval_steps=2,
        max_steps=4,
        per_device_train_batch_size=2,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    trainer = Seq2SeqTrainer(
        model=T5ForConditionalGeneration(config),
        args=arguments,
        train_dataset=token_rows(),
        eval_dataset=token_rows(2),
        callbacks=[callback, norms],
    )
    trainer.train()
    assert_totals_are_the_trainers(sink, norms)
    assert len(layer_norms(sink)) == 4
    assert verify_record(tmp_path / "run").complete
