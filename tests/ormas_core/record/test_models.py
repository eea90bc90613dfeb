"""Model files (case 93): links of a hub cache, files too many, other names, escapes, loops."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from seal_support import SealedRun, copied, make_sealed, outcomes, sentence

from ormas_core.errors import RecordFormatError
from ormas_core.record import Request, Verification, model_files, sign_record, verify_record
from ormas_core.record.statement import model_of
from ormas_core.terms import SavedFile


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A hub cache: a snapshot folder of links into the blobs beside it."""
    home = tmp_path / "models--org--name"
    snapshot = home / "snapshots" / "abc123"
    (home / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for blob, name in (("b1", "model.safetensors"), ("b2", "config.json")):
        (home / "blobs" / blob).write_bytes(blob.encode())
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    return snapshot


def test_a_file_and_a_folder_are_hashed(tmp_path: Path) -> None:
    """Names begin with that of the file or folder; the order is that of the names."""
    folder = tmp_path / "ckpt"
    (folder / "sub").mkdir(parents=True)
    (folder / "b").write_bytes(b"b")
    (folder / "sub" / "a").write_bytes(b"a")
    assert model_files(folder) == (
        SavedFile(name="ckpt/b", bytes=1, sha256=hashlib.sha256(b"b").hexdigest()),
        SavedFile(name="ckpt/sub/a", bytes=1, sha256=hashlib.sha256(b"a").hexdigest()),
    )
    (file,) = model_files(folder / "b")
    assert (file.name, file.bytes) == ("b", 1)


def test_links_of_a_hub_cache_are_followed(cache: Path) -> None:
    """The bytes are those of the blobs, the names those of the snapshot."""
    assert {file.name: file.sha256 for file in model_files(cache)} == {
        "abc123/config.json": hashlib.sha256(b"b2").hexdigest(),
        "abc123/model.safetensors": hashlib.sha256(b"b1").hexdigest(),
    }


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("../../../secret", "outside of the model's folder"),
        ("/etc/passwd", "outside of the model's folder"),
        ("loop", "leads nowhere"),
        ("missing", "leads nowhere"),
        ("../../blobs", "link to a folder"),
    ],
)
def test_links_that_leave_the_cache_are_refused(cache: Path, target: str, says: str) -> None:
    """Escapes, loops, links to nothing and to folders, each with the link's name."""
    (cache.parents[2] / "secret").write_bytes(b"secret")
    (cache / "loop").symlink_to(target)
    with pytest.raises(RecordFormatError, match=says) as caught:
        model_files(cache)
    assert "loop" in str(caught.value)


def test_an_empty_folder_is_no_model(tmp_path: Path) -> None:
    """Nothing inspected is not a pass; what git keeps beside a model is not one either."""
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / ".gitattributes").write_bytes(b"")
    with pytest.raises(RecordFormatError, match="holds no file"):
        model_files(tmp_path / "ckpt")
    with pytest.raises(FileNotFoundError):
        model_files(tmp_path / "nothing")


def test_git_files_are_no_part_of_a_model_by_the_signed_policy(
    original: SealedRun, tmp_path: Path
) -> None:
    """The names that were ignored are in the seal, so that a verifier ignores the same."""
    sealed = copied(original, tmp_path)
    (sealed.shards / ".gitattributes").write_bytes(b"* -text")
    (sealed.shards / ".git").mkdir()
    (sealed.shards / ".git" / "HEAD").write_bytes(b"ref")
    assert outcomes(verify(sealed))["model files"] == "pass"


def verify(sealed: SealedRun) -> Verification:
    """Verify with the model beside the run."""
    return verify_record(sealed.folder, Request(models=(sealed.model,)))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> SealedRun:
    """One sealed run for the tests of this module."""
    return make_sealed(tmp_path_factory.mktemp("models"))


def _append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"!")


def _flip(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"!")


