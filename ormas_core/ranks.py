"""Which process this is. The only user of torch.distributed."""

import logging
import os
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

_PATIENCE_S: Final = 60.0
_ERROR_LIMIT: Final = 200


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


class Agreement:
    """Asks whether all ranks hold the same bytes, over a group of its own, made at first use.

    The group is a gloo group for CPU tensors, whatever the training uses, so that no collective of
    the training is disturbed. A rank that does not come is waited for once; after that nobody is
    asked again, and the ranks count as disagreeing.

    Args:
        timeout_s: seconds to wait for the others.

    Attributes:
        problem: why the ranks cannot be asked any more; empty while they can be.
    """

    def __init__(self, timeout_s: float = _PATIENCE_S) -> None:
        self._timeout = timedelta(seconds=timeout_s)
        self._group: Any = None
        self.problem = ""

    def all_equal(self, digest: bytes, *, binding: bool) -> bool:
        """Return whether every rank brought the same bytes. Every rank must call it; it blocks.

        Args:
            digest: bytes of one length on all ranks.
            binding: whether the ranks act on the answer: they are then asked a second time, so
                that no rank acts that another has stopped waiting for. Must follow from `digest`.
        """
        if world_size() == 1:
            return True
        if self.problem:
            return False
        try:
            return self._same(digest) and (not binding or self._same(digest))
        except (RuntimeError, ValueError) as error:
            self.problem = f"{type(error).__name__}: {error}"[:_ERROR_LIMIT]
            return False

    def gather(self, flags: bytes) -> list[bytes] | None:
        """Return what each rank brought, or None where they cannot be asked. It blocks.

        Every rank must call it. Where any flag is set they are asked a second time, so that no rank
        acts on it that another has stopped waiting for.

        Args:
            flags: bytes of one length on all ranks, zero for nothing to act on.
        """
        if world_size() == 1:
            return [flags]
        if self.problem:
            return None
        try:
            every = self._ask(flags)
            return self._ask(flags) if any(map(any, every)) else every
        except (RuntimeError, ValueError) as error:
            self.problem = f"{type(error).__name__}: {error}"[:_ERROR_LIMIT]
            return None

    def _same(self, digest: bytes) -> bool:
        return all(other == digest for other in self._ask(digest))

    def _ask(self, digest: bytes) -> list[bytes]:
        if self._group is None:
            if not _initialized():
                raise ValueError("there is no process group over which to ask")
            # Named by its members: the names of groups that the training makes stay in step.
            self._group = dist.new_group(
                backend="gloo", timeout=self._timeout, use_local_synchronization=True
            )
        own = torch.tensor(list(digest), dtype=torch.uint8, device="cpu")
        every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(every, own, group=self._group)
        return [bytes(other.tolist()) for other in every]


def _initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def _from_environment(*names: str, default: int) -> int:
    for name in names:
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return default
