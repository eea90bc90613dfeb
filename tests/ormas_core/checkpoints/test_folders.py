"""Folders: which files a loader would take, how shards agree with their index, what lies beside."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from checkpoint_builders import codes, details, f32, read_all, write_safetensors, write_shards

from ormas_core.checkpoints import Kind, State, open_checkpoint
from ormas_core.errors import CheckpointError

A = {"a": f32(4, 2)}
B = {"b": f32(3, 2)}


def test_shards_and_their_index_are_one_model(tmp_path: Path) -> None:
    """Opened as a folder or by the index, with the settings of the folder."""
    folder = write_shards(tmp_path / "m", A, B)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    found, facts = read_all(folder)
    assert (found.kind, found.problems) == (Kind.SHARDED, ())
    assert found.config == {"model_type": "llama"}
    assert {f.name: f.file for f in facts.values()} == {
        "a": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors",
    }
    by_index, again = read_all(folder / "model.safetensors.index.json")
    assert (by_index.kind, by_index.problems, list(again)) == (Kind.SHARDED, (), ["a", "b"])


def test_shards_of_pytorch_and_their_index_are_one_model(tmp_path: Path) -> None:
    """As older versions of transformers save them; a lost shard leaves what the other holds."""
    import torch

    files = [f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
    torch.save({"a": torch.ones(4, 2)}, tmp_path / files[0])
    torch.save({"b": torch.tensor([1.0, float("nan")])}, tmp_path / files[1])
    index = {"metadata": {"total_size": 40}, "weight_map": {"a": files[0], "b": files[1]}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    for path in (tmp_path, tmp_path / "pytorch_model.bin.index.json"):
        found, facts = read_all(path)
        assert (found.kind, found.problems, list(facts)) == (Kind.SHARDED, (), ["a", "b"])
        assert facts["b"].nan == 1
    (tmp_path / files[0]).unlink()
    found, facts = read_all(tmp_path)
    assert (codes(found), list(facts)) == (["missing-file"], ["b"])


def test_an_index_and_shards_that_disagree_are_told(tmp_path: Path) -> None:
    """Missing shards and tensors, tensors elsewhere, tensors nobody names; the rest is read."""
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    folder = write_shards(
        tmp_path,
        {**A, "moved": f32(2)},
        {**B, "orphan": f32(2)},
        weight_map={"a": one, "moved": two, "b": two, "lost": one, "gone": "none.safetensors"},
    )
    found, facts = read_all(folder)
    assert sorted(codes(found)) == [
        "misplaced-tensor",
        "missing-file",
        "missing-tensor",
        "orphan-tensor",
    ]
    for said in ("none.safetensors", "orphan", "lost", "moved"):
        assert said in details(found)
    assert set(facts) == {"a", "moved", "b", "orphan"}


def test_a_total_size_that_is_wrong_is_told(tmp_path: Path) -> None:
    """Where nothing else is wrong."""
    folder = write_shards(tmp_path, A, B, metadata={"total_size": 1000})
    found = open_checkpoint(folder)
    assert codes(found) == ["index-size"]
    assert "states 1,000 bytes of tensors, there are 56" in details(found)


def test_shards_without_an_index_are_read_and_missing_ones_named(tmp_path: Path) -> None:
    """From their numbers."""
    folder = write_shards(tmp_path, A, B, {"c": f32(2)})
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model-00002-of-00003.safetensors").unlink()
    found, facts = read_all(folder)
    assert codes(found) == ["no-index", "missing-file"]
    assert "model-00002-of-00003.safetensors" in details(found)
    assert set(facts) == {"a", "c"}


def test_a_shard_that_is_broken_does_not_hide_the_others(tmp_path: Path) -> None:
    """Evidence that was found is not lost."""
    folder = write_shards(tmp_path, A, {"bad": f32(2, i1=float("nan"))})
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"version https://git-lfs")
    found, facts = read_all(folder)
    assert codes(found) == ["not-a-checkpoint"]
    assert found.problems[0].where == "model-00001-of-00002.safetensors"
    assert facts["bad"].nan == 1


@pytest.mark.parametrize(
    "index", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "{", "\xff"]
)
def test_an_index_that_is_none_is_told_and_the_shards_are_read(index: str, tmp_path: Path) -> None:
    """Whatever is in it."""
    folder = write_shards(tmp_path, A, B)
    (folder / "model.safetensors.index.json").write_text(index, encoding="latin-1")
    found, facts = read_all(folder)
    assert codes(found) == ["malformed"]
    assert set(facts) == {"a", "b"}


def test_of_two_formats_the_loaders_choice_is_judged(tmp_path: Path) -> None:
    """And the other one is compared with it when that is asked for."""
    import torch

    write_safetensors(tmp_path / "model.safetensors", {**A, **B})
    torch.save(
        {"a": torch.zeros(4, 2), "b": torch.arange(6).reshape(3, 2) * 0.25 + 0.5},
        tmp_path / "pytorch_model.bin",
    )
    found, _ = read_all(tmp_path)
    assert (found.kind, found.files) == (Kind.FOLDER, ("model.safetensors",))
    assert found.strays == ("pytorch_model.bin",)
    (problem,) = found.stray_problems()
    assert problem.code == "stray-weights"
    assert "Loaders use model.safetensors" in problem.detail
    assert "1 tensors agree, 1 differ (a)" in problem.detail


def test_a_stray_set_of_another_kind_is_named(tmp_path: Path) -> None:
    """A quantised single file beside shards: loaders take the single file."""
    folder = write_shards(tmp_path, A, B)
    write_safetensors(folder / "model.safetensors", {"a.qweight": ("I32", (4, 2), bytes(32))})
    found = open_checkpoint(folder)
    assert found.files == ("model.safetensors",)
    assert len(found.strays) == 2
    assert "have no counterpart (a, b)" in found.stray_problems()[0].detail


def test_what_trainers_write_beside_the_weights_is_left_alone(tmp_path: Path) -> None:
    """It is named, and nothing of it is opened: it may hold anything."""
    write_safetensors(tmp_path / "model.safetensors", {"a": f32(4, i1=float("nan"))})
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
        (tmp_path / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    (tmp_path / "trainer_state.json").write_text("{}")
    found, facts = read_all(tmp_path)
    assert found.files == ("model.safetensors",)
    assert codes(found) == ["not-judged"]
    assert found.globals == ()
    assert facts["a"].nan == 1


def test_a_folder_that_was_not_saved_to_its_end_is_told(tmp_path: Path) -> None:
    """Weights without the trainer's state, or the state without weights."""
    write_safetensors(tmp_path / "one" / "model.safetensors", A)
    (tmp_path / "one" / "optimizer.pt").write_bytes(b"x")
    found = open_checkpoint(tmp_path / "one")
    assert codes(found) == ["not-judged", "incomplete"]
    assert "no trainer_state.json" in details(found)
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "trainer_state.json").write_text("{}")
    found = open_checkpoint(tmp_path / "two")
    assert codes(found) == ["missing-file"]


