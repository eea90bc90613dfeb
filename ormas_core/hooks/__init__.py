"""The hook engine: from a live model to a `Measurement`, on sampled steps only."""

from ormas_core.hooks._torch import TORCH_VERSION, after_backward, backward_pass, watch_calls
from ormas_core.hooks.attach import ForwardWatch
from ormas_core.hooks.collector import Collector, Reading
from ormas_core.hooks.lanes import Lane, Lanes, optimizers_of
from ormas_core.hooks.losses import Reduction
from ormas_core.hooks.modes import unread
from ormas_core.hooks.select import (
    Selection,
    WatchedLayer,
    runs_compiled,
    select,
    unwrap,
    unwrap_optimizer,
)

__all__ = [
    "TORCH_VERSION",
    "Collector",
    "ForwardWatch",
    "Lane",
    "Lanes",
    "Reading",
    "Reduction",
    "Selection",
    "WatchedLayer",
    "after_backward",
    "backward_pass",
    "optimizers_of",
    "runs_compiled",
    "select",
    "unread",
    "unwrap",
    "unwrap_optimizer",
    "watch_calls",
]
