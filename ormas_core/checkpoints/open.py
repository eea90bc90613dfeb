"""Finds out what a path holds, and lists its tensors."""

import os

from ormas_core.checkpoints.opened import Checkpoint


def open_checkpoint(path: str | os.PathLike[str], *, trust: bool = False) -> Checkpoint:
    """Return what is at a path: a file or a folder of any format.

    What cannot be read is among the `problems` of the result, which then may have no tensors.

    Args:
        path: a file or a folder.
        trust: run the code that the pickles of the checkpoint ask for, where there is no other way
            to its tensors.

    Raises:
        CheckpointError: there is nothing at the path.
    """
    raise NotImplementedError
