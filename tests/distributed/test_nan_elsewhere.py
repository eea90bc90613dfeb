"""A NaN that arises in another process arrives in the reduced gradients as if from nowhere."""

from pathlib import Path

import torch
from ranks_support import Seat, run_ranks
from support import ToyNet, loader, plain_loop, sgd
from torch.nn.parallel import DistributedDataParallel

from ormas_core import Monitor, NonfiniteGradient, read_record

LAST = "fc3"


def train(seat: Seat, folder: Path, spoilt: int) -> None:
    """Train two steps; on one rank the loss is NaN."""
    net = ToyNet()
    if seat.rank == spoilt:
        net.register_forward_hook(lambda *seen: {"loss": seen[-1]["loss"] * torch.nan})
    wrapped = DistributedDataParallel(net)
    optimizer = sgd(net)
    out = folder / f"run{spoilt}"
    with Monitor(wrapped, optimizer, out=out, check_every=1, verbose=False) as monitor:
        plain_loop(wrapped, monitor.step, loader(2), optimizer)


def train_both(seat: Seat, folder: Path) -> None:
    """Once with the fault on each rank."""
    for spoilt in (0, 1):
        train(seat, folder, spoilt)


def test_a_nan_of_another_process_is_not_said_to_arise_in_the_layer_that_gets_it(
    tmp_path: Path,
) -> None:
    """What rank 0 sees at the outputs of its modules is finite; that proves nothing then."""
    run_ranks(train_both, tmp_path)
    found = {}
    for spoilt in (0, 1):
        events = [line.event for line in read_record(tmp_path / f"run{spoilt}")]
        (found[spoilt],) = [e for e in events if isinstance(e, NonfiniteGradient)]
    assert {event.layer for event in found.values()} == {LAST}
    assert found[0].output_finite is False
    assert found[1].output_finite is None
