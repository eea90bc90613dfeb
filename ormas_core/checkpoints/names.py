"""Names of tensors, and what wrappers put in front of them."""

from typing import Final

_WRAPPERS: Final = frozenset(
    ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
)
"""Parts of names that data-parallel, compiled and sharded models add."""


def clean_name(name: str) -> str:
    """Return the name that a tensor has in the bare model.

    `module` is cut off in front only: further in, layers may be called so.
    """
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in _WRAPPERS:
        del parts[0]
    return ".".join(part for part in parts if part not in _WRAPPERS or part == "module")
