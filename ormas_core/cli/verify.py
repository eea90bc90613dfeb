"""Check that a run folder holds what the monitor wrote, all of it, for this model."""

import argparse
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ormas_core.cli.shown import plain

HELP: Final = "check a run folder: chain, completeness, seal, signature, model files"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run", type=Path, help="the run folder; nothing in it is trusted")
    parser.add_argument("--key", type=Path, metavar="FILE", help="public key that must have signed")
    parser.add_argument(
        "--model",
        type=Path,
        metavar="PATH",
        action="append",
        default=[],
        help="file or folder of the model in your hands; may be repeated",
    )
    parser.add_argument(
        "--witness",
        metavar="WHERE",
        help="heads kept elsewhere: mlflow:RUN_ID, or a file of LINES:HEAD entries",
    )
    parser.add_argument(
        "--tracking-uri", metavar="URI", help="MLflow store of --witness, if not the default one"
    )
    parser.add_argument(
        "--canonical", action="store_true", help="serialise every line again by RFC 8785"
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit 1 unless every check that applies passes"
    )
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Print the checks; return 1 if one fails, or with --strict if one does not pass."""
    from ormas_core import verify_run

    result = verify_run(
        arguments.run,
        key=arguments.key,
        models=arguments.model,
        heads=_heads(arguments),
        canonical=arguments.canonical,
    )
    refused = result.failed or (arguments.strict and not result.strict)
    if arguments.json:
        print(json.dumps({**dataclasses.asdict(result), "ok": not refused}))
    else:
        for check in result.checks:
            print(f"{check.outcome.upper():<9} {check.name}: {plain(check.sentence)}")
        print(f"head      {plain(result.head)}")
    return 1 if refused else 0


def _heads(arguments: argparse.Namespace) -> Mapping[int, str] | None:
    from ormas_core import parse_heads, read_heads

    if arguments.witness is None:
        return None
    kind, _, run_id = arguments.witness.partition(":")
    if kind != "mlflow":
        return read_heads(arguments.witness)
    from ormas_mlflow import witness_tags

    record_id = _record_id(arguments.run)
    return parse_heads(witness_tags(run_id, record_id, tracking_uri=arguments.tracking_uri))


def _record_id(folder: Path) -> str:
    """Return the identifier that the record's first line bears, for want of one: nothing."""
    from ormas_core import RecordFormatError, RunStart, read_record

    try:
        for line in read_record(folder):
            return line.event.run_id if isinstance(line.event, RunStart) else ""
    except RecordFormatError:
        pass
    return ""
