"""One check of a small network, and a batch of tokens for language models. No test here."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from ormas_core import (
    MemorySink,
    Monitor,
)

VOCABULARY = 60


def one_check(net: nn.Module, folder: Path, loss_of: Callable[[nn.Module], Tensor]) -> MemorySink:
    sink = MemorySink()
    with Monitor(net, out=folder, check_every=1, sinks=[sink], verbose=False) as monitor:
        loss = loss_of(net)
        loss.backward()
        monitor.step(loss)
    return sink


def language_batch() -> Tensor:
    half = torch.randint(3, VOCABULARY, (4, 8))
    return torch.cat([half, half], 1)


def language_loss(net: nn.Module) -> Tensor:
    x = language_batch()
    loss: Tensor = net(input_ids=x, labels=x).loss
    return loss
