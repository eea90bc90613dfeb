"""`ormas-monitor`: finds the command and turns errors into exit codes.

Exit codes of every command: 0 fine, 1 the command's own "no", 2 usage or nothing inspected.
"""

import argparse
import io
import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Final

from ormas_core.cli import check, demo, diff, keygen, replay, sign, summary, verify
from ormas_core.errors import OrmasError
from ormas_core.version import VERSION

COMMANDS: Final[Mapping[str, ModuleType]] = {
    "demo": demo,
    "check": check,
    "summary": summary,
    "verify": verify,
    "keygen": keygen,
    "sign": sign,
    "diff": diff,
    "replay": replay,
}
"""Each module has HELP, add_arguments(parser) and run(arguments) -> exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    arguments = _parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of layers may be beyond the terminal
            stream.reconfigure(errors="backslashreplace")
    try:
        code: int = COMMANDS[arguments.command].run(arguments)
    except (OrmasError, OSError) as error:
        print(f"ormas-monitor {arguments.command}: {error}", file=sys.stderr)
        return 2
    return code


def _formatter(prog: str) -> argparse.HelpFormatter:
    """Return what formats help, as wide as the terminal.

    Left to itself it asks `shutil`, which imports four compression libraries at every start.
    """
    try:
        width = int(os.environ.get("COLUMNS", "")) or 80
    except ValueError:
        try:
            width = os.get_terminal_size(sys.stdout.fileno()).columns or 80
        except (OSError, ValueError, AttributeError):
            width = 80
    return argparse.HelpFormatter(prog, width=width - 2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ormas-monitor",
        description="Training health for PyTorch: records, and what they say.",
        formatter_class=_formatter,
    )
    parser.add_argument("--version", action="version", version=f"ormas {VERSION}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", prog=parser.prog
    )
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name, help=module.HELP, description=module.__doc__, formatter_class=_formatter
        )
        module.add_arguments(command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
