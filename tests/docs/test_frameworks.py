"""The table of features names tests that exist, and says in each cell what is known."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs/reference/frameworks.md").read_text(encoding="utf-8")
FRAMEWORKS = {"transformers `Trainer`": "hf", "Lightning": "lightning"}
WORDS = ("works", "in part", "not observable")
WITHOUT_TEST = ("none there",)


def table() -> list[list[str]]:
    """Return the rows of the table, its header first and without the line below that."""
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return [cells[0], *cells[2:]]


@cache
def every_test() -> dict[str, list[Path]]:
    """Return the files of every test, by its name."""
    found: dict[str, list[Path]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found.setdefault(node.name, []).append(path)
    return found


CELLS = [
    (row[0], name, cell)
    for row in table()[1:]
    for name, cell in zip(FRAMEWORKS.values(), row[1:], strict=True)
]


def test_the_table_is_about_both_frameworks() -> None:
    """A column for each, no feature twice, and the words explained above it."""
    header, *rows = table()
    assert header == ["feature", *FRAMEWORKS]
    features = [row[0] for row in rows]
    assert sorted(set(features)) == sorted(features)
    assert re.findall(r"^- \*\*([a-z ]+)\*\*:", PAGE, re.MULTILINE) == [*WORDS, *WITHOUT_TEST]


@pytest.mark.parametrize(("feature", "framework", "cell"), CELLS)
def test_each_cell_is_held_by_a_test_of_its_framework(
    feature: str, framework: str, cell: str
) -> None:
    """The test exists, in a file about that framework, or about both."""
    if cell in WITHOUT_TEST:
        return
    said = re.fullmatch(r"([a-z ]+): `(test_\w+)`", cell)
    assert said, f"{feature}: a cell is 'word: `test_name`'; found {cell!r}"
    assert said[1] in WORDS
    files = every_test().get(said[2], [])
    about = [p for p in files if framework in p.name or p.parent.name == "contracts"]
    about += [p for p in files if framework in p.read_text(encoding="utf-8").lower()]
    assert about, f"{feature}: no test {said[2]} of {framework}; found in {files}"


@pytest.mark.parametrize("package", ["ormas_hf", "ormas_lightning"])
def test_every_file_about_a_framework_is_represented(package: str) -> None:
    """So that a new subject gets its row."""
    named = {name for _, _, cell in CELLS for name in re.findall(r"`(test_\w+)`", cell)}
    for path in (TESTS / package).glob("test_*.py"):
        own = {name for name, files in every_test().items() if path in files}
        assert own & named, path.name
