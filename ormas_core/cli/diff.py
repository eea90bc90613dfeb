"""Compare two runs: first whether both records are sound, then what differs."""

import argparse
from pathlib import Path
from typing import Final

from ormas_core.cli.shown import plain

HELP: Final = "compare two runs: integrity, settings, model, alarms, loss, verdict"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run_a", type=Path, help="a run folder")
    parser.add_argument("run_b", type=Path, help="another one")


def run(arguments: argparse.Namespace) -> int:
    """Print what differs; return 1 if a check of either record fails."""
    from ormas_core import diff_runs

    found = diff_runs(arguments.run_a, arguments.run_b)
    for name, verification in zip("AB", found.verifications, strict=True):
        failed = [check for check in verification.checks if check.outcome == "fail"]
        state = "sound" if not failed else "not sound"
        whole = "complete" if verification.complete else "not complete"
        print(f"{name}  {plain(verification.folder)}: {whole if not failed else state}")
        for check in failed:
            print(f"   FAIL {check.name}: {plain(check.sentence)}")
    topic = ""
    for difference in found.differences:
        if difference.topic != topic:
            topic = difference.topic
            print(topic)
        print(
            f"  {plain(difference.what)}: {plain(difference.first)} -> {plain(difference.second)}"
        )
    if not found.sound:
        print("What a broken record says is not compared.")
    elif not found.differences:
        print("No difference.")
    return 0 if found.sound else 1
