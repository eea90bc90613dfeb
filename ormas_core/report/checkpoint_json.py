"""The check of a checkpoint as data: plain JSON, and SARIF 2.1.0 for code-scanning pages."""

import dataclasses
from pathlib import PurePath
from typing import Any, Final
from urllib.parse import quote

from ormas_core.checkpoint_check import CheckResult
from ormas_core.checkpoints import CATALOGUE, Finding
from ormas_core.terms import Severity
from ormas_core.version import VERSION

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS: Final = {Severity.CRITICAL: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def checkpoint_data(result: CheckResult, code: int, why: str) -> dict[str, Any]:
    """Return everything about a check as values that JSON has.

    Args:
        result: the check.
        code: exit code of the command.
        why: the sentence that goes with it.
    """
    return {**dataclasses.asdict(result), "counts": result.counts, "exit": code, "why": why}


def checkpoint_sarif(result: CheckResult, code: int, why: str) -> dict[str, Any]:
    """Return a check as a SARIF 2.1.0 log with one run.

    Args: as of `checkpoint_data`.
    """
    codes = list(dict.fromkeys(one.code for one in result.findings))
    rules = [
        {
            "id": name,
            "shortDescription": {"text": CATALOGUE[name].meaning},
            "help": {"text": CATALOGUE[name].advice},
            "defaultConfiguration": {"level": _LEVELS[CATALOGUE[name].severity]},
        }
        for name in codes
    ]
    run = {
        "tool": {"driver": {"name": "ormas-monitor", "version": VERSION, "rules": rules}},
        "invocations": [
            {
                "executionSuccessful": code != 2,  # noqa: PLR2004 - nothing could be inspected
                "exitCode": code,
                "exitCodeDescription": why,
            }
        ],
        "results": [_result(one, codes.index(one.code), result) for one in result.findings],
        "columnKind": "utf16CodeUnits",
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(one: Finding, rule: int, result: CheckResult) -> dict[str, Any]:
    import hashlib

    mark = hashlib.sha256(f"{one.code}\0{one.file}\0{one.where}".encode(errors="replace"))
    return {
        "ruleId": one.code,
        "ruleIndex": rule,
        "level": _LEVELS[one.severity],
        "message": {"text": f"{one.where}: {one.detail.rstrip('.')}. {one.advice}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(result, one.file)},
                    "region": {"startLine": 1},  # pages that show results ask for a line
                },
                "logicalLocations": [{"fullyQualifiedName": one.where, "kind": "member"}],
            }
        ],
        "partialFingerprints": {"finding/v1": mark.hexdigest()},
        "properties": {"tensors": list(one.tensors), "units": list(one.units)},
    }


def _uri(result: CheckResult, file: str) -> str:
    """Return where a file is, as a relative or absolute URI reference."""
    path = PurePath(result.path)
    if file and file != path.name:
        path /= file
    found = quote(path.as_posix(), errors="replace")
    return f"file://{found}" if path.is_absolute() else found
