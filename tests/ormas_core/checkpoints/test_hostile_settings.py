"""Settings of a folder that were made to hurt: nothing hangs, leads out, is fetched or is run."""

import os
from pathlib import Path
from typing import Any

import pytest
from checkpoint_builders import f32, write_safetensors
from huggingface_hub import constants

from ormas_core.checkpoints import building, files, open_checkpoint, wiring
from ormas_core.checkpoints.vocabulary import read_vocabulary
from ormas_core.errors import CheckpointError, ConfigError

RESNET: dict[str, Any] = {
    "architectures": ["ResNetModel"],
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "layer_type": "basic",
}


def repository(path: Path) -> Path:
    """Return the folder of a repository in a hub cache, without a revision."""
    (path / "snapshots").mkdir(parents=True)
    (path / "blobs").mkdir()
    (path / "refs").mkdir()
    return path


def test_a_tokenizer_that_leads_out_or_never_ends_is_none(tmp_path: Path) -> None:
    """A link to another folder is not followed, and a pipe is not waited for."""
    (tmp_path / "outside.json").write_text('{"a": 0, "b": 1}')
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "vocab.json").symlink_to(tmp_path / "outside.json")
    os.mkfifo(folder / "tokenizer.json")
    assert read_vocabulary(folder) is None
    (folder / "vocab.json").unlink()
    (folder / "vocab.json").write_text('{"a": 0, "b": 1}')
    found = read_vocabulary(folder)
    assert found is not None
    assert found.size == 2


def test_settings_of_too_many_brackets_are_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would take twenty times their size in memory."""
    monkeypatch.setattr(files, "MAX_PARTS", 100)
    (tmp_path / "config.json").write_text('{"a": [' + "[]," * 100 + "[]]}")
    with pytest.raises(CheckpointError, match="103 brackets, too many for settings"):
        files.read_settings(tmp_path, "config.json")


def test_a_revision_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """The snapshot that is there is taken."""
    home = repository(tmp_path / "models--a--b")
    os.mkfifo(home / "refs" / "main")
    write_safetensors(home / "snapshots" / "abc" / "model.safetensors", {"w": f32(2, 2)})
    assert open_checkpoint(home).names == ("w",)


@pytest.mark.parametrize("revision", ["", "x", "../../outside"])
def test_a_snapshot_does_not_lead_out_of_the_cache(revision: str, tmp_path: Path) -> None:
    """Neither as a link nor by what the revision says."""
    write_safetensors(tmp_path / "outside" / "model.safetensors", {"w": f32(2, 2)})
    home = repository(tmp_path / "models--a--b")
    (home / "snapshots" / "x").symlink_to(tmp_path / "outside")
    (home / "refs" / "main").write_text(revision)
    with pytest.raises(CheckpointError, match="no file of weights"):
        open_checkpoint(home)


def test_an_architecture_of_many_more_parts_than_the_file_is_not_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten million layers would take days; a model of the size of the file is built."""
    assert wiring.plan("hf", RESNET, 38).shapes
    with pytest.raises(ConfigError, match="more than 20,304 parts, the file 38 tensors"):
        wiring.plan("hf", RESNET | {"depths": [100_000, 1]}, 38)
    monkeypatch.setattr(building, "MOST_PARTS", 0)
    assert wiring.plan("hf", RESNET, 38).shapes


@pytest.mark.parametrize("name", ["num_labels", "num_hidden_layers", "max_position_embeddings"])
def test_numbers_that_a_loop_runs_to_are_bounded(name: str) -> None:
    """A table of names is made for all labels, and a list for all layers."""
    with pytest.raises(ConfigError, match=rf"sets {name} to 1e\+08: not built"):
        building.harmless({name: 10**8})
    assert building.harmless({name: 1000, "rope_theta": 10**9}) == {name: 1000, "rope_theta": 10**9}


def test_a_backbone_is_not_looked_up_in_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the hub is on, which it is again afterwards."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    config = {"architectures": ["UperNetForSemanticSegmentation"], "backbone": "nobody/nothing"}
    with pytest.raises(ConfigError, match="offline mode is enabled"):
        wiring.plan("hf", config, 10)
    assert constants.HF_HUB_OFFLINE is False


def test_settings_that_name_code_or_weights_of_others_are_left_out() -> None:
    """Kernels named as an implementation would be fetched and run, weights be fetched."""
    config = {
        "attn_implementation": "nobody/kernel",
        "hidden_size": 8,
        "text_config": {"_attn_implementation": "nobody/kernel", "use_pretrained_backbone": True},
    }
    assert building.harmless(config) == {
        "hidden_size": 8,
        "text_config": {"use_pretrained_backbone": False},
    }
