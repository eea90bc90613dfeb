"""Repair under each framework: the adapters take the same keyword and give the same repairs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import (
    ToyNet,
    hf_arguments,
    hf_trainer,
    lightning_net,
    lightning_trainer,
    loader,
    plain_loop,
    sgd,
)

from ormas_core import ConfigError, MemorySink, Monitor, Repair

DEAD = 3


@torch.no_grad()
def plant(net: Any) -> Any:
    """Close a unit of the first layer for every input."""
    net.fc1.weight[DEAD], net.fc1.bias[DEAD] = 0, -0.1
    return net


def bare(folder: Path, options: dict[str, Any]) -> Any:
    """Train in a plain loop."""
    net = plant(ToyNet())
    optimizer = sgd(net)
    with Monitor(net, optimizer, **options) as monitor:
        plain_loop(net, monitor.step, list(loader()), optimizer)
    return net


def under_lightning(folder: Path, options: dict[str, Any]) -> Any:
    """Train under Lightning."""
    from ormas_lightning import LightningMonitorCallback

    net = plant(lightning_net())
    lightning_trainer(folder, [LightningMonitorCallback(**options)]).fit(net, loader())
    return net


def under_transformers(folder: Path, options: dict[str, Any], clip: float = 0.0) -> Any:
    """Train under the transformers Trainer."""
    from ormas_hf import HFMonitorCallback

    net = plant(ToyNet())
    arguments = hf_arguments(folder / "trainer", max_grad_norm=clip)
    with HFMonitorCallback(**options) as callback:
        hf_trainer(net, arguments, [callback]).train()
    return net


def under_transformers_clipping(folder: Path, options: dict[str, Any]) -> Any:
    """Train under the Trainer with clipping, where the check is made before the repair is due."""
    return under_transformers(folder, options, clip=1.0)


LOOPS = [bare, under_lightning, under_transformers, under_transformers_clipping]


@pytest.mark.parametrize("loop", LOOPS)
def test_every_loop_repairs_the_same_unit_with_the_same_bits(
    tmp_path: Path, loop: Callable[[Path, dict[str, Any]], Any]
) -> None:
    """At its second check, in the layer named as in the user's model."""
    sink = MemorySink()
    options = {"out": tmp_path / "run", "check_every": 5, "repair": True, "sinks": [sink]}
    loop(tmp_path, options)
    (repair,) = (event for event in sink.events if isinstance(event, Repair))
    assert (repair.step, repair.layer, repair.units) == (5, "fc1", (DEAD,))
    assert (repair.cause, repair.refused) == ("certified", "")
    # The drawn numbers, seen through their norm: the same in all loops.
    assert repair.delta == _delta(tmp_path / "bare")


def test_adapters_refuse_what_the_monitor_refuses() -> None:
    """When they are constructed."""
    from ormas_hf import HFMonitorCallback
    from ormas_lightning import LightningMonitorCallback

    for callback in (HFMonitorCallback, LightningMonitorCallback):
        with pytest.raises(ConfigError, match="repair must be False, True"):
            callback(repair="some")  # type: ignore[arg-type]


def _delta(folder: Path) -> float:
    sink = MemorySink()
    bare(folder, {"out": folder, "check_every": 5, "repair": True, "sinks": [sink]})
    (repair,) = (event for event in sink.events if isinstance(event, Repair))
    return repair.delta
