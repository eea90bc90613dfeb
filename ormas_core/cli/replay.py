"""Give the recorded measurements to the alarm rules again, with the same or other settings."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ormas_core.cli.shown import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ormas_core import Event

HELP: Final = "judge the recorded measurements again, with the same or other thresholds"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a threshold, such as sigma=3.0; may be repeated",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print what differs; return 1 if the same settings do not give the recorded events."""
    from ormas_core import parse_changes, replay_run

    found = replay_run(arguments.run, parse_changes(arguments.set))
    for name, (before, now) in found.changes.items():
        print(f"setting   {name}: {before} -> {now}")
    for note in found.notes:
        print(f"note      {plain(note)}")
    print(f"recorded  {len(found.recorded)} events of the alarm rules")
    print(f"replayed  {len(found.replayed)}")
    _show("gone", found.only_recorded)
    _show("new", found.only_replayed)
    if found.same:
        print("The replay gives the recorded events, in the same order.")
    elif not (found.only_recorded or found.only_replayed):
        print("The replay gives the recorded events, in another order.")
    return 0 if found.same or found.changes else 1


def _show(what: str, events: "Sequence[Event]") -> None:
    from ormas_core import describe

    for event in events:
        print(f"{what:<9} step {event.step}: {event.kind}: {plain(describe(event))}")
