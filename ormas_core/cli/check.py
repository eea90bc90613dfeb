"""Check a checkpoint before it ships: a gate for CI that reads every number and runs no code."""

import argparse
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ormas_core.cli.shown import plain
from ormas_core.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from ormas_core import CheckResult

HELP: Final = "check a checkpoint: NaN, dead channels, missing shards, a base, a signed record"

_FAIL_ON: Final = ("critical", "warning", "never")
_WIDTH: Final = 30
_PATIENCE_S: Final = 0.5
_EVERY_S: Final = 0.1
_START: Final = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("path", type=_named, help="a file or folder of any format; nothing is run")
    parser.add_argument("--against", type=_named, metavar="BASE", help="a base to compare with")
    parser.add_argument(
        "--arch", metavar="ARCH", help="torchvision:NAME, or hf for the config.json of the folder"
    )
    parser.add_argument(
        "--prove", action="store_true", help="prove dead units on one random batch through --arch"
    )
    parser.add_argument(
        "--record", type=Path, metavar="RUN", help="run folder whose record must name these files"
    )
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="public key that must have signed the record"
    )
    parser.add_argument(
        "--fail-on", choices=_FAIL_ON, default="critical", help="exit 1 from here on (critical)"
    )
    parser.add_argument(
        "--trust", action="store_true", help="run code that pickles of the checkpoint ask for"
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print JSON and nothing else")
    shown.add_argument("--sarif", action="store_true", help="print SARIF 2.1.0 and nothing else")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write a page of HTML")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; return 1 if one is at or above the gate, 2 if nothing can be said."""
    # Threads of numpy's linear algebra, which is not used, would spin for a tenth of a second.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from ormas_core import check_checkpoint

    if arguments.out is not None:
        _require_free(arguments.out)
    bar = _Bar()
    with contextlib.redirect_stdout(sys.stderr):  # of what is run with --trust, and of libraries
        result = check_checkpoint(
            arguments.path,
            arguments.against,
            arguments.arch,
            record=arguments.record,
            key=arguments.key,
            prove=arguments.prove,
            trust=arguments.trust,
            progress=bar.show if sys.stderr.isatty() else None,
        )
    bar.clear()
    code, why = result.verdict(arguments.fail_on)
    _print(result, code, why, arguments)
    if arguments.out is not None:  # after the findings: they must not be lost with the page
        from ormas_core import checkpoint_html

        try:
            arguments.out.write_text(checkpoint_html(result, code, why), encoding="utf-8")
        except OSError as error:
            reason = error.strerror or str(error)
            raise CheckpointError(
                str(arguments.out),
                f"the page was not written to {arguments.out}: {reason}. The findings above hold.",
            ) from None
    return code


def _named(text: str) -> Path:
    """Return a path that was given; nothing, as of an unset variable, is not this folder."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; name a file or a folder")
    return Path(text)


def _require_free(out: Path) -> None:
    """Raises: ConfigError: a page would be written over what is no page, such as the weights."""
    try:
        if not out.is_file() or out.stat().st_size == 0:
            return
        with out.open("rb") as file:
            first = file.read(_START)
    except OSError:
        return  # what is wrong with it is said after the findings
    if b"<!doctype html" not in first.lower():
        raise ConfigError("out", f"--out {out} exists and is no HTML page: not overwritten")


def _print(result: "CheckResult", code: int, why: str, arguments: argparse.Namespace) -> None:
    from ormas_core import checkpoint_data, checkpoint_lines, checkpoint_sarif

    if arguments.json:
        print(json.dumps(checkpoint_data(result, code, why)))
    elif arguments.sarif:
        print(json.dumps(checkpoint_sarif(result, code, why), indent=1))
    else:
        for line in checkpoint_lines(result):
            print(plain(line))
        print(plain(f"exit {code}: {why}"))


class _Bar:
    """How far a long reading is, on one line of a terminal."""

    def __init__(self) -> None:
        self._started = self._shown = time.monotonic()
        self._drawn = False

    def show(self, done: int, size: int) -> None:
        """Draw, if the reading has taken a while and the last drawing is old enough."""
        now = time.monotonic()
        if not size or now - self._started < _PATIENCE_S or now - self._shown < _EVERY_S:
            return
        self._shown, self._drawn = now, True
        filled = min(_WIDTH, _WIDTH * done // size)
        bar = "#" * filled + "." * (_WIDTH - filled)
        print(f"\r[{bar}] {done / size:4.0%}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove what was drawn."""
        if self._drawn:
            print(f"\r{'':{_WIDTH + 8}}\r", end="", file=sys.stderr, flush=True)
