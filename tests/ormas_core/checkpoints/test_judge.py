"""From a reading to findings: problems of files by severity, one for each cause, none lost."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_models import conv_net, saved

from ormas_core import check_checkpoint
from ormas_core.checkpoints import RANK, finding, in_order, judge, open_checkpoint
from ormas_core.checkpoints.vocabulary import read_vocabulary
from ormas_core.terms import Severity

SHARD = "model-00001-of-00002.safetensors"


def sharded(folder: Path, **places: str) -> Path:
    """Write one shard and an index that names these places, and the right one for the others."""
    state = conv_net()
    saved(folder / SHARD, state)
    index = {"weight_map": {**dict.fromkeys(state, SHARD), **places}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def codes(path: Path, **options: Any) -> list[str]:
    """Return the codes of what a check finds."""
    return [one.code for one in check_checkpoint(path, **options).findings]


def test_an_index_that_names_what_is_not_there(tmp_path: Path) -> None:
    """A tensor that its shard lacks, and a shard that the folder lacks."""
    assert codes(sharded(tmp_path / "a", ghost=SHARD)) == ["missing-tensors"]
    lost = codes(sharded(tmp_path / "b", ghost="model-00002-of-00002.safetensors"))
    assert lost[0] == "missing-file"
    assert set(lost) <= {"missing-file", "missing-tensors", "unreadable"}


def test_a_tensor_that_the_index_does_not_name(tmp_path: Path) -> None:
    """A loader would leave it out, so index and shards do not say the same."""
    folder = sharded(tmp_path)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    del index["weight_map"]["4.bias"]
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert codes(folder) == ["index-disagreement"]


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd"])
def test_an_entry_that_leads_out_of_the_folder(name: str, tmp_path: Path) -> None:
    """Not followed, and critical."""
    saved(tmp_path / "secret.safetensors", conv_net())
    result = check_checkpoint(sharded(tmp_path / "model", ghost=name))
    assert "unsafe-path" in [one.code for one in result.findings]
    assert result.verdict()[0] == 1
    assert result.tensors <= len(conv_net()) + 1


def test_settings_that_cannot_be_read_are_a_warning(tmp_path: Path) -> None:
    """The weights are judged all the same."""
    saved(tmp_path / "model.safetensors", conv_net())
    (tmp_path / "config.json").write_text("{")
    assert codes(tmp_path) == ["settings-file"]


def test_many_problems_of_a_kind_are_one_finding(tmp_path: Path) -> None:
    """The first is shown, with the names of some others."""
    ghosts = {f"ghost.{i}": SHARD for i in range(40)}
    result = check_checkpoint(sharded(tmp_path, **ghosts))
    (one,) = result.findings
    assert one.code == "missing-tensors"
    assert "40" in f"{one.where} {one.detail}"


def test_a_broken_base_is_no_fault_of_the_checkpoint(tmp_path: Path) -> None:
    """It is said that it could not be compared, and what is in the checkpoint is judged."""
    bad = {"4__bias": lambda t: t.fill_(float("nan"))}
    path = saved(tmp_path / "m.safetensors", conv_net(), **bad)
    base = saved(tmp_path / "base.safetensors", conv_net())
    base.write_bytes(base.read_bytes()[:-400])
    found = codes(path, against=base)
    assert found[0] == "nonfinite"
    assert "not-compared" in found
    assert "unreadable" not in found


class Setting:
    """An object that is no tensor."""


def test_objects_in_a_pickle_are_said_and_tensors_read(tmp_path: Path) -> None:
    """A warning for objects; critical for what runs commands. Nothing is made of either."""
    torch.save({**conv_net(), "setting": Setting()}, tmp_path / "m.pt")
    result = check_checkpoint(tmp_path / "m.pt")
    assert [one.code for one in result.findings] == ["refused-objects"]
    assert result.read == len(conv_net())

    class Command:
        def __reduce__(self) -> tuple[Any, ...]:
            import os

            return os.system, ("true",)

    torch.save({**conv_net(), "x": Command()}, tmp_path / "n.pt")
    assert "dangerous-objects" in codes(tmp_path / "n.pt")


def test_the_progress_reaches_the_end(tmp_path: Path) -> None:
    """Told bytes never decrease, and the last are all of them."""
    told: list[tuple[int, int]] = []
    path = saved(tmp_path / "m.safetensors", conv_net())
    judge(open_checkpoint(path), progress=lambda done, size: told.append((done, size)))
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] == open_checkpoint(path).size


def test_findings_are_ordered_by_severity_and_otherwise_kept() -> None:
    """Critical, warning, info."""
    given = [finding(c, c, "") for c in ("packed", "zero-weights", "nonfinite", "constant-tensor")]
    assert [one.code for one in in_order(given)] == [
        "nonfinite",
        "zero-weights",
        "constant-tensor",
        "packed",
    ]
    assert sorted(RANK, key=lambda s: -RANK[s]) == [
        Severity.CRITICAL,
        Severity.WARNING,
        Severity.INFO,
    ]


@pytest.mark.parametrize(
    ("name", "text", "size"),
    [
        ("tokenizer.json", '{"model": {"vocab": {"a": 0, "b": 7}}}', 8),
        ("tokenizer.json", '{"model": {"vocab": [["a", 0.1], ["b", 0.2]]}}', 2),
        (
            "tokenizer.json",
            '{"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 4, "special": true}]}',
            5,
        ),
        ("vocab.json", '{"a": 0, "b": 1}', 2),
        ("vocab.txt", "a\nb\nc\n", 3),
        ("tokenizer.json", "[" * 100_000, None),
        ("tokenizer.json", '{"model": 3}', None),
        ("vocab.json", "{}", None),
        ("other.json", "{}", None),
    ],
)
def test_the_vocabulary_of_a_folder(name: str, text: str, size: int | None, tmp_path: Path) -> None:
    """From the files that tokenizers leave; one that is broken says nothing."""
    (tmp_path / name).write_text(text)
    found = read_vocabulary(tmp_path)
    assert (found.size if found else None) == size
