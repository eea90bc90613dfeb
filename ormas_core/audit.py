"""Joins the record with those who can check what it claims, for `verify`."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from ormas_core.certificate_events import Certificate
from ormas_core.certificates import check_claim
from ormas_core.claims import Claim
from ormas_core.event_base import BaseEvent
from ormas_core.record import Examiner, Request, Verification, verify_record


def _doubt(event: BaseEvent) -> str | None:
    """Return why a certificate is not what its own proof proves, or None."""
    if not isinstance(event, Certificate):
        return f"it is a {event.kind}, and no certificate"
    return check_claim(
        Claim(
            layer=event.layer,
            units=event.units,
            cls=event.cls,
            kind=event.unit_kind,
            optimizer=event.optimizer,
            conditions=event.conditions,
            still=event.still,
            trace=event.trace,
            graph=event.graph,
            engine=event.engine,
        )
    )


EXAMINERS: Final[Mapping[str, Examiner]] = {"certificate": _doubt}
"""Kind of event -> who checks its claims again: takes the event, returns why it fails, or None."""


def verify_run(
    folder: str | os.PathLike[str],
    *,
    key: str | os.PathLike[str] | None = None,
    models: Iterable[str | os.PathLike[str]] = (),
    heads: Mapping[int, str] | None = None,
    canonical: bool = False,
) -> Verification:
    """Put every question about a run folder that this package can answer.

    Args:
        folder: the run folder; nothing in it is trusted.
        key: file of the public key whose owner you trust.
        models: files and folders of the model in your hands.
        heads: what a witness has kept, as `parse_heads` returns it.
        canonical: serialise every line again by RFC 8785.

    Raises:
        FileNotFoundError: there is no record in `folder`.
        NotADirectoryError: `folder` is something else.
        RecordChangedError: a file was changed while it was being read: the result is void.
        KeyFileError: `key` holds no public Ed25519 key.
    """
    request = Request(
        key=Path(key) if key is not None else None,
        models=tuple(map(Path, models)),
        heads=heads,
        canonical=canonical,
        examiners=EXAMINERS,
    )
    return verify_record(folder, request)
