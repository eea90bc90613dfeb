"""Packages that people use with the Trainer: TRL, Optuna, bitsandbytes, Weights & Biases."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_support import Logged, make, of, tiny_llama, token_rows
from support import Toy, ToyNet, hf_arguments, hf_trainer, kill_unit
from transformers import PreTrainedTokenizerFast, Trainer

from ormas_core import (
    TROUBLE,
    Certificate,
    CertificateRefused,
    Manifest,
    Measurement,
    RunEnd,
    RunStart,
    Stage,
    Status,
    read_record,
    verify_record,
)

# peft asks by the name that every version of transformers knows.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`(is_)?gradient_checkpointing(_kwargs)?` is deprecated:FutureWarning"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of 32 words, made here."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, 32)}}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<eos>")),  # noqa: S106 - a word, not a secret
        pad_token="<pad>",  # noqa: S106 - likewise
        eos_token="<eos>",  # noqa: S106 - likewise
    )


def test_the_sft_trainer_of_trl_is_watched_with_its_adapters(tmp_path: Path) -> None:
    """The real SFTTrainer makes the adapters itself; norms are its own, nothing alarms."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    callback, sink = make(tmp_path)
    norms, losses = Logged("grad_norm"), Logged("loss")
    arguments = SFTConfig(
        output_dir=str(tmp_path / "hf"),
        max_steps=4,
        per_device_train_batch_size=2,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        dataloader_pin_memory=False,
        max_length=8,
    )
    rows = [{"input_ids": row["input_ids"].tolist()} for row in token_rows()]
    trainer = SFTTrainer(
        model=tiny_llama(),
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer(),
        peft_config=LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
        callbacks=[callback, norms, losses],
    )
    trainer.train()
    seen = of(sink, Measurement)
    assert {m.stage for m in seen} == {Stage.PRE_CLIP}
    totals = [math.hypot(*(norm for norm in m.norms if norm)) for m in seen]
    assert totals == pytest.approx(norms.values, rel=1e-4)
    assert all(".lora_" in layer for layer in seen[0].layers)
    assert len(seen[0].layers) == 4
    assert not [e for e in sink.events if isinstance(e, TROUBLE)]
    assert [m.loss for m in seen] == pytest.approx(losses.values, rel=1e-3)


def test_case_38_trials_of_optuna_have_a_record_each(tmp_path: Path) -> None:
    """Three real trials, one of them pruned: nothing is carried over, and each says what it was."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    callback, sink = make(tmp_path)
    arguments = hf_arguments(
        tmp_path / "hf", max_steps=6, eval_strategy="steps", eval_steps=3, save_strategy="no"
    )
    trainer = Trainer(
        model_init=lambda _: ToyNet(),
        args=arguments,
        train_dataset=Toy(),
        eval_dataset=Toy(2),
        callbacks=[callback],
    )

    class PruneSecond(optuna.pruners.BasePruner):
        def prune(self, study: Any, trial: Any) -> bool:
            return bool(trial.number == 1)

    trainer.hyperparameter_search(
        hp_space=lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-3)},
        n_trials=3,
        direction="minimize",
        backend="optuna",
        pruner=PruneSecond(),
        sampler=optuna.samplers.RandomSampler(seed=0),
    )
    starts, ends = of(sink, RunStart), of(sink, RunEnd)
    assert len({start.run_id for start in starts}) == 3
    assert [start.segment for start in starts] == [0, 0, 0]
    assert [(end.steps, end.error) for end in ends] == [(6, None), (3, "TrialPruned"), (6, None)]
    assert ends[1].status is Status.INTERRUPTED
    for number in range(3):
        folder = tmp_path / "run" / f"trial-{number}"
        assert verify_record(folder).complete
        events = [line.event for line in read_record(folder)]
        (manifest, *_) = [e for e in events if isinstance(e, Manifest)]
        (line,) = [m for m in manifest.mechanisms if m.name == "trial"]
        assert line.reason.startswith(f"trial-{number}: learning_rate=")
    assert not (tmp_path / "run" / "record.jsonl").exists()
    # Afterwards the callback serves an ordinary training, in its own folder.
    hf_trainer(ToyNet(), hf_arguments(tmp_path / "hf", max_steps=2), [callback]).train()
    assert verify_record(tmp_path / "run").complete


def test_adam_in_eight_bits_cannot_be_certified_and_that_is_said(tmp_path: Path) -> None:
    """Bitsandbytes keeps rounded moments: a dead unit is refused, with the optimizer as reason."""
    from bitsandbytes.optim import Adam8bit

    net = ToyNet()
    kill_unit(net)
    callback, sink = make(tmp_path)
    optimizer = Adam8bit(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    trainer = Trainer(
        model=net,
        args=hf_arguments(tmp_path / "hf", max_steps=4),
        train_dataset=Toy(),
        optimizers=(optimizer, schedule),
        callbacks=[callback],
    )
    trainer.train()
    assert of(sink, RunStart)[0].optimizer == "Adam8bit"
    assert len(of(sink, Measurement)) == 4
    assert not [c for c in of(sink, Certificate) if c.cls != "closed_now"]
    reasons = [refused.reason for refused in of(sink, CertificateRefused) if refused.layer == "fc1"]
    assert any("Adam8bit" in reason for reason in reasons), reasons


def test_wandb_offline_reports_beside_the_monitor(tmp_path: Path, offline_wandb: Any) -> None:
    """`report_to="wandb"` without a network: both work, and the record is complete."""
    callback, sink = make(tmp_path)
    arguments = hf_arguments(
        tmp_path / "hf",
        max_steps=3,
        report_to="wandb",
        run_name="toy",
        logging_strategy="steps",
        logging_steps=1,
    )
    try:
        hf_trainer(ToyNet(), arguments, [callback]).train()
        assert offline_wandb.run is not None
    finally:
        offline_wandb.finish()
    assert len(of(sink, Measurement)) == 3
    assert verify_record(tmp_path / "run").complete
    assert list((tmp_path / "wandb").glob("offline-run-*"))
