"""The weight files beside those that a loader would use: do they hold the same?"""

from dataclasses import replace

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
    for facts in replace(others, problems=()).tensors(checkpoint):
        verdict = facts.base.verdict if facts.base else Against.UNKNOWN
        if verdict in (Against.SAME, Against.CAST):
            same += 1
        else:
            (alone if verdict is Against.ABSENT else unlike).append(facts.name)
    text = (
        f"Loaders use {some(checkpoint.files)}. In {some(checkpoint.strays)}, {same} tensors agree"
    )
    if unlike:
        text += f", {len(unlike)} differ ({some(unlike)})"
    if alone:
        text += f", {len(alone)} have no counterpart ({some(alone)})"
    lacking = len(set(checkpoint.names) - set(others.names))
    if lacking:
        text += f", {lacking} of the model are not there"
    text += ". Remove the files that are not meant to be used."
    return (ReadProblem(code="stray-weights", where=checkpoint.strays[0], detail=text),)
