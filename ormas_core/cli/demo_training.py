"""The trainings of the demo: digits, a CNN that breaks on schedule, and two Trainers.

The scripts are what a user would write; the callback is the one line added.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from lightning.pytorch import LightningModule, seed_everything
from lightning.pytorch import Trainer as LightningTrainer
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import PrinterCallback, Trainer, TrainingArguments

from ormas_core import Monitor
from ormas_hf import HFMonitorCallback
from ormas_lightning import LightningMonitorCallback

CHECK_EVERY: Final = 5
BATCH: Final = 64
EPOCHS: Final = 7


@dataclass(frozen=True, slots=True)
class Fault:
    """What is broken, from which optimizer step on, and how it should be called."""

    layer: str
    diagnosis: str
    step: int


FAULTS: Final = (
    Fault("block3.conv", "exploding", 80),
    Fault("block1.conv", "no_gradient", 130),
)
_EXPLOSION_ENDS: Final = 110

ZEROED: Final[Mapping[str, int]] = {"block1": 14, "block2": 29}
"""Block -> how many of its first filters are zero from the start, behind a shift below zero."""
CHANNEL_EPOCHS: Final = 3


class Digits(Dataset[dict[str, Tensor]]):
    """scikit-learn's 1,797 handwritten digits, 8 x 8 pixels, scaled to [0, 1]."""

    def __init__(self) -> None:
        digits = load_digits()
        self._images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
        self._labels = torch.tensor(digits.target)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"images": self._images[index], "labels": self._labels[index]}


class Block(nn.Module):
    """Conv -> BatchNorm -> ReLU; `cut` detaches the convolution from the loss."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor, *, cut: bool = False) -> Tensor:
        """Map (batch, inputs, h, w) to (batch, outputs, h, w)."""
        x = self.conv(x)
        out: Tensor = self.relu(self.bn(x.detach() if cut else x))
        return out


def build(module: Any) -> None:
    """Give `module` the layers of the CNN and the fault that grows gradients."""
    module.block1 = Block(1, 16)
    module.block2 = Block(16, 32, stride=2)
    module.block3 = Block(32, 64, stride=2)
    module.head = nn.Linear(64, 10)
    module.passes = 0

    def explode(gradient: Tensor) -> Tensor | None:
        if FAULTS[0].step <= module.passes - 1 < _EXPLOSION_ENDS:
            return gradient * 1e5
        return None

    module.block3.conv.weight.register_hook(explode)


def predict(module: Any, images: Tensor) -> Tensor:
    """Return the logits, shape (batch, 10), and break what is due."""
    cut = module.training and module.passes >= FAULTS[1].step
    module.passes += module.training
    return features(module, images, cut=cut)


def features(module: Any, images: Tensor, *, cut: bool = False) -> Tensor:
    """Return the logits, shape (batch, 10)."""
    x = module.block3(module.block2(module.block1(images, cut=cut)))
    logits: Tensor = module.head(x.mean((2, 3)))
    return logits


class LightningDigits(LightningModule):
    """The CNN as a user of Lightning writes it."""

    def __init__(self) -> None:
        super().__init__()
        build(self)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """Return the loss of one batch."""
        return nn.functional.cross_entropy(predict(self, batch["images"]), batch["labels"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


class HFDigits(nn.Module):
    """The CNN as the transformers Trainer wants it: it returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        build(self)

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return loss and logits of one batch."""
        logits = predict(self, images)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def train_lightning(folder: Path, options: Mapping[str, Any]) -> None:
    """Train under Lightning."""
    seed_everything(0, verbose=False)
    trainer = LightningTrainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        gradient_clip_val=1.0,
        callbacks=[LightningMonitorCallback(**options)],
    )
    trainer.fit(LightningDigits(), DataLoader(Digits(), batch_size=BATCH, shuffle=True))


def train_hf(folder: Path, options: Mapping[str, Any]) -> None:
    """Train under the transformers Trainer."""
    callback = HFMonitorCallback(**options)
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        learning_rate=2e-3,
        seed=0,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    torch.manual_seed(0)
    trainer = Trainer(
        model=HFDigits(), args=arguments, train_dataset=Digits(), callbacks=[callback]
    )
    trainer.remove_callback(PrinterCallback)
    try:
        trainer.train()
    finally:
        callback.close()


def train_channels(folder: Path, options: Mapping[str, Any], *, repair: bool) -> float:
    """Train a CNN that begins with zeroed filters, in a plain loop; return its accuracy.

    Args:
        folder: the run folder.
        options: options of the monitor.
        repair: whether the monitor re-initialises what is stuck.
    """
    torch.manual_seed(0)
    model = nn.Sequential()
    build(model)
    with torch.no_grad():
        for block, dead in ZEROED.items():
            layer = getattr(model, block)
            layer.conv.weight[:dead] = 0.0
            layer.bn.bias[:dead] = -0.1
    data = DataLoader(Digits(), batch_size=BATCH, shuffle=True, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with Monitor(model, optimizer, **{**options, "out": folder, "repair": repair}) as monitor:
        for _ in range(CHANNEL_EPOCHS):
            for batch in data:
                optimizer.zero_grad()
                logits = features(model, batch["images"])
                loss = nn.functional.cross_entropy(logits, batch["labels"])
                loss.backward()  # type: ignore[no-untyped-call]
                monitor.step(loss)
                optimizer.step()
    model.eval()
    with torch.no_grad():
        digits = Digits()
        images = torch.stack([digits[i]["images"] for i in range(len(digits))])
        labels = torch.stack([digits[i]["labels"] for i in range(len(digits))])
        return float((features(model, images).argmax(1) == labels).double().mean())


TRAIN: Final[Mapping[str, Callable[[Path, Mapping[str, Any]], None]]] = {
    "lightning": train_lightning,
    "transformers": train_hf,
}
