"""How long things may be, and what tests and folders are called."""

import ast
import statistics
import tomllib
from pathlib import Path
from typing import Final

from source_support import PACKAGES, ROOT, module_of, sources

MOST_FILE_LINES: Final = 400
MOST_FUNCTION_LINES: Final = 60
MOST_MONITOR_LINES: Final = 300


def lines_of(path: str) -> int:
    """Return the number of lines of a file."""
    return len((ROOT / path).read_text(encoding="utf-8").splitlines())


def function_lengths() -> dict[str, int]:
    """Return the lines of every function, signature and docstring included."""
    return {
        f"{path}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_files_are_short() -> None:
    """400 lines at the very most, and half of them at most 150."""
    lengths = {path: lines_of(path) for path in sources()}
    assert {path: n for path, n in lengths.items() if n > MOST_FILE_LINES} == {}
    assert statistics.median(lengths.values()) <= 150


def test_functions_are_short() -> None:
    """60 lines at the very most, and nine in ten at most 30."""
    lengths = function_lengths()
    assert {name: n for name, n in lengths.items() if n > MOST_FUNCTION_LINES} == {}
    assert statistics.quantiles(lengths.values(), n=10)[-1] <= 30


def test_the_monitor_is_a_thin_frame() -> None:
    """The one file that everything meets in stays under 300 lines."""
    assert lines_of("ormas_core/monitor.py") < MOST_MONITOR_LINES


def test_there_are_five_top_level_folders_of_python() -> None:
    """The four packages and the tests; no other package, no stray module."""
    folders = {
        path.name
        for path in ROOT.iterdir()
        if path.is_dir() and not path.name.startswith(".") and any(path.glob("*.py"))
    }
    assert folders == {*PACKAGES, "tests"}
    assert list(ROOT.glob("*.py")) == []


def test_the_distribution_lists_every_package() -> None:
    """Each folder with an `__init__.py`, each with its type marker, and nothing else."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = settings["tool"]["setuptools"]["packages"]
    found = {module_of(path) for path in sources() if path.endswith("/__init__.py")}
    assert sorted(listed) == sorted(found)
    folders = {str(Path(path).parent) for path in sources()}
    assert folders == {package.replace(".", "/") for package in listed}
    data = settings["tool"]["setuptools"]["package-data"]
    assert data == {package: ["py.typed"] for package in PACKAGES}
    assert all((ROOT / package / "py.typed").exists() for package in PACKAGES)


def test_every_test_states_its_fact() -> None:
    """A docstring in each test and each test module: what holds, for whoever sees it fail."""
    silent = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tests = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        ]
        assert tests, f"{path} has no test"
        silent += [f"{path.name}: {t.name}" for t in tests if not ast.get_docstring(t)]
        silent += [] if ast.get_docstring(tree) else [path.name]
    assert silent == []


def test_tests_are_no_package() -> None:
    """A test folder named like a package must not be mistaken for it."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_test_files_have_names_of_their_own() -> None:
    """Without packages pytest imports two test files of one name as the same module."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
