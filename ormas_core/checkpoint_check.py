"""`check_checkpoint`: everything that can be said of a checkpoint before it ships."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from ormas_core.checkpoints import (
    RANK,
    Checkpoint,
    Finding,
    Progress,
    Wiring,
    in_order,
    judge,
    open_checkpoint,
    wire,
)
from ormas_core.errors import CheckpointError, ConfigError
from ormas_core.terms import Severity

FailOn: TypeAlias = Literal["critical", "warning", "never"]

FAIL_ON: Final[tuple[FailOn, ...]] = ("critical", "warning", "never")
"""The gates: which findings make a check fail."""

_SPEAKS: Final = frozenset({"no-tensors", "no-data"})
"""Findings that are an answer although no element was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What a check of a checkpoint gave.

    Attributes:
        path: what was checked.
        kind: what it is, such as `safetensors` or `model folder`.
        files: its weight files.
        size: bytes of its tensors.
        tensors: number of its tensors.
        read: number of tensors that were read whole.
        packed: number of tensors that are packed integers: present, and not judged.
        findings: what was found, critical findings first.
        globals: names that the pickles of the files would import, sorted.
        errors: why the result cannot be relied on, although the findings hold; mostly empty.
        base: what it was compared with, or "".
        wiring: a sentence about the architecture that the findings use, or "".
        record: a sentence about the signed record that the files agree with, or "".
    """

    path: str
    kind: str
    files: tuple[str, ...]
    size: int
    tensors: int
    read: int
    packed: int
    findings: tuple[Finding, ...]
    globals: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    base: str = ""
    wiring: str = ""
    record: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """Number of findings of each severity, the worst first; none is left out."""
        found = [one.severity for one in self.findings]
        return {severity.value: found.count(severity) for severity in RANK}

    @property
    def worst(self) -> Severity | None:
        """Severity of the worst finding; None if there is none."""
        return max((one.severity for one in self.findings), key=lambda s: RANK[s], default=None)

    @property
    def inspected(self) -> bool:
        """Whether there was anything to look at."""
        return self.read > 0

    def verdict(self, fail_on: FailOn = "critical") -> tuple[int, str]:
        """Return the exit code of the command and a sentence that says why.

        0: no finding at or above the gate. 1: there is one. 2: nothing could be inspected, or the
        result is void.
        """
        gated = [one for one in self.findings if _gated(one, fail_on)]
        spoken = [one for one in self.findings if one.code in _SPEAKS]
        if self.errors:
            return 2, self.errors[0]
        if not self.inspected and not (spoken and gated):
            return 2, f"no tensor of {self.path} could be inspected"
        if gated:
            one = gated[0]
            count = "1 finding" if len(gated) == 1 else f"{len(gated)} findings"
            return 1, f"{count} at or above {fail_on}, the first: {one.code} in {one.where}"
        rest = self.tensors - self.read
        blind = f"; {rest} of {self.tensors} tensors were not judged" if rest else ""
        gate = "no gate was set" if fail_on == "never" else f"no finding at or above {fail_on}"
        return 0, f"{gate}{blind}"


def check_checkpoint(
    path: str | os.PathLike[str],
    against: str | os.PathLike[str] | None = None,
    arch: str | None = None,
    *,
    record: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    prove: bool = False,
    trust: bool = False,
    progress: Progress | None = None,
) -> CheckResult:
    """Read a checkpoint, one tensor at a time, and say what is wrong with it.

    Needs no torch for safetensors, and builds no model unless `arch` or `prove` ask for it, or the
    folder of a transformers model holds batch normalisations.

    Args:
        path: a file or a folder of any format; recognised by content.
        against: a base to compare with, likewise.
        arch: `torchvision:NAME`, or `hf` for the `config.json` of the folder: tells which layers a
            ReLU follows. Nothing is downloaded.
        record: run folder whose signed record must name these files.
        key: public key that must have signed that record.
        prove: report what the certificate engine proves of these weights, on one random batch.
        trust: run code that pickles of the checkpoint ask for.
        progress: told how many bytes of how many have been read.

    Raises:
        CheckpointError: there is nothing at a path.
        ConfigError: an option cannot be used.
        MissingExtraError: the library of the architecture is not installed.
    """
    _require_sense(arch, record, key, prove=prove)
    checkpoint = open_checkpoint(path, trust=trust)
    base = open_checkpoint(against, trust=trust) if against is not None else None
    wiring = _wiring(checkpoint, arch)
    judged = judge(
        checkpoint,
        base,
        followers=wiring.followers if wiring is not None else None,
        progress=progress,
    )
    result = CheckResult(
        path=str(path),
        kind=checkpoint.kind.value,
        files=checkpoint.files,
        size=checkpoint.size,
        tensors=judged.tensors,
        read=judged.read,
        packed=judged.packed,
        findings=judged.findings,
        globals=checkpoint.globals,
        errors=("a file was changed during the check: the result is void",) if judged.void else (),
        base=str(against) if against is not None else "",
    )
    if wiring is not None:
        result = _with_wiring(result, wiring)
        if prove and arch is not None and not wiring.error:
            result = _with_proof(result, wiring, checkpoint, arch)
    return _with_record(result, record, key) if record is not None else result


def _require_sense(
    arch: str | None,
    record: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
    *,
    prove: bool,
) -> None:
    if prove and arch is None:
        raise ConfigError("prove", "a proof needs an architecture: 'torchvision:NAME' or 'hf'")
    if key is not None and record is None:
        raise ConfigError("key", "a key checks the signature of a record: name its run folder too")
    if record is not None and not (Path(record) / "record.jsonl").exists():
        raise CheckpointError(str(record), f"{record} holds no record.jsonl. Name a run folder.")


def _gated(one: Finding, fail_on: FailOn) -> bool:
    return fail_on != "never" and RANK[one.severity] >= RANK[Severity(fail_on)]


def _wiring(checkpoint: Checkpoint, arch: str | None) -> Wiring | None:
    """Return the wiring that was asked for, or that a folder with batch norms has by itself."""
    by_itself = arch is None and _has_batch_norm(checkpoint) and bool(checkpoint.config)
    if arch is None and not by_itself:
        return None
    return wire(checkpoint, arch or "hf", asked=arch is not None)


def _has_batch_norm(checkpoint: Checkpoint) -> bool:
    return any(name.endswith("running_var") for name in checkpoint.names)


def _with_wiring(result: CheckResult, wiring: Wiring) -> CheckResult:
    findings = in_order((*result.findings, *wiring.findings))
    errors = (*result.errors, *((wiring.error,) if wiring.error else ()))
    return replace(result, findings=findings, errors=errors, wiring=wiring.sentence)


def _with_proof(
    result: CheckResult, wiring: Wiring, checkpoint: Checkpoint, arch: str
) -> CheckResult:
    from ormas_core.checkpoint_proof import with_proof

    found = with_proof(checkpoint, arch, result.findings, wiring.followers)
    return replace(result, findings=found)


def _with_record(
    result: CheckResult, record: str | os.PathLike[str], key: str | os.PathLike[str] | None
) -> CheckResult:
    from ormas_core.checkpoint_record import record_findings

    found, sentence = record_findings(Path(result.path), record, key)
    return replace(result, findings=in_order((*result.findings, *found)), record=sentence)
