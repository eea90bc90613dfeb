"""Which process this is. The only user of torch.distributed."""

import logging
import os

import torch.distributed as dist


def rank() -> int:
    """Return the global rank of this process; 0 where there is only one.

    Before a process group exists, the launcher's RANK (torchrun, accelerate, Lightning's own
    launcher sets LOCAL_RANK first) is believed, so that a record is never opened twice.
    """
    if _initialized():
        return dist.get_rank()
    return _from_environment("RANK", "LOCAL_RANK", default=0)


def writes() -> bool:
    """Return whether this process writes the record: the one of rank 0.

    Says so where only an environment variable makes it another: a leftover would leave no record.
    """
    if rank() == 0:
        return True
    if not _initialized():
        logging.getLogger("ormas").warning(
            "This process is rank %d by its environment (RANK or LOCAL_RANK), so it writes no "
            "record; rank 0 does. Unset the variable if there is no rank 0.",
            rank(),
        )
    return False


def world_size() -> int:
    """Return the number of processes."""
    if _initialized():
        return dist.get_world_size()
    return _from_environment("WORLD_SIZE", default=1)


def _initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def _from_environment(*names: str, default: int) -> int:
    for name in names:
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return default
