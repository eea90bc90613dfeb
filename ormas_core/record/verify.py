"""Answers, one by one: is a run folder what the monitor wrote, all of it, for this model?"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from ormas_core.errors import RecordFormatError
from ormas_core.record import sealcheck
from ormas_core.record.inspection import Examiner, Inspection, inspect
from ormas_core.record.reader import METRICS_FILE, RECORD_FILE, SEAL_FILE
from ormas_core.record.sealcheck import Sealed, read_seal


class Outcome(StrEnum):
    """Result of one check.

    `absent`: there is nothing to check. `unchecked`: there is, and what the check needs was not
    given. `skipped`: it was not asked for, or does not apply.
    """

    PASS = "pass"  # noqa: S105 - an outcome, no password
    FAIL = "fail"
    ABSENT = "absent"
    UNCHECKED = "unchecked"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """One question about a record, answered: its name, the outcome and one sentence."""

    name: str
    outcome: Outcome
    sentence: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The answers about one run folder.

    Attributes:
        head: chain head that the last anchor names, as it was sent to the sinks; the hash of the
            last line where there is no anchor.
        lines: good lines of the record.
    """

    folder: str
    checks: tuple[Check, ...]
    head: str
    lines: int

    @property
    def failed(self) -> bool:
        """Whether any check failed."""
        return any(check.outcome is Outcome.FAIL for check in self.checks)

    @property
    def complete(self) -> bool:
        """Whether the record is whole and comes to its end; who wrote it is another question."""
        passed = {check.name for check in self.checks if check.outcome is Outcome.PASS}
        return passed >= WHOLE and not self.failed

    @property
    def strict(self) -> bool:
        """Whether every check passed that was asked for and applies, which `--strict` asks for."""
        fine = (Outcome.PASS, Outcome.SKIPPED)
        return all(check.outcome in fine for check in self.checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the reader of a record has, and asks for.

    Attributes:
        key: file of the public key that is trusted.
        models: files and folders of the model in the reader's hands.
        heads: what a witness kept: number of lines -> hash of the last of them; None without one.
        canonical: serialise every line again.
        examiners: by kind of event, who checks its claims.
    """

    key: Path | None = None
    models: tuple[Path, ...] = ()
    heads: Mapping[int, str] | None = None
    canonical: bool = False
    examiners: Mapping[str, Examiner] | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything the checks look at."""

    folder: Path
    request: Request
    found: Inspection
    sealed: Sealed


Answer = tuple[Outcome, str]

CLAIMS: Final = frozenset({"certificate"})
"""Kinds of event that claim something which can be checked again."""


def verify_record(folder: str | os.PathLike[str], request: Request | None = None) -> Verification:
    """Put every question of `CHECKS` to a run folder.

    Nothing in the folder is trusted: links are not followed, and whatever is wrong with a file
    fails the check that it is for.

    Raises:
        FileNotFoundError: there is no `record.jsonl` in `folder`.
        NotADirectoryError: `folder` is something else.
        RecordChangedError: a file was changed while it was being read.
        KeyFileError: the key of the request cannot be read.
    """
    path, request = Path(folder), request or Request()
    sealed = read_seal(path)
    found = inspect(
        path,
        examiners=request.examiners or {},
        claims=CLAIMS,
        heads=request.heads or {},
        canonical=request.canonical,
        hashed=sealed.seal is not None,
    )
    evidence = Evidence(path, request, found, sealed)
    checks = (Check(name, *answer(evidence)) for name, answer in CHECKS.items())
    head = found.anchor.head if found.anchor else found.record.head.decode()
    return Verification(str(folder), tuple(checks), head, found.record.lines)


def _chain(evidence: Evidence) -> Answer:
    record, found = evidence.found.record, evidence.found
    if record.failure:
        return Outcome.FAIL, f"{record.failure}."
    if not record.lines:
        return Outcome.FAIL, f"{RECORD_FILE} holds no whole line."
    anchors = f"{found.anchors} anchors" if found.anchors else "no anchor"
    sentence = f"{record.lines} lines of {RECORD_FILE}, each hash and link as written; {anchors}."
    return Outcome.PASS, sentence + _torn(record.torn_at)


def _torn(torn_at: int | None) -> str:
    return "" if torn_at is None else f" A torn last line at byte {torn_at} is left out."


def _completeness(evidence: Evidence) -> Answer:
    found, record = evidence.found, evidence.found.record
    if record.failure:
        return Outcome.UNCHECKED, "How the record ends cannot be told where its chain breaks."
    if found.lost:
        sentence = f"The record says that {found.lost} events found no room and are missing."
        return Outcome.ABSENT, sentence
    if found.closed and record.torn_at is None:
        return Outcome.PASS, "The record ends in run_end and its anchor."
    what = "INTERRUPTED: the record does not end in run_end and its anchor"
    if found.going_on:
        what += " (record.lock is there: the run may be going on)"
    if found.anchor is None:
        return Outcome.ABSENT, f"{what}; no anchor covers any of it."
    return Outcome.ABSENT, (
        f"{what}; it is covered up to the anchor in line {found.anchor_line} of {record.lines} "
        f"(step {found.anchor.step})."
    )


def _metrics(evidence: Evidence) -> Answer:
    found, rows = evidence.found, evidence.found.metrics
    pinned = found.anchor.metrics_rows if found.anchor else 0
    if rows.failure or found.metrics_failure:
        return Outcome.FAIL, f"{rows.failure or found.metrics_failure}."
    if found.closed and (rows.lines != pinned or rows.torn_at is not None):
        return Outcome.FAIL, (
            f"The last anchor pins {pinned} rows and the end of {METRICS_FILE}; {rows.lines} rows "
            f"and {rows.size} bytes are there."
        )
    sentence = f"{rows.lines} rows of {METRICS_FILE}, each hash and link as written; "
    sentence += f"anchors pin {pinned} of them."
    return Outcome.PASS, sentence + _torn(rows.torn_at)


def _schema(evidence: Evidence) -> Answer:
    found = evidence.found
    misfits = found.record.misfits + found.metrics.misfits
    if misfits:
        more = f" (and {misfits - 1} more)" if misfits > 1 else ""
        return Outcome.FAIL, f"{found.record.misfit or found.metrics.misfit}{more}."
    if not found.record.lines:
        return Outcome.UNCHECKED, "There is no line to look at."
    kinds = f"Format version {found.schema}; every line is an event of a known kind in its place."
    return Outcome.PASS, kinds


def _certificates(evidence: Evidence) -> Answer:
    found = evidence.found
    if found.refuted:
        return Outcome.FAIL, f"A certificate does not hold: {found.refuted}."
    if found.unexamined:
        return Outcome.UNCHECKED, f"{found.unexamined} certificates; nothing here re-checks them."
    if not found.examined:
        return Outcome.SKIPPED, "The record holds no certificate."
    return Outcome.PASS, f"{found.examined} certificates re-checked from what they record."


def _canonical(evidence: Evidence) -> Answer:
    if not evidence.request.canonical:
        return Outcome.SKIPPED, "Not asked for; --canonical serialises every line again."
    for scan in (evidence.found.record, evidence.found.metrics):
        if scan.uncanonical:
            sentence = f"{scan.name}, line {scan.uncanonical}: not in the spelling of RFC 8785."
            return Outcome.FAIL, sentence
    if evidence.found.record.failure or evidence.found.metrics.failure:
        return Outcome.UNCHECKED, "Lines after the break of a chain were not looked at."
    return Outcome.PASS, "Every line is in the canonical spelling of RFC 8785."


def _witness(evidence: Evidence) -> Answer:
    heads, found = evidence.request.heads, evidence.found
    if heads is None:
        return Outcome.SKIPPED, "Not asked for; --witness compares with heads kept elsewhere."
    if not heads:
        return Outcome.FAIL, "The witness holds no head, so it proves nothing."
    if found.differs:
        return Outcome.FAIL, f"The record is not the one that was witnessed: {found.differs}."
    return Outcome.PASS, (
        f"All {len(heads)} heads of the witness are in their places: nothing up to line "
        f"{found.witnessed} of {found.record.lines} was written anew."
    )


def _seal(evidence: Evidence) -> Answer:
    sealed, found = evidence.sealed, evidence.found
    if sealed.absent:
        return Outcome.ABSENT, f"There is no {SEAL_FILE}: the record is not signed."
    problem = sealed.problem or sealcheck.difference(sealed, found)
    if problem:
        return Outcome.FAIL, f"{problem}."
    return Outcome.PASS, "Record and metrics are the sealed ones, byte for byte."


def _signature(evidence: Evidence) -> Answer:
    sealed, key = evidence.sealed, evidence.request.key
    if sealed.absent and key is not None:
        return Outcome.FAIL, f"There is no {SEAL_FILE}, so nothing is signed by {key}."
    if sealed.absent:
        return Outcome.ABSENT, "There is no signature."
    if sealed.signed is None:
        return Outcome.FAIL, "The seal cannot be read, so nothing is known to be signed."
    if key is None:
        keyids = ", ".join(keyid[:12] for keyid in sealed.signed.keyids[:3])
        return Outcome.UNCHECKED, f"Signed by {keyids:.60}, as it says; --key FILE checks that."
    problem = sealcheck.refutation(sealed.signed, key)
    if problem:
        return Outcome.FAIL, f"{problem}."
    return Outcome.PASS, f"The seal is signed with the private key of {key}."


def _models(evidence: Evidence) -> Answer:
    sealed, paths = evidence.sealed, evidence.request.models
    if not sealed.absent and sealed.seal is None:
        return Outcome.FAIL, "The seal cannot be read, so no model is known to be sealed."
    where = "record" if sealed.seal is None else "seal"
    try:
        named, ignored = sealcheck.models_named(evidence.folder, sealed, evidence.found)
        if not named and paths:
            return Outcome.FAIL, f"The {where} names no model, so nothing is said of {paths[0]}."
        if not named:
            return Outcome.ABSENT, f"The {where} names no model file."
        problem, compared, left = sealcheck.compare_models(evidence.folder, named, paths, ignored)
    except (RecordFormatError, OSError) as error:
        return Outcome.FAIL, f"{error!s:.300}."
    if problem:
        return Outcome.FAIL, f"{problem}."
    if left:
        return Outcome.UNCHECKED, f"Not in the run folder: {left:.200}. --model PATH compares it."
    return Outcome.PASS, f"{compared} model files are the ones that the {where} names."


CHECKS: Final[Mapping[str, Callable[[Evidence], Answer]]] = {
    "chain": _chain,
    "completeness": _completeness,
    "metrics": _metrics,
    "schema": _schema,
    "certificates": _certificates,
    "seal": _seal,
    "signature": _signature,
    "model files": _models,
    "witness": _witness,
    "canonical": _canonical,
}
"""Every question, in the order in which the answers are shown."""

WHOLE: Final = frozenset({"chain", "completeness", "metrics", "schema"})
"""The questions about the record itself."""
