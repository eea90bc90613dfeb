"""What a seal says, compared with what is there."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ormas_core.errors import RecordFormatError
from ormas_core.record.envelope import Signed, read_envelope, refutation
from ormas_core.record.inspection import Inspection
from ormas_core.record.modelcheck import difference as model_difference
from ormas_core.record.modelcheck import difference_inside
from ormas_core.record.models import IGNORED
from ormas_core.record.statement import Seal, SealedModel, seal_of

__all__ = ["Sealed", "compare_models", "difference", "models_named", "read_seal", "refutation"]


@dataclass(frozen=True, slots=True)
class Sealed:
    """The seal of a run folder, as far as it can be read.

    Attributes:
        absent: there is none.
        problem: why it cannot be used.
        signed: the envelope.
        seal: what it says.
    """

    absent: bool = False
    problem: str = ""
    signed: Signed | None = None
    seal: Seal | None = None


def read_seal(folder: Path) -> Sealed:
    """Return the seal of a run folder; what is wrong with it is part of the answer.

    Raises:
        RecordChangedError: it was changed while it was being read.
    """
    signed = None
    try:
        signed = read_envelope(folder)
        return Sealed(signed=signed, seal=seal_of(signed.payload))
    except FileNotFoundError:
        return Sealed(absent=True)
    except (RecordFormatError, OSError) as error:
        return Sealed(problem=f"{error!s:.300}", signed=signed)


def difference(sealed: Sealed, found: Inspection) -> str:
    """Return how record and metrics differ from the sealed ones; empty if they do not."""
    if sealed.seal is None:
        return "it cannot be read"
    pairs = ((sealed.seal.record, found.record), (sealed.seal.metrics, found.metrics))
    for file, scan in pairs:
        if scan.failure:
            return f"{file.name} cannot be the sealed file: its chain is broken"
        if scan.size != file.bytes:
            return f"{file.name} has {scan.size} bytes; sealed are {file.bytes}"
        if scan.sha256 != file.sha256:
            return f"{file.name} is not the sealed file: its digest is {scan.sha256[:12]}"
    return ""


def models_named(
    run: Path, sealed: Sealed, found: Inspection
) -> tuple[tuple[SealedModel, ...], tuple[str, ...]]:
    """Return the models that the seal names, or the record where it is not sealed.

    The second value holds the names in their folders that do not count.
    """
    if sealed.seal is not None:
        return sealed.seal.models, sealed.seal.ignored
    models = found.models.values()
    return tuple(replace(m, inside=os.path.lexists(run / m.name)) for m in models), IGNORED


def compare_models(
    run: Path,
    named: Sequence[SealedModel],
    paths: Sequence[Path],
    ignored: tuple[str, ...],
) -> tuple[str, int, str]:
    """Compare the models in the run folder, and those at `paths`.

    Returns:
        The first difference, or nothing; the number of files that are the same; the names of the
        models that are not in the run folder and at no path.

    Raises:
        RecordFormatError: a path belongs to no model that is named.
        RecordChangedError: a file was changed while it was being read.
    """
    waiting = {model.name: model for model in named}
    compared = 0
    for path in paths:
        model = _model_for(path, waiting)
        del waiting[model.name]
        found = model_difference(path, model, ignored)
        if found:
            return found, compared, ""
        compared += len(model.files)
    for model in [model for model in waiting.values() if model.inside]:
        del waiting[model.name]
        found = difference_inside(run, model, ignored)
        if found:
            return found, compared, ""
        compared += len(model.files)
    return "", compared, ", ".join(waiting)


def _model_for(path: Path, waiting: dict[str, SealedModel]) -> SealedModel:
    """Return the model of that name, or the only one that is left."""
    own = path.absolute().name
    for model in waiting.values():
        if model.name.rpartition("/")[2] == own:
            return model
    if len(waiting) == 1:
        return next(iter(waiting.values()))
    names = ", ".join(waiting) or "no further one"
    raise RecordFormatError(str(path), f"{path} is none of the models that are named: {names}")
