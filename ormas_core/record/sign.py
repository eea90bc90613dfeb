"""Seals a run folder: what is in it now, and the model it belongs to, under one signature."""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ormas_core.config import MonitorConfig
from ormas_core.errors import RecordFormatError, RecordLockedError
from ormas_core.record.envelope import write_envelope
from ormas_core.record.inspection import Inspection, inspect
from ormas_core.record.lock import FolderLock
from ormas_core.record.models import IGNORED, model_files
from ormas_core.record.scan import Scan
from ormas_core.record.statement import Seal, SealedModel, model_of, statement_of
from ormas_core.terms import SavedFile, Status
from ormas_core.version import VERSION


def sign_record(
    folder: str | os.PathLike[str],
    key: str | os.PathLike[str],
    *,
    models: Iterable[str | os.PathLike[str]] = (),
    overwrite: bool = False,
    clock: Callable[[], int] = time.time_ns,
) -> Seal:
    """Write `record.dsse.json` beside the record; return what it says.

    Args:
        folder: the run folder. Its record must verify; it may be an interrupted one.
        key: file of the private key.
        models: files and folders of the model, beside those that the record names.
        overwrite: replace an earlier seal.
        clock: current unix time in nanoseconds; tests pass it.

    Raises:
        FileNotFoundError: there is no record, or no such model.
        RecordFormatError: the record does not verify; a broken one is not sealed.
        RecordExistsError: it is sealed already.
        KeyFileError: `key` holds no private Ed25519 key.
        RecordChangedError: a file was changed while it was being read.
        RecordLockedError: the run is going on.
    """
    run = Path(folder)
    _require_over(run)
    found = inspect(run, examiners={}, claims=frozenset(), heads={}, hashed=True)
    _require_good(run, found)
    named = {model.name: model for model in found.models.values()}
    for path in models:
        model = _model(run, Path(path))
        named.pop(model.name.rpartition("/")[2], None)  # what is there now counts more
        named[model.name] = model
    seal = Seal(
        run={
            "id": found.run_id,
            "status": (found.status or Status.INTERRUPTED).value,
            "complete": found.closed,
            "head": found.record.head.decode(),
            "lines": str(found.record.lines),
            "rows": str(found.metrics.lines),
        },
        record=_file(found.record),
        metrics=_file(found.metrics),
        models=tuple(named.values()),
        ignored=IGNORED,
        tool=f"ormas {VERSION}",
        time_ns=clock(),
    )
    write_envelope(run, statement_of(seal), Path(key), overwrite=overwrite)
    return seal


def _file(scan: Scan) -> SavedFile:
    return SavedFile(name=scan.name, bytes=scan.size, sha256=scan.sha256)


def _model(run: Path, path: Path) -> SealedModel:
    files = model_files(path, run)
    try:
        at = Path(os.path.abspath(path)).relative_to(os.path.abspath(run))  # noqa: PTH100 - links stay
    except ValueError:
        return model_of(files)
    above = at.parent.as_posix()
    if above == ".":
        return model_of(files, inside=True)
    model = model_of(files)
    moved = tuple(
        SavedFile(name=f"{above}/{file.name}", bytes=file.bytes, sha256=file.sha256)
        for file in files
    )
    return SealedModel(name=f"{above}/{model.name}", folder=model.folder, inside=True, files=moved)


def _require_over(run: Path) -> None:
    """Refuse a run that is being written: its next line would break the seal."""
    try:
        FolderLock(run, MonitorConfig().lock_stale).require_free()
    except RecordLockedError as error:
        raise RecordLockedError(
            str(run), f"{run} was not sealed: the run is going on. {error}"
        ) from None


def _require_good(run: Path, found: Inspection) -> None:
    record, metrics = found.record, found.metrics
    problem = record.failure or metrics.failure or found.metrics_failure
    problem = problem or record.misfit or metrics.misfit
    if not problem and not record.lines:
        problem = f"{record.name} holds no whole line"
    if problem:
        raise RecordFormatError(
            str(run),
            f"{run} was not sealed, because it does not verify: {problem}. "
            f"`ormas-monitor verify {run}` says more.",
        )
