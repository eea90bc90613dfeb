"""The weight files beside those that a loader would use: do they hold the same?"""

from ormas_core.checkpoints.index import some
from ormas_core.checkpoints.opened import Checkpoint, Kind, ReadProblem
from ormas_core.checkpoints.sets import FileSet, assemble
from ormas_core.checkpoints.tensors import Against


def stray_problems(checkpoint: Checkpoint) -> tuple[ReadProblem, ...]:
    """Return one problem that says how far the other weight files of a folder agree with the model.

    Reads those files, and the model again beside them.
    """
    if not checkpoint.strays:
        return ()
    files = FileSet(
        path=checkpoint.folder,
        folder=checkpoint.folder,
        files=checkpoint.strays,
        kind=Kind.FOLDER,
    )
    others = assemble(files, trust=False)
    same = 0
    unlike: list[str] = []
    alone: list[str] = []
    for facts in others.tensors(checkpoint):
        verdict = facts.base.verdict if facts.base else Against.UNKNOWN
        if verdict in (Against.SAME, Against.CAST):
            same += 1
        elif verdict is not Against.ABSENT:
            unlike.append(facts.name)
        elif _is_weight(facts.dtype):
            alone.append(facts.name)
    there = set(others.names)
    lacking = [
        entry.name
        for entry, name in zip(checkpoint.entries, checkpoint.names, strict=True)
        if name not in there and _is_weight(entry.dtype)
    ]
    text = (
        f"Loaders use {some(checkpoint.files)}. In {some(checkpoint.strays)}, {same} tensors agree"
    )
    if unlike:
        text += f", {len(unlike)} differ ({some(unlike)})"
    if alone:
        text += f", {len(alone)} have no counterpart ({some(alone)})"
    if lacking:
        text += f", {len(lacking)} of the model are not there ({some(lacking)})"
    if same and not unlike + alone + lacking:
        return (ReadProblem(code="stray-copies", where=checkpoint.strays[0], detail=f"{text}."),)
    text += ". Remove the files that are not meant to be used."
    return (ReadProblem(code="stray-weights", where=checkpoint.strays[0], detail=text),)


def _is_weight(dtype: str) -> bool:
    """Whether a tensor is more than a buffer, such as positions, that some savers leave out."""
    return dtype.startswith(("F", "BF", "C"))
