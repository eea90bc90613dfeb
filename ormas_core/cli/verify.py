"""Check that a run folder holds what the monitor wrote, in order, and all of it."""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Final

HELP: Final = "check the hash chain and completeness of a run folder"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument(
        "--strict", action="store_true", help="exit 1 unless every check passes (a crash: absent)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Print the checks; return 1 if one fails, or with --strict if one does not pass."""
    from ormas_core import verify_record

    result = verify_record(arguments.run)
    refused = result.failed or (arguments.strict and not result.complete)
    if arguments.json:
        print(json.dumps({**dataclasses.asdict(result), "ok": not refused}))
    else:
        for check in result.checks:
            print(f"{check.outcome.upper():<7} {check.name}: {check.sentence}")
        print(f"head    {result.head}")
    return 1 if refused else 0
