"""How many tokens the tokenizer of a model folder has, and which are reserved."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ormas_core.checkpoints.files import read_small
from ormas_core.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The tokens of a tokenizer.

    Attributes:
        size: one more than the largest identifier.
        special: identifiers of special tokens, many of which are reserved and never used.
    """

    size: int
    special: frozenset[int] = frozenset()


def read_vocabulary(folder: Path) -> Vocabulary | None:
    """Return the vocabulary of a model folder; None where no file of it says.

    `tokenizer.json`, `vocab.json` and `vocab.txt` are known. A file that is broken says nothing.
    """
    for name, reader in (("tokenizer.json", _fast), ("vocab.json", _plain), ("vocab.txt", _lines)):
        try:
            found = reader(read_small(folder, name).decode("utf-8"))
        except (CheckpointError, OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
        except RecursionError:
            continue
        if found is not None:
            return found
    return None


def _fast(text: str) -> Vocabulary | None:
    whole = json.loads(text)
    vocabulary = whole["model"].get("vocab") or {}
    if isinstance(vocabulary, Mapping):
        largest = max(map(int, vocabulary.values()), default=-1)
    else:  # Unigram: a list of pairs, the place is the identifier
        largest = len(vocabulary) - 1
    added: list[Mapping[str, Any]] = whole.get("added_tokens") or []
    largest = max([largest, *(int(token["id"]) for token in added)])
    special = frozenset(int(token["id"]) for token in added if token.get("special"))
    return Vocabulary(size=largest + 1, special=special) if largest >= 0 else None


def _plain(text: str) -> Vocabulary | None:
    values = json.loads(text).values()
    return Vocabulary(size=max(map(int, values)) + 1) if values else None


def _lines(text: str) -> Vocabulary | None:
    count = len(text.splitlines())
    return Vocabulary(size=count) if count else None
