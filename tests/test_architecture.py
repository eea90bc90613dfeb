"""Who may import whom, who may print, what may be private, and how long things may be.

The tables are literal: a new module fails here until someone decides where it belongs.
"""

import ast
import importlib
import re
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("ormas_core", "ormas_hf", "ormas_lightning", "ormas_mlflow")
ADAPTERS: Final = {
    "ormas_hf": {"accelerate", "torch", "transformers"},
    "ormas_lightning": {"lightning", "torch"},
    "ormas_mlflow": {"mlflow"},
}
"""Adapter -> the frameworks it may import beside the standard library and `ormas_core`."""

LAYERS: Final = {
    "across": 0,
    "certificate_events": 0,
    "claims": 0,
    "config": 0,
    "errors": 0,
    "event_base": 0,
    "events": 0,
    "record_events": 0,
    "terms": 0,
    "version": 0,
    "host": 1,
    "messages": 1,
    "options": 1,
    "ranks": 1,
    "sinks": 1,
    "alarms": 2,
    "certificates": 2,
    "checkpoints": 2,
    "hooks": 2,
    "record": 2,
    "repair": 2,
    "certification": 3,
    "audit": 3,
    "checkpoint_check": 3,
    "checkpoint_proof": 3,
    "checkpoint_record": 3,
    "diff": 3,
    "facts": 3,
    "journal": 3,
    "manifest": 3,
    "monitor": 3,
    "proofs": 3,
    "repairs": 3,
    "resume": 3,
    "replay": 3,
    "cli": 4,
    "report": 4,
    "testing": 4,
}
"""Module or package of `ormas_core` -> its layer; it imports from its own layer and below."""

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
}
LIBRARIES: Final = {
    "certificates": {"numpy", "torch"},
    "certification": {"torch"},
    "checkpoint_proof": {"torch"},
    "checkpoints": {"huggingface_hub", "numpy", "torch", "torchvision", "transformers"},
    "hooks": {"numpy", "torch"},
    "monitor": {"torch"},
    "proofs": {"torch"},
    "ranks": {"torch"},
    "repair": {"torch"},
    "repairs": {"numpy", "torch"},
    "record": {"cryptography", "rfc8785", "securesystemslib"},
    "report": {"jinja2"},
}
"""What else than the standard library a part of `ormas_core` imports."""

CHECKPOINT_TORCH: Final = {
    "ormas_core/checkpoints/building.py",
    "ormas_core/checkpoints/distributed.py",
    "ormas_core/checkpoints/trusted.py",
    "ormas_core/checkpoints/load.py",
    "ormas_core/checkpoints/wiring.py",
}
"""The files of `checkpoints` that may import torch: reading weights works without."""

TORCH_FREE_FILES: Final = ("ormas_core/certificates/__init__.py", "ormas_core/certificates/check")
"""Files, by how their paths begin, of a package that else uses torch: `verify` works without."""

TORCH_PRIVATE: Final = {
    "ormas_core/hooks/_torch.py": "torch._foreach_norm",
    "ormas_core/certificates/graph.py": "function._input_metadata",
}
"""The modules that may name private names of torch, with one that each does."""
ADAPTER_USERS: Final = {"ormas_core/cli/demo.py", "ormas_core/cli/verify.py"}
"""Commands that import an adapter when they need it."""

OWN_PRIVATE: Final = {("ormas_core/hooks/attach.py", "_handle")}
"""Private names of our own that two classes of one module share."""

MOST_FILE_LINES: Final = 400
MOST_FUNCTION_LINES: Final = 60
MOST_MONITOR_LINES: Final = 300


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


def core() -> dict[str, ast.Module]:
    """Return the files of `ormas_core`, its root package aside, which re-exports by a table."""
    return {
        path: tree
        for path, tree in sources().items()
        if path.startswith("ormas_core/") and path != "ormas_core/__init__.py"
    }


def test_the_packages_are_not_empty() -> None:
    """The checks below look at something."""
    assert len(sources()) > 30
    assert {path.partition("/")[0] for path in sources()} == set(PACKAGES)


def test_every_module_has_a_layer() -> None:
    """And every layer's entry is a module: the table is neither short nor stale."""
    assert {part_of(path) for path in core()} == set(LAYERS)


def test_imports_in_the_core_go_down() -> None:
    """A module imports from its own layer or below; packages of layer 2 never each other."""
    for path, tree in core().items():
        own = part_of(path)
        for _, name in imports(tree):
            if top(name) != "ormas_core" or name.startswith("ormas_core.cli"):
                continue
            other = part_of(f"{target(name).replace('.', '/')}.py")
            if own == "cli":
                continue
            assert other, f"{path} imports from the package root, which re-exports everything"
            assert LAYERS[other] <= LAYERS[own], f"{path} imports {name}"
            assert LAYERS[own] != 2 or LAYERS[other] < 2 or other == own, f"{path} imports {name}"


def test_the_command_line_uses_the_public_names() -> None:
    """`cli` imports names of the package root, and only errors and version by their modules."""
    for path, tree in core().items():
        for _, name in imports(tree):
            if top(name) != "ormas_core":
                continue
            found = target(name)
            if part_of(path) == "cli":
                allowed = {"ormas_core", "ormas_core.errors", "ormas_core.version"}
                assert found in allowed or found.startswith("ormas_core.cli"), f"{path}: {name}"
            else:
                assert not found.startswith("ormas_core.cli"), f"{path} imports {name}"


