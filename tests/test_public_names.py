"""Public names, and what it costs to import them."""

import ast
import importlib
import subprocess
import sys
from typing import Final

import pytest
from source_support import ROOT, TORCH_USERS, for_types_only, sources


def exported_for_types() -> dict[str, str]:
    """Return what `ormas_core/__init__.py` imports for type checkers: name -> full name."""
    tree = sources()["ormas_core/__init__.py"]
    types = for_types_only(tree)
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node in types
        for alias in node.names
    }


def test_type_checkers_and_python_see_the_same_names() -> None:
    """The imports under `TYPE_CHECKING` are the table of lazy names, home modules included."""
    ormas_core = importlib.import_module("ormas_core")
    lazy = {name: f"ormas_core.{home}.{name}" for name, home in ormas_core._HOME_OF.items()}
    assert {**lazy, "__version__": "ormas_core.version.VERSION"} == exported_for_types()
    assert set(ormas_core.__all__) == set(exported_for_types())
    assert len(ormas_core.__all__) == len(set(ormas_core.__all__))
    assert set(dir(ormas_core)) == set(ormas_core.__all__)


@pytest.mark.parametrize("name", sorted(exported_for_types()))
def test_every_public_name_resolves(name: str) -> None:
    """To the same object as in its home module."""
    home, _, attribute = exported_for_types()[name].rpartition(".")
    public = getattr(importlib.import_module("ormas_core"), name)
    assert public is getattr(importlib.import_module(home), attribute)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    """As of any module."""
    ormas_core = importlib.import_module("ormas_core")
    with pytest.raises(AttributeError, match="module 'ormas_core' has no attribute 'Monitors'"):
        _ = ormas_core.Monitors


HEAVY: Final = ("torch", "lightning", "transformers", "accelerate", "mlflow", "sklearn", "numpy")
TORCH_FREE: Final = [
    name
    for name, module in sorted(exported_for_types().items())
    if module.split(".")[1] not in (*TORCH_USERS, "manifest")
]


def loaded_after(code: str) -> set[str]:
    """Return which heavy packages a fresh interpreter has imported after `code`."""
    report = (
        f"import sys\n{code}\nprint(*sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", report],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def test_importing_the_package_imports_nothing_heavy() -> None:
    """Neither does any public name but the monitor itself."""
    assert loaded_after("import ormas_core") == set()
    names = ", ".join(name for name in TORCH_FREE if not name.startswith("__"))
    assert loaded_after(f"from ormas_core import {names}") == set()
    assert "torch" in loaded_after("from ormas_core import Monitor")


def test_the_command_line_starts_without_anything_heavy() -> None:
    """`ormas-monitor --help`, as a command and as a module, before any command runs."""
    loaded = loaded_after(
        "from ormas_core.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0"
    )
    assert loaded == set()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ormas_core.cli.main", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ormas-monitor" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "argparse" in imported
    assert imported & set(HEAVY) == set()
