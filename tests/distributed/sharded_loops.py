"""Loops over models whose parameters are spread over two processes, with a monitor and without."""

from pathlib import Path

import pytest
import torch
from ranks_support import Seat
from support import ToyNet, loader, plain_loop, sgd
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim import Optimizer

from ormas_core import CertifyError, Monitor, certify

LAYERS = ("fc1", "fc2", "fc3")


def by_fsdp1(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Spread all parameters as views into a flat one, which they do not show themselves."""
    wrapped: nn.Module = FullyShardedDataParallel(
        model, device_id=torch.device("cpu"), use_orig_params=True
    )
    return wrapped


def by_fsdp2(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Spread each layer of the toy."""
    for name in LAYERS:
        fully_shard(getattr(model, name), mesh=mesh)
    assert isinstance(model.get_parameter("fc1.weight"), DTensor)
    return model


def by_columns(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Spread the first layer by columns and the second by rows; the third is whole."""
    return parallelize_module(model, mesh, {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()})


KINDS = (by_fsdp1, by_fsdp2, by_columns)
Weights = dict[str, list[float]]


def values(model: nn.Module) -> Weights:
    """Return all weights of a model that may be sharded; every rank must call it."""
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).flatten().tolist()
        for name, value in model.state_dict().items()
    }


def train_sharded(seat: Seat, folder: Path) -> list[tuple[Weights, Weights]]:
    """Train each kind, without a monitor and with one; return the weights of both.

    At last, train a model that is whole, with a loss that is not.
    """
    mesh = init_device_mesh("cpu", (seat.world_size,))
    found = []
    for kind in KINDS:
        both = []
        for watched in (False, True):
            net = kind(ToyNet(), mesh)
            optimizer, batches = sgd(net), list(loader(4))
            if watched:
                with Monitor(net, optimizer, out=folder / kind.__name__, check_every=1) as monitor:
                    plain_loop(net, monitor.step, batches, optimizer)
            else:
                plain_loop(net, lambda loss: None, batches, optimizer)
            both.append(values(net))
            if watched:
                refuse_to_certify(net, optimizer, batches[0])
        found.append((both[0], both[1]))
    _give_a_sharded_loss(mesh, folder / "loss")
    return found


def refuse_to_certify(net: nn.Module, optimizer: Optimizer, batch: dict[str, Tensor]) -> None:
    """Nothing is proven about parameters that are elsewhere, as they are after backward."""
    loss = net(**batch)["loss"]
    loss.backward()
    with pytest.raises(CertifyError, match="sharded"):
        certify(net, optimizer, loss)


def _give_a_sharded_loss(mesh: DeviceMesh, out: Path) -> None:
    net = ToyNet()
    optimizer = sgd(net)
    with Monitor(net, optimizer, out=out, check_every=1) as monitor:
        for batch in loader(4):
            optimizer.zero_grad()
            loss = net(**batch)["loss"]
            loss.backward()
            monitor.step(DTensor.from_local(loss.detach(), mesh, [Partial()]))
            optimizer.step()