@pytest.mark.parametrize(
    "beside", [["training_args.bin"], ["optimizer.bin", "scheduler.bin", "random_states_0.pkl"]]
)
def test_a_folder_that_no_trainer_resumes_from_is_whole(beside: list[str], tmp_path: Path) -> None:
    """As a published model with its arguments, or what accelerate saves."""
    write_safetensors(tmp_path / "model.safetensors", A)
    for name in beside:
        (tmp_path / name).write_bytes(b"x")
    assert codes(open_checkpoint(tmp_path)) == ["not-judged"]


def test_a_download_that_was_not_finished_is_told(tmp_path: Path) -> None:
    """By the name that its tool gives it until it is."""
    write_safetensors(tmp_path / "model.safetensors", A)
    (tmp_path / "model-00002.safetensors.incomplete").write_bytes(b"")
    assert codes(open_checkpoint(tmp_path)) == ["incomplete"]


def test_an_adapter_folder_is_one(tmp_path: Path) -> None:
    """With its settings; without its weights that is a problem."""
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    found = open_checkpoint(tmp_path)
    assert (found.kind, codes(found)) == (Kind.ADAPTER, ["missing-file"])
    write_safetensors(tmp_path / "adapter_model.safetensors", {"x.lora_A.weight": f32(2, 2)})
    found, facts = read_all(tmp_path)
    assert (found.kind, found.problems) == (Kind.ADAPTER, ())
    assert found.adapter == {"peft_type": "LORA"}
    assert list(facts) == ["x.lora_A.weight"]


def cache(tmp_path: Path) -> Path:
    """Return the folder of a repository as the hub's cache keeps it."""
    home = tmp_path / "models--org--name"
    write_safetensors(home / "blobs" / "abc123", A)
    snapshot = home / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to("../../blobs/abc123")
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("0123abcd")
    return home


def test_a_snapshot_of_the_hub_cache_is_followed(tmp_path: Path) -> None:
    """Its links lead to blobs beside it; the repository's folder stands for its snapshot."""
    home = cache(tmp_path)
    for path in (home, home / "snapshots" / "0123abcd"):
        found, facts = read_all(path)
        assert (found.problems, list(facts)) == ((), ["a"])
        assert found.path.name == "0123abcd"


def test_tensors_of_one_name_in_two_shards_are_told(tmp_path: Path) -> None:
    """Loaders take either."""
    folder = write_shards(tmp_path, {**A, **B}, {"a": f32(4, 2, start=9)})
    assert "duplicate-tensor" in codes(open_checkpoint(folder))