INSIDE: dict[str, tuple[Callable[[SealedRun], object], str]] = {
    "longer": (
        lambda s: _append(s.shards / "model-2.safetensors"),
        "ckpt/model-2.safetensors has 20 bytes; sealed are 19.",
    ),
    "other": (
        lambda s: _flip(s.shards / "nested" / "config.json"),
        "ckpt/nested/config.json has the digest ",
    ),
    "missing": (
        lambda s: (s.shards / "model-1.safetensors").unlink(),
        "ckpt/model-1.safetensors is missing.",
    ),
    "renamed": (
        lambda s: (s.shards / "model-1.safetensors").rename(s.shards / "model-9.safetensors"),
        "ckpt/model-1.safetensors is missing.",
    ),
    "extra": (
        lambda s: (s.shards / "modeling.py").write_text("import os"),
        "ckpt/modeling.py is there and is not sealed.",
    ),
    "extra link": (
        lambda s: (s.shards / "nested" / "x").symlink_to("/etc"),
        "ckpt/nested/x is there and is not sealed.",
    ),
    "outside": (lambda s: _append(s.model), "model.safetensors has 7001 bytes; sealed are 7000."),
    "gone": (lambda s: s.model.unlink(), "No such file or directory"),
    "no file": (lambda s: (s.model.unlink(), s.model.mkdir()), "is a folder, and model.safe"),
}


@pytest.mark.parametrize("how", INSIDE)
def test_the_file_that_differs_is_named(original: SealedRun, tmp_path: Path, how: str) -> None:
    """Changed, gone, renamed, or one that nobody sealed: code beside weights is no detail."""
    sealed = copied(original, tmp_path)
    change, says = INSIDE[how]
    change(sealed)
    found = verify(sealed)
    assert outcomes(found)["model files"] == "fail"
    assert says in sentence(found, "model files")


def test_a_folder_elsewhere_is_compared_file_by_file(
    original: SealedRun, cache: Path, tmp_path: Path
) -> None:
    """A sealed snapshot of links verifies as plain copies; what differs there is named."""
    sealed = copied(original, tmp_path)
    sign_record(sealed.folder, sealed.key, models=[cache], overwrite=True)
    plain = tmp_path / "download" / "abc123"
    plain.mkdir(parents=True)
    for name, data in (("model.safetensors", b"b1"), ("config.json", b"b2")):
        (plain / name).write_bytes(data)

    def check() -> tuple[str, str]:
        found = verify_record(sealed.folder, Request(models=(plain,)))
        return outcomes(found)["model files"], sentence(found, "model files")

    assert check() == ("pass", "2 model files are the ones that the seal names.")
    (plain / "extra.bin").write_bytes(b"")
    assert check() == ("fail", "abc123/extra.bin is there and is not sealed.")
    (plain / "extra.bin").unlink()
    _flip(plain / "config.json")
    assert check()[1].startswith("abc123/config.json has the digest ")
    (plain / "config.json").unlink()
    assert check() == ("fail", f"abc123/config.json is missing in {plain}.")


def test_the_same_bytes_under_another_name_are_the_model(
    original: SealedRun, tmp_path: Path
) -> None:
    """A single file that was downloaded under another name, where only one model is left."""
    sealed = copied(original, tmp_path)
    other = tmp_path / "download.bin"
    sealed.model.rename(other)
    found = verify_record(sealed.folder, Request(models=(sealed.shards, other)))
    assert outcomes(found)["model files"] == "pass"


def test_a_model_that_nobody_sealed_fails(original: SealedRun, tmp_path: Path) -> None:
    """With the names of those that are sealed."""
    other = tmp_path / "other.bin"
    other.write_bytes(b"other")
    found = verify_record(original.folder, Request(models=(other,)))
    assert sentence(found, "model files") == (
        f"{other} is none of the models that are named: model.safetensors, ckpt."
    )


@pytest.mark.parametrize(
    "names", [(), ("a", "b"), ("a/x", "b/y"), ("../a",), ("/a",), ("a/../b",)], ids=str
)
def test_files_that_are_not_of_one_model_are_refused(names: tuple[str, ...]) -> None:
    """Names of a record come from a stranger, too."""
    files = tuple(SavedFile(name=name, bytes=0, sha256="0" * 64) for name in names)
    with pytest.raises(RecordFormatError):
        model_of(files)
