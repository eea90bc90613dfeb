"""Networks, data and loops that several tests share. No test lives here."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_globals
from torch.utils.data import DataLoader, Dataset

STEPS = 40
BATCH = 16
FEATURES = 8
LEARNING_RATE = 1e-3


class Toy(Dataset[dict[str, Tensor]]):
    """Reproducible two-class points; the sign of the sum is the class."""

    def __init__(self, batches: int = STEPS) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(batches * BATCH, FEATURES, generator=generator)
        self.labels = (self.x.sum(1) > 0).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "labels": self.labels[index]}


def loader(batches: int = STEPS, batch_size: int = BATCH) -> DataLoader[dict[str, Tensor]]:
    """Return the toy data in a fixed order."""
    return DataLoader(Toy(batches), batch_size=batch_size, shuffle=False)


def add_layers(module: nn.Module) -> None:
    """Give `module` the layers fc1, fc2, fc3 with the same weights every time."""
    torch.manual_seed(3)
    module.fc1 = nn.Linear(FEATURES, 16)
    module.fc2 = nn.Linear(16, 16)
    module.fc3 = nn.Linear(16, 2)


def toy_loss(module: Any, x: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of the toy network."""
    hidden = torch.relu(module.fc2(torch.relu(module.fc1(x))))
    return nn.functional.cross_entropy(module.fc3(hidden), labels)


class ToyNet(nn.Module):
    """The toy network; returns its loss, as the models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        add_layers(self)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": toy_loss(self, x, labels)}


def sgd(module: nn.Module) -> torch.optim.SGD:
    """Return the optimizer that all loops use."""
    return torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)


def plant_explosion(module: Any, at_step: int, factor: float = 1e6, layer: str = "fc2") -> None:
    """Multiply the weight gradient of one layer in backward pass number `at_step` (from 0)."""
    passes = iter(range(10**9))

    def explode(gradient: Tensor) -> Tensor | None:
        return gradient * factor if next(passes) == at_step else None

    getattr(module, layer).weight.register_hook(explode)


def plain_loop(
    net: nn.Module,
    step: Callable[[Tensor], None],
    batches: Sequence[dict[str, Tensor]],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Train as a user would, calling `step` after backward and before the update."""
    for batch in batches:
        optimizer.zero_grad()
        loss = net(**batch)["loss"]
        loss.backward()
        step(loss)
        optimizer.step()


def weights(module: nn.Module) -> dict[str, Tensor]:
    """Return a copy of all parameters and buffers."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def hf_arguments(folder: Path, **changes: Any) -> Any:
    """Return `TrainingArguments` for the toy data: quiet, offline, on the CPU."""
    from transformers import TrainingArguments

    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": BATCH,
        "num_train_epochs": 1,
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_strategy": "no",
        "use_cpu": True,
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(**{**settings, **changes})


def hf_trainer(net: nn.Module, arguments: Any, callbacks: Sequence[Any] = (), **more: Any) -> Any:
    """Return a Trainer over the toy data, in its fixed order, with the shared optimizer."""
    from torch.utils.data import SequentialSampler
    from transformers import PrinterCallback, Trainer

    class InOrder(Trainer):
        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
            return SequentialSampler(self.train_dataset)

    optimizer = sgd(net)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    more.setdefault("train_dataset", Toy())
    trainer = InOrder(
        model=net,
        args=arguments,
        callbacks=list(callbacks),
        optimizers=(optimizer, schedule),
        **more,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def lightning_net() -> Any:
    """Return the toy network as a LightningModule with the same layer names."""
    from lightning.pytorch import LightningModule

    class LitNet(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            add_layers(self)

        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            return toy_loss(self, **batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self)

    return LitNet()


def lightning_trainer(folder: Path, callbacks: Sequence[Any] = (), **changes: Any) -> Any:
    """Return a quiet Lightning Trainer on the CPU."""
    from lightning.pytorch import Trainer

    settings: dict[str, Any] = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": str(folder),
    }
    return Trainer(callbacks=list(callbacks), **{**settings, **changes})


def of(sink: Any, kind: type) -> list[Any]:
    """Return the events of a kind that a memory sink has."""
    return [event for event in sink.events if isinstance(event, kind)]


def layer_norms(sink: Any) -> list[dict[str, float | None]]:
    """Return the norms of each check that a memory sink has, by layer."""
    from ormas_core import Measurement

    return [dict(zip(m.layers, m.norms, strict=True)) for m in of(sink, Measurement)]


def kill_unit(module: Any) -> None:
    """Make the first unit of fc1 one that no input opens and no gradient reaches."""
    with torch.no_grad():
        module.fc1.bias[0], module.fc1.weight[0], module.fc2.weight[:, 0] = -1e6, 0.0, 0.0


def global_hooks() -> list[str]:
    """Return the names of torch's tables of process-wide module hooks that are not empty."""
    tables = {name: value for name, value in vars(module_globals).items() if "_hooks" in name}
    return [name for name, value in tables.items() if isinstance(value, dict) and value]
