"""Who may import whom, who may print, what may be private, and how long things may be.

The tables are literal: a new module fails here until someone decides where it belongs.
"""

import ast
import re
import sys
from collections.abc import Iterator
from typing import Final

from source_support import (
    PACKAGES,
    TORCH_USERS,
    for_types_only,
    imports,
    inside_functions,
    module_of,
    part_of,
    sources,
    target,
    top,
)

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
    "model_events": 0,
    "run_events": 0,
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
    "stopping": 3,
    "replay": 3,
    "sampling": 3,
    "cli": 4,
    "report": 4,
    "testing": 4,
}
"""Module or package of `ormas_core` -> its layer; it imports from its own layer and below."""

LIBRARIES: Final = {
    "certificates": {"numpy", "torch"},
    "certification": {"torch"},
    "checkpoint_proof": {"torch"},
    "checkpoints": {"huggingface_hub", "numpy", "torch", "torchvision", "transformers"},
    "hooks": {"numpy", "torch"},
    "monitor": {"torch"},
    "proofs": {"numpy", "torch"},
    "ranks": {"torch"},
    "repair": {"torch"},
    "repairs": {"numpy", "torch"},
    "sampling": {"torch"},
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
