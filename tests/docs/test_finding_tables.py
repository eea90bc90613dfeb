"""The page about findings is the catalogue, and the catalogue covers all that can be found."""

import re
from pathlib import Path
from typing import Final

from ormas_core.checkpoints import CATALOGUE, FINDING_OF, PROBLEMS

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs/reference/findings.md").read_text(encoding="utf-8")


def test_findings_are_the_catalogue() -> None:
    """Every code once, in order, with its severity, its meaning and its advice."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| `")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert table == [
        [f"`{code}`", kind.severity.value, kind.meaning, kind.advice]
        for code, kind in CATALOGUE.items()
    ]


def test_every_problem_of_reading_becomes_a_finding() -> None:
    """Nothing that a reader may say is lost for want of a code."""
    assert set(FINDING_OF) == set(PROBLEMS)
    assert set(FINDING_OF.values()) <= set(CATALOGUE)


def test_every_code_is_reported_somewhere() -> None:
    """The catalogue promises nothing that no check ever says."""
    package = ROOT / "ormas_core"
    files = [
        path
        for path in sorted(package.rglob("*.py"))
        if path.name not in ("findings.py", "opened.py")
        and ("checkpoint" in path.as_posix().removeprefix(package.as_posix()))
    ]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    said = set(re.findall(r'"([a-z]+(?:-[a-z]+)*)"', text))
    assert set(CATALOGUE) - said == set()


def test_every_code_is_planted_in_some_test() -> None:
    """With the exact code, so that renaming it fails."""
    folders = ("tests/ormas_core", "tests/cases")
    tests = [path for folder in folders for path in (ROOT / folder).rglob("test_check*.py")]
    tests += [ROOT / "tests/ormas_core/cli/test_cli_check.py"]
    tests += sorted((ROOT / "tests/ormas_core/checkpoints").glob("test_*.py"))
    text = "\n".join(path.read_text(encoding="utf-8") for path in tests)
    assert [code for code in CATALOGUE if f'"{code}"' not in text] == []
