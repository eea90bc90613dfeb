"""Finds out what a path holds, and lists its tensors."""

import os
from pathlib import Path

from ormas_core.checkpoints.opened import Checkpoint, Kind
from ormas_core.errors import CheckpointError


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
    from ormas_core.checkpoints.folder import open_folder, open_index
    from ormas_core.checkpoints.sets import FileSet, assemble

    given = Path(path)
    try:
        is_folder = given.is_dir()
        if not is_folder:
            given.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(
            str(path), f"There is no checkpoint at {path}: {reason}. Name a file or a folder."
        ) from None
    if is_folder:
        return open_folder(given, trust=trust)
    single = FileSet(path=given, folder=given.parent, files=(given.name,))
    found = assemble(single, trust=trust)
    if found.kind is Kind.UNKNOWN and not found.entries:
        return open_index(given, trust=trust) or found
    return found
