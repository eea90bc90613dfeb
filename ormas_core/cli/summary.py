"""Show what a run folder says about its run: verdict, alarms, and what was not observed."""

import argparse
from pathlib import Path
from typing import Final

HELP: Final = "show the verdict, the alarms and the gaps of a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run", type=Path, help="the run folder")


def run(arguments: argparse.Namespace) -> int:
    """Print the summary; it does not judge, so it returns 0."""
    from ormas_core import RecordFormatError, read_run, run_facts, summary

    facts = run_facts(read_run(arguments.run))
    if facts.start is None:
        raise RecordFormatError(str(arguments.run), f"{arguments.run} holds no start of a run")
    print(summary(facts), end="")
    return 0
