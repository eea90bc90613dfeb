"""The tables of the page about certificates are those of the engine."""

import importlib
import re
from pathlib import Path

from ormas_core.certificates.checker import OPERATIONS
from ormas_core.certificates.optimizers import SUPPORTED
from ormas_core.certificates.rules import RULES
from ormas_core.claims import HYPOTHESES, CertificateClass, StepKind, UnitKind

PAGE = (Path(__file__).parents[2] / "docs/concepts/certificates.md").read_text(encoding="utf-8")


def table(header: str) -> list[list[str]]:
    """Return the rows of the table whose first line begins with `header`."""
    found = re.search(rf"^\| {header} \|.*\n\|(?: -+ \|)+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert found, f"no table of {header}"
    lines = found[1].splitlines()
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines]


def test_optimizers_are_those_supported() -> None:
    """Each supported optimizer has its row, once."""
    named = [row[0] for row in table("optimizer")]
    assert sorted(named) == sorted(kind.__name__ for kind in SUPPORTED)


def test_families_are_the_rule_table() -> None:
    """Each family has its operations by name and number, and all together are the table."""
    total = 0
    for family, number, _, names in table("family"):
        module = importlib.import_module(f"ormas_core.certificates.rules.{family}")
        expected = sorted(name.removesuffix("Backward0") for name in module.RULES)
        assert names.split(", ") == expected, family
        assert int(number) == len(expected), family
        total += len(expected)
    assert total == len(RULES)
    assert f"These are {total} operations" in PAGE


def test_checker_covers_the_same_operations() -> None:
    """A trace of any rule can be checked again."""
    assert OPERATIONS.keys() == RULES.keys()


def test_words_are_all_explained() -> None:
    """Classes, kinds of units and kinds of lines have their tables, hypotheses their items."""
    assert [row[0] for row in table("class")] == list(CertificateClass)
    kinds = re.findall(r"^\| kind \|.*\n\|(?: -+ \|)+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    units, lines = (re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE) for rows in kinds)
    assert units == list(UnitKind)
    assert lines == list(StepKind)
    named = re.findall(r"^- \*\*(H\d), (\w+)\.\*\*", PAGE, re.MULTILINE)
    assert [f"{number} {word}" for number, word in named] == list(HYPOTHESES)
