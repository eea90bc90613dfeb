"""Plain DDP loops as a user writes them, and worlds in which the monitor breaks its promises."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist
from ranks_support import Seat
from support import ToyNet, loader, plain_loop, plant_explosion, sgd
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from truth import EXPLODING_RANK, EXPLOSION_AT, LAYER, STEPS, Report, digest, report

from ormas_core import MemorySink, Monitor, Sink

OTHER_LAYER = "fc1"
ACCUMULATED_STEPS = 6
FEWER_STEPS = STEPS - 4
FAILS_AT = 10


def train(
    seat: Seat,
    out: Path,
    *,
    layer: str = LAYER,
    sinks: Sequence[Sink] = (),
    in_turn: bool = False,
    **options: Any,
) -> Report:
    """Train with a monitor; `layer` explodes on one rank."""
    net, sink = _network(seat, layer), MemorySink()
    optimizer = sgd(net)
    steps = _count_steps(optimizer)
    with _in_turn(seat) if in_turn else nullcontext():
        monitor = Monitor(net, optimizer, out=out, check_every=1, sinks=[sink, *sinks], **options)
    with monitor:
        plain_loop(net, monitor.step, _batches(seat), optimizer)
    return report(seat.rank, len(steps), monitor, sink, net)


def train_bare(seat: Seat) -> str:
    """Train likewise without a monitor; return the digest of the weights."""
    net = _network(seat)
    plain_loop(net, lambda loss: None, _batches(seat), sgd(net))
    return digest(net)


def train_monitored(seat: Seat, folder: Path) -> Report:
    """Train with a monitor."""
    return train(seat, folder / "run")


def train_both_ways(seat: Seat, folder: Path) -> tuple[Report, str]:
    """Train with a monitor and without."""
    return train(seat, folder / "run"), train_bare(seat)


def train_monitored_early(seat: Seat, folder: Path) -> Report:
    """Construct the monitor as under torchrun, before there is a process group or DDP."""
    os.environ |= {"RANK": str(seat.rank), "WORLD_SIZE": str(seat.world_size)}
    net, sink = ToyNet(), MemorySink()
    if seat.rank == EXPLODING_RANK:
        plant_explosion(net, EXPLOSION_AT)
    optimizer = sgd(net)
    steps = _count_steps(optimizer)
    with Monitor(net, optimizer, out=folder / "run", check_every=1, sinks=[sink]) as monitor:
        seat.join()
        plain_loop(DistributedDataParallel(net), monitor.step, _batches(seat), optimizer)
    return report(seat.rank, len(steps), monitor, sink, net)


def train_accumulating(seat: Seat, folder: Path) -> list[dict[str, float]]:
    """Accumulate two batches per step, reduced once, the last one uneven; return what is true.

    Returns:
        For each step the norms of the gradients that the optimizer got, and this rank's mean loss.
    """
    batches = _batches(seat, 2 * ACCUMULATED_STEPS)
    batches[-1] = {name: value[: 3 + 8 * seat.rank] for name, value in batches[-1].items()}
    net = DistributedDataParallel(ToyNet())
    optimizer = sgd(net)
    found = []
    with Monitor(net, optimizer, out=folder / "run", check_every=1) as monitor:
        for first, second in zip(batches[::2], batches[1::2], strict=True):
            optimizer.zero_grad()
            losses = []
            for batch, context in ((first, net.no_sync()), (second, nullcontext())):
                with context:
                    losses.append(net(**batch)["loss"])
                    (losses[-1] / 2).backward()
                monitor.note_loss(losses[-1])
            found.append(
                {
                    **{name: _norm(layer) for name, layer in net.module.named_children()},
                    "loss": sum(loss.item() for loss in losses) / 2,
                }
            )
            monitor.step()
            optimizer.step()
    return found


def train_uneven(seat: Seat, folder: Path) -> Report:
    """Give rank 1 fewer batches than rank 0."""
    batches = _batches(seat)[: STEPS if seat.rank == 0 else FEWER_STEPS]
    net, sink = _network(seat), MemorySink()
    optimizer = sgd(net)
    steps = _count_steps(optimizer)
    monitor = Monitor(net, optimizer, out=folder / "run", check_every=1, sinks=[sink])
    with monitor, net.join():
        plain_loop(net, monitor.step, batches, optimizer)
    return report(seat.rank, len(steps), monitor, sink, net)


def train_into_a_failure(seat: Seat, folder: Path) -> None:
    """Let rank 1 fail between two steps."""
    net = _network(seat)
    optimizer = sgd(net)
    with Monitor(net, optimizer, out=folder / "run", check_every=1) as monitor:
        plain_loop(net, monitor.step, _batches(seat)[:FAILS_AT], optimizer)
        if seat.rank == 1:
            raise RuntimeError("planted")
        plain_loop(net, monitor.step, _batches(seat)[FAILS_AT:], optimizer)


def break_promises(seat: Seat, folder: Path) -> dict[str, Report]:
    """Train in three worlds, each in a folder of its name.

    Every rank takes itself for rank 0, and writes into a folder of its own; likewise, and into the
    same folder, which only a lock that does not work lets happen; another layer is broken than the
    tests claim.
    """
    with mock.patch("ormas_core.ranks.rank", return_value=0):
        own = train(seat, folder / "own" / f"run-{seat.rank}")
        with mock.patch("ormas_core.record.lock.FolderLock.acquire"):
            same = train(seat, folder / "same" / "run", in_turn=True, overwrite=True)
    other = train(seat, folder / "other" / "run", layer=OTHER_LAYER)
    return {"own": own, "same": same, "other": other}


def send_twice(seat: Seat, folder: Path) -> Report:
    """Train with one record, and with a sink that is called on every rank."""
    from ormas_core.sinks import Fanout
    from ormas_mlflow import MLflowSink

    sink = MLflowSink.embedded(folder, close_timeout=60.0)

    def fanout(sinks: Sequence[Sink], *more: Any) -> Fanout:
        return Fanout((*sinks, sink), *more)

    with mock.patch("ormas_core.journal.Fanout", fanout) if seat.rank == 1 else nullcontext():
        return train(seat, folder / "run", sinks=[sink])


def _batches(seat: Seat, steps: int = STEPS) -> list[dict[str, Tensor]]:
    """Return the rank's own batches."""
    return list(loader(steps * seat.world_size))[seat.rank :: seat.world_size]


def _network(seat: Seat, layer: str = LAYER) -> DistributedDataParallel:
    net = ToyNet()
    if seat.rank == EXPLODING_RANK:
        plant_explosion(net, EXPLOSION_AT, layer=layer)
    return DistributedDataParallel(net)


def _count_steps(optimizer: Optimizer) -> list[None]:
    """Return a list that grows by one at every update."""
    steps: list[None] = []
    optimizer.register_step_post_hook(lambda *_: steps.append(None))
    return steps


@contextmanager
def _in_turn(seat: Seat) -> Iterator[None]:
    """Let rank 0 do something before rank 1 does it."""
    if seat.rank == 1:
        dist.barrier()
    yield
    if seat.rank == 0:
        dist.barrier()


def _norm(layer: Any) -> float:
    return math.hypot(*(parameter.grad.norm().item() for parameter in layer.parameters()))
