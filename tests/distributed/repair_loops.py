"""DDP loops with repairs: each rank sees its own data and must write the same bits."""

import hashlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from ranks_support import Seat
from repair_support import IMAGES, Channels, plant_certified, plant_decayed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ormas_core import MemorySink, Monitor, MonitorConfig
from ormas_core.ranks import Agreement

STEPS = 8
PATIENCE = 4


def train(seat: Seat, out: Path | None, **options: Any) -> list[str]:
    """Train and return a digest of weights and optimizer state after each step."""
    net = DistributedDataParallel(plant_decayed(plant_certified(Channels())))
    # Slow enough that the decayed channel does not recover by itself.
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-7)
    found, sink = [], MemorySink()
    monitor = None
    if out is not None:
        settings = {"check_every": 1, "patience": PATIENCE, "sinks": [sink], **options}
        monitor = Monitor(net, optimizer, out=out, **settings)
    for loss in _losses(seat, net):
        optimizer.zero_grad()
        loss.backward()
        if monitor is not None:
            monitor.step(loss)
        optimizer.step()
        found.append(digest(net, optimizer))
    if monitor is not None:
        monitor.close()
    return found


def train_all_ways(seat: Seat, folder: Path) -> dict[str, list[str]]:
    """Train with repairs, with a monitor that only watches, without one, at odds, and failing.

    At odds each rank has another seed, so that they would write different numbers. Failing, the
    engine of rank 1 stops at its first check.
    """
    config = MonitorConfig(seed=seat.rank)
    return {
        "repaired": train(seat, folder / "repaired", repair=True),
        "watched": train(seat, folder / "watched", repair=False),
        "bare": train(seat, None),
        "at odds": train(seat, folder / "at odds", repair=True, config=config),
        "failing": _train_failing(seat, folder / "failing"),
    }


def _train_failing(seat: Seat, out: Path) -> list[str]:
    """Let the certificate engine of rank 1 fail at its first check."""
    failing = mock.patch("ormas_core.proofs.CertificateWatch.check", side_effect=ValueError)
    with failing if seat.rank == 1 else nullcontext():
        return train(seat, out, repair=True)


def agree(seat: Seat, folder: Path) -> dict[str, tuple[list[bool], str]]:
    """Ask with the same bytes, other bytes, and the same; then let rank 1 stay away once."""
    agreement = Agreement()
    words = (b"same", f"ran{seat.rank}".encode(), b"same")
    answers = [agreement.all_equal(word, binding=True) for word in words]
    lonely = Agreement(timeout_s=2.0)
    alone = [lonely.all_equal(b"same", binding=True)]
    if seat.rank == 0:
        alone.append(lonely.all_equal(b"same", binding=True))
    torch.distributed.barrier()
    alone.append(lonely.all_equal(b"same", binding=True))
    return {"together": (answers, agreement.problem), "alone": (alone, lonely.problem)}


def tell(seat: Seat, folder: Path) -> tuple[list[str], list[Any], str]:
    """Tell the other rank this one's number, then let rank 1 stay away once."""
    together = Agreement().gather(bytes([seat.rank]))
    lonely = Agreement(timeout_s=2.0)
    alone = [lonely.gather(b"1")] if seat.rank == 0 else []
    torch.distributed.barrier()
    alone.append(lonely.gather(b"1"))
    return [each.hex() for each in together or []], alone, lonely.problem


def digest(net: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return a hash of every parameter and its optimizer state; running statistics are local."""
    found = hashlib.sha256()
    for name, parameter in net.named_parameters():
        found.update(name.encode())
        found.update(parameter.detach().numpy().tobytes())
        for key, state in sorted(optimizer.state[parameter].items()):
            found.update(key.encode())
            found.update(torch.as_tensor(state).numpy().tobytes())
    return found.hexdigest()


def _losses(seat: Seat, net: nn.Module) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(20 + seat.rank)
    for _ in range(STEPS):
        x = torch.randn(IMAGES, generator=generator)
        labels = torch.randint(0, 3, (IMAGES[0],), generator=generator)
        yield nn.functional.cross_entropy(net(x), labels)
