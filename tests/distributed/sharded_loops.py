"""Loops over models whose parameters are spread over two processes, with a monitor and without."""

from pathlib import Path
from typing import Any

from ranks_support import Seat
from support import ToyNet, loader, plain_loop, sgd
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from ormas_core import Monitor

LAYERS = ("fc1", "fc2", "fc3")


def shard(model: nn.Module, mesh: Any, *, columns: bool) -> None:
    """Spread the toy's layers: all of them by FSDP2, or the first two by columns and rows."""
    if columns:
        plan = {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()}
        parallelize_module(model, mesh, plan)
    else:
        for name in LAYERS:
            fully_shard(getattr(model, name), mesh=mesh)


def values(model: nn.Module) -> dict[str, list[float]]:
    """Return all weights of a model that may be sharded; every rank must call it."""
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).flatten().tolist()
        for name, value in model.state_dict().items()
    }


def train_sharded(seat: Seat, folder: Path) -> dict[str, list[dict[str, list[float]]]]:
    """Train both kinds, without a monitor and with one; return the weights of each."""
    mesh = init_device_mesh("cpu", (seat.world_size,))
    found: dict[str, list[dict[str, list[float]]]] = {"fsdp2": [], "columns": []}
    for kind, weights in found.items():
        for watched in (False, True):
            net = ToyNet()
            shard(net, mesh, columns=kind == "columns")
            assert isinstance(net.fc1.weight, DTensor)
            optimizer, batches = sgd(net), list(loader(4))
            if watched:
                with Monitor(net, optimizer, out=folder / kind, check_every=1) as monitor:
                    plain_loop(net, monitor.step, batches, optimizer)
            else:
                plain_loop(net, lambda loss: None, batches, optimizer)
            weights.append(values(net))
    return found


def give_a_sharded_loss(seat: Seat, folder: Path) -> None:
    """Train with a loss that is itself spread over the processes."""
    mesh = init_device_mesh("cpu", (seat.world_size,))
    net = ToyNet()
    optimizer = sgd(net)
    with Monitor(net, optimizer, out=folder / "run", check_every=1) as monitor:
        for batch in loader(4):
            optimizer.zero_grad()
            loss = net(**batch)["loss"]
            loss.backward()
            monitor.step(DTensor.from_local(loss.detach(), mesh, [Partial()]))
            optimizer.step()
