"""The source files of the packages as syntax trees, for the tests of their form. No test here."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("ormas_core", "ormas_hf", "ormas_lightning", "ormas_mlflow")

TORCH_USERS: Final = {
    "certificates",
    "certification",
    "checkpoint_proof",
    "checkpoints",
    "hooks",
    "monitor",
    "proofs",
    "ranks",
    "repair",
    "repairs",
    "sampling",
}


@cache
def sources() -> dict[str, ast.Module]:
    """Return the syntax tree of every file of the four packages, by its path from the root."""
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def module_of(path: str) -> str:
    """Return the dotted name of a file."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def part_of(path: str) -> str:
    """Return the module or package of `ormas_core` that a file belongs to; "" is the root."""
    return ([*module_of(path).split("."), ""])[1]


def imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Yield each import with the full dotted name of what is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)


def top(name: str) -> str:
    """Return the top-level package of a dotted name."""
    return name.partition(".")[0]


def is_module(name: str) -> bool:
    """Whether a dotted name is one of our modules."""
    return name in {module_of(path) for path in sources()}


def target(name: str) -> str:
    """Return the module from which a full imported name comes: the package if it exports it."""
    home, _, last = name.rpartition(".")
    return home if last in exports(home) or not is_module(name) else name


def exports(package: str) -> set[str]:
    """Return the names that the `__init__.py` of one of our packages imports from elsewhere."""
    tree = sources().get(f"{package.replace('.', '/')}/__init__.py")
    return {name.rpartition(".")[2] for _, name in imports(tree)} if tree else set()


def inside_functions(tree: ast.AST) -> set[ast.AST]:
    """Return every node that is inside a function."""
    return {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }


def for_types_only(tree: ast.AST) -> set[ast.AST]:
    """Return every node under `if TYPE_CHECKING:`."""
    return {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