def test_deepspeed_shards_are_named_with_what_puts_them_together(tmp_path: Path) -> None:
    """They are no model by themselves, and not clean."""
    step = tmp_path / "global_step10"
    step.mkdir()
    for rank in range(2):
        (step / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").write_bytes(b"PK\x03\x04")
    (tmp_path / "latest").write_text("global_step10")
    for folder in (tmp_path, step):
        found = open_checkpoint(folder)
        assert (found.kind, codes(found)) == (Kind.DEEPSPEED, ["unsupported"])
        assert "zero_to_fp32.py" in details(found)


@pytest.mark.parametrize("name", ["config.json", "adapter_config.json"])
@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000, "\xff"])
def test_settings_that_cannot_be_read_are_told(name: str, text: str, tmp_path: Path) -> None:
    """The weights are read without them."""
    write_safetensors(tmp_path / "model.safetensors", A)
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    found, facts = read_all(tmp_path)
    assert "config" in codes(found)
    assert facts["a"].state is State.READ


def test_a_folder_without_weights_is_no_checkpoint(tmp_path: Path) -> None:
    """It may be that of several models: these are named."""
    (tmp_path / "model_index.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"holds no file of weights. Name another"):
        open_checkpoint(tmp_path)
    for part in ("unet", "vae"):
        (tmp_path / part).mkdir()
        write_safetensors(tmp_path / part / "diffusion_pytorch_model.safetensors", A)
    (tmp_path / "tokenizer").mkdir()
    with pytest.raises(CheckpointError, match=r"There are some in unet, vae: check each"):
        open_checkpoint(tmp_path)


def test_a_folder_of_several_steps_is_no_one_model(tmp_path: Path) -> None:
    """They are not put together, and not said to contradict each other: each is to be checked."""
    for name in ("best.pt", "last.pt"):
        write_safetensors(tmp_path / name, {**A, **B})
    with pytest.raises(CheckpointError, match=r"such as best.pt and last.pt: check each"):
        open_checkpoint(tmp_path)
    write_safetensors(tmp_path / "last.pt", {"c": f32(2)})
    found, facts = read_all(tmp_path)
    assert (found.problems, set(facts)) == ((), {"a", "b", "c"})


def test_of_two_families_of_shards_without_an_index_one_is_read(tmp_path: Path) -> None:
    """As of a half-precision copy: the other lies beside it."""
    for stem in ("model", "model.fp16"):
        for number, tensors in enumerate((A, B), 1):
            write_safetensors(tmp_path / f"{stem}-0000{number}-of-00002.safetensors", tensors)
    found, facts = read_all(tmp_path)
    assert (codes(found), set(facts)) == (["no-index"], {"a", "b"})
    assert [problem.code for problem in found.stray_problems()] == ["stray-copies"]


def test_a_folder_of_pointers_says_what_they_are(tmp_path: Path) -> None:
    """Where a clone left them instead of weights."""
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 99\n"
    (tmp_path / "model.safetensors").write_text(text)
    found = open_checkpoint(tmp_path)
    assert codes(found) == ["not-a-checkpoint"]
    assert "git lfs pull" in details(found)


UNSAFE: dict[str, Any] = {
    "above": "../outside.safetensors",
    "absolute": "/etc/passwd",
    "dots": "sub/../../outside.safetensors",
    "backslash": "..\\outside.safetensors",
    "empty": "",
    "nul": "a\0b",
}


@pytest.mark.parametrize("which", sorted(UNSAFE))
def test_an_index_cannot_lead_out_of_its_folder(which: str, tmp_path: Path) -> None:
    """Whatever it names is not opened."""
    write_safetensors(tmp_path / "outside.safetensors", A)
    folder = write_shards(tmp_path / "m", A, weight_map={"a": UNSAFE[which]})
    found, facts = read_all(folder)
    assert "unsafe-path" in codes(found)
    assert facts == {}


def test_links_to_elsewhere_and_pipes_are_not_opened(tmp_path: Path) -> None:
    """A pipe would hang whoever reads it, a link leads to other people's files."""
    write_safetensors(tmp_path / "outside.safetensors", A)
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(tmp_path / "outside.safetensors")
    assert codes(open_checkpoint(folder))[0] == "unsafe-path"
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    os.mkfifo(folder / "config.json")
    found = open_checkpoint(folder)
    assert codes(found)[:2] == ["config", "unsafe-path"]
    assert codes(open_checkpoint(folder / "model.safetensors"))[0] == "unsafe-path"
    assert codes(open_checkpoint("/dev/zero"))[0] == "unsafe-path"


def test_links_within_the_folder_are_followed(tmp_path: Path) -> None:
    """As deduplicating tools make them."""
    write_safetensors(tmp_path / "data" / "w", A)
    (tmp_path / "model.safetensors").symlink_to("data/w")
    assert codes(open_checkpoint(tmp_path)) == []
    (tmp_path / "loop.safetensors").symlink_to("loop.safetensors")
    assert json.dumps(codes(open_checkpoint(tmp_path))) == "[]"
