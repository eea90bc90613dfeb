"""Seal a run folder: record, metrics and model files as they are now, under one signature."""

import argparse
from pathlib import Path
from typing import Final

from ormas_core.cli.shown import plain

HELP: Final = "seal a run folder and the model it belongs to, with a signature"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run", type=Path, help="the run folder; its record must verify")
    parser.add_argument(
        "--key", type=Path, metavar="FILE", required=True, help="private key, as keygen writes it"
    )
    parser.add_argument(
        "--model",
        type=Path,
        metavar="PATH",
        action="append",
        default=[],
        help="file or folder of the model; may be repeated",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier seal")


def run(arguments: argparse.Namespace) -> int:
    """Write `record.dsse.json` and print what it seals."""
    from ormas_core import sign_record

    seal = sign_record(
        arguments.run, arguments.key, models=arguments.model, overwrite=arguments.overwrite
    )
    for file in seal.files:
        print(f"{file.sha256}  {plain(file.name)}")
    print(f"sealed    {len(seal.files)} files; the run is {seal.run['status']}")
    return 0