def test_packages_are_entered_through_their_root() -> None:
    """From outside a package only what its `__init__` exports is imported."""
    for path, tree in core().items():
        for _, name in imports(tree):
            parts = target(name).split(".")
            if top(name) == "ormas_core" and len(parts) > 2:
                assert parts[1] == part_of(path), f"{path} reaches into {target(name)}"


def test_adapters_see_the_core_from_outside() -> None:
    """An adapter imports names of `ormas_core` itself, its framework, and no other adapter."""
    for path, tree in sources().items():
        own = path.partition("/")[0]
        if own not in ADAPTERS:
            continue
        allowed = {own, "ormas_core", *ADAPTERS[own], *sys.stdlib_module_names}
        for _, name in imports(tree):
            assert top(name) in allowed, f"{path} imports {name}"
            if top(name) == "ormas_core":
                assert target(name) == "ormas_core", f"{path} imports {name}"


def test_the_core_imports_adapters_where_a_command_needs_one() -> None:
    """And not when the command line starts, but in a function; `demo_training` likewise."""
    for path, tree in core().items():
        late = inside_functions(tree)
        for node, name in imports(tree):
            if top(name) in ADAPTERS:
                in_command = path in ADAPTER_USERS and node in late
                assert in_command or path == "ormas_core/cli/demo_training.py", f"{path}: {name}"
            if target(name) == "ormas_core.cli.demo_training":
                assert node in late, f"{path} imports {name} when it is imported"


def test_only_some_modules_import_torch() -> None:
    """The rules, the record and the facts work where torch is not installed."""
    for path, tree in core().items():
        late, types = inside_functions(tree), for_types_only(tree)
        own = part_of(path)
        for node, name in imports(tree):
            library = top(name)
            if library == "ormas_core" or library in sys.stdlib_module_names:
                continue
            if own == "cli":
                in_command = path in ADAPTER_USERS and node in late
                assert in_command or path == "ormas_core/cli/demo_training.py", f"{path}: {name}"
            else:
                allowed = set() if path.startswith(TORCH_FREE_FILES) else LIBRARIES.get(own, set())
                if own == "checkpoints" and path not in CHECKPOINT_TORCH:
                    allowed = {"numpy"}
                assert library in allowed or node in types, f"{path} imports {name}"


def test_one_module_talks_to_the_process_group() -> None:
    """`torch.distributed` is named in `ranks.py` only; its file format, in the reader of that."""
    for path, tree in sources().items():
        names = {name for _, name in imports(tree)}
        names |= {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        used = any(
            f"{name}.".startswith("torch.distributed.")
            and not (path in CHECKPOINT_TORCH and name.startswith("torch.distributed.checkpoint."))
            for name in names
        )
        assert used is (path == "ormas_core/ranks.py"), path


def _private(name: str) -> bool:
    return re.fullmatch(r"_[A-Za-z]\w*", name) is not None


def private_names(path: str, tree: ast.Module) -> Iterator[str]:
    """Yield what a file uses of the private names of others."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _private(node.attr):
            mine = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            # The methods of a named tuple are public in spite of their names.
            mine = mine or node.attr in ("_replace", "_asdict")
            if not mine and (path, node.attr) not in OWN_PRIVATE:
                yield ast.unparse(node)
        elif (
            part_of(path) in TORCH_USERS
            and (part_of(path) != "checkpoints" or path in CHECKPOINT_TORCH)
            and isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and _private(node.value)
        ):
            yield repr(node.value)
    for _, name in imports(tree):
        if top(name) != top(module_of(path)) and any(map(_private, name.split("."))):
            yield name


def test_private_names_of_torch_are_in_one_module() -> None:
    """As attributes and imports in all of the core, as text where torch is at hand."""
    for path, tree in core().items():
        found = list(private_names(path, tree))
        if path in TORCH_PRIVATE:
            assert TORCH_PRIVATE[path] in found
        else:
            assert found == [], path


def test_the_private_names_of_ours_that_are_shared_exist() -> None:
    """The table of exceptions is not stale."""
    for path, name in OWN_PRIVATE:
        assert any(
            isinstance(node, ast.Attribute) and node.attr == name
            for node in ast.walk(sources()[path])
        )


def test_only_the_command_line_prints_or_exits() -> None:
    """A library speaks through its sinks and the logger `ormas`."""
    speakers = {"print", "input", "exit", "quit", "breakpoint", "SystemExit"}
    chains = {"sys.exit", "os._exit", "os.abort", "sys.stdout", "sys.stderr", "sys.__stdout__"}
    for path, tree in sources().items():
        if part_of(path) == "cli":
            continue
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        imported = {name for _, name in imports(tree)}
        assert not (names & speakers) | ((used | imported) & chains), path


def test_no_import_is_relative() -> None:
    """Every import says from where."""
    for path, tree in sources().items():
        levels = {node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert levels <= {0}, path


def test_no_import_hides_its_names() -> None:
    """`from x import *` would blind the checks above, and so would `__import__`."""
    for path, tree in sources().items():
        assert not any(name.endswith(".*") for _, name in imports(tree)), path
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert "__import__" not in names, path
        if path not in ("ormas_core/__init__.py", "ormas_core/certificates/__init__.py"):
            assert "importlib" not in {top(name) for _, name in imports(tree)}, path


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
