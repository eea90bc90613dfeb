"""Small checkpoints on disk for tests of `check`. No test lives here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn


def conv_net() -> dict[str, Tensor]:
    """Return the state of a small healthy convolutional network."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 4),
    )
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


def saved(path: Path, state: Mapping[str, Tensor], **changes: Any) -> Path:
    """Write a state as safetensors; `changes` are functions that change a tensor in place.

    A name is written with `__` for `.`: `saved(path, state, fc__bias=lambda t: t.fill_(0))`.
    """
    copy = {name: tensor.clone().contiguous() for name, tensor in state.items()}
    for name, change in changes.items():
        change(copy[name.replace("__", ".")])
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(copy, path)
    return path


def resnet_folder(path: Path) -> Path:
    """Write a tiny transformers ResNet with three planted channels; return its folder.

    The stem's scale 2 is zero behind a ReLU, a scale of a residual branch is zero, and a filter
    before a norm and a ReLU is.
    """
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    config = ResNetConfig(
        num_channels=3,
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 2],
        layer_type="basic",
        image_size=32,
        num_labels=3,
    )
    model = ResNetForImageClassification(config)
    state = model.state_dict()
    with torch.no_grad():
        state[f"{STEM}.normalization.weight"][2] = 0
        state[f"{STEM}.normalization.bias"][2] = -0.1
        state[f"{RESIDUAL}.weight"][1] = 0
        state[f"{FILTERS}.weight"][4] = 0
    path.mkdir(parents=True, exist_ok=True)
    config.architectures = ["ResNetForImageClassification"]
    config.save_pretrained(path)
    saved(path / "model.safetensors", state)
    return path


STEM = "resnet.embedder.embedder"
RESIDUAL = "resnet.encoder.stages.1.layers.0.layer.1.normalization"
FILTERS = "resnet.encoder.stages.1.layers.1.layer.0.convolution"
