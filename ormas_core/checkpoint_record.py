"""Joins a checkpoint with the signed record of the run that made it, for `check --record`."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ormas_core.audit import verify_run
from ormas_core.checkpoints import Finding, finding
from ormas_core.errors import OrmasError
from ormas_core.record import Outcome, Verification

_QUESTIONS: Final = ("chain", "metrics", "schema", "seal", "signature", "model files")
"""Checks of a record that must not fail for its word on a model to count."""


def record_findings(
    path: Path, run: str | os.PathLike[str], key: str | os.PathLike[str] | None
) -> tuple[tuple[Finding, ...], str]:
    """Compare the files of a checkpoint with the ones that a run's record names.

    Args:
        path: the checkpoint, file or folder.
        run: the run folder; nothing in it is trusted.
        key: file of the public key that must have signed it, or None.

    Returns:
        Findings, and a sentence about what was compared.
    """
    try:
        verification = verify_run(run, key=key, models=[path])
    except (OrmasError, OSError) as error:
        return (finding("not-compared", str(run), f"the record cannot be used: {error}"),), ""
    found = tuple(_findings(verification, str(run)))
    said = {check.name: check.sentence for check in verification.checks}
    return found, "" if found else f"{said['model files']} {said['signature']}"


def _findings(verification: Verification, run: str) -> Iterator[Finding]:
    outcomes = {check.name: check for check in verification.checks}
    for name in _QUESTIONS:
        check = outcomes[name]
        if check.outcome is Outcome.FAIL:
            yield finding("digest-mismatch", run, f"{name}: {check.sentence}")
    if outcomes["seal"].outcome is Outcome.ABSENT:
        yield finding("not-compared", run, f"{outcomes['seal'].sentence} Its word binds nobody.")
