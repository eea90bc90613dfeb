"""Seals and keys that are not what they seem, and what `sign` must not seal."""

import base64
import errno
import json
import os
import textwrap
from pathlib import Path
from typing import Any

import event_samples
import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from seal_support import SealedRun, copied, make_sealed, outcomes

from ormas_core.errors import KeyFileError, RecordFormatError, RecordLockedError
from ormas_core.record import (
    SEAL_FILE,
    RecordWriter,
    Request,
    make_keys,
    sign_record,
    verify_record,
)
from ormas_core.testing import run_start

P256, SM2 = bytes.fromhex("06082a8648ce3d030107"), bytes.fromhex("06082a811ccf5501822d")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> SealedRun:
    """One sealed run for the tests of this module, to be copied before it is changed."""
    return make_sealed(tmp_path_factory.mktemp("sealed"))


@pytest.fixture
def sealed(original: SealedRun, tmp_path: Path) -> SealedRun:
    """A copy of the sealed run."""
    return copied(original, tmp_path)


def no_room(descriptor: int) -> None:
    """Stand in for `fsync` on a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("signatures", [[5], [None], [True], [1.5], []])
def test_an_envelope_that_names_no_signer_fails(sealed: SealedRun, signatures: list[Any]) -> None:
    """Key identifiers that are no texts, and none at all: both questions fail, with and without."""
    path = sealed.folder / SEAL_FILE
    envelope = json.loads(path.read_bytes())
    (signature,) = envelope["signatures"]
    envelope["signatures"] = [{**signature, "keyid": keyid} for keyid in signatures]
    path.write_bytes(rfc8785.dumps(envelope) + b"\n")
    for key in (None, sealed.public):
        found = outcomes(verify_record(sealed.folder, Request(key=key)))
        assert (found["seal"], found["signature"], found["chain"]) == ("fail", "fail", "pass")


def test_a_key_on_a_curve_that_nobody_knows_is_named(sealed: SealedRun) -> None:
    """It is no Ed25519 key, whatever the library makes of it."""
    key = generate_private_key(SECP256R1())
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    private = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    for which, data in (("PUBLIC", public), ("PRIVATE", private)):
        assert P256 in data
        text = "\n".join(textwrap.wrap(base64.b64encode(data.replace(P256, SM2)).decode(), 64))
        pem = f"-----BEGIN {which} KEY-----\n{text}\n-----END {which} KEY-----\n"
        (sealed.folder / which).write_text(pem)
    with pytest.raises(KeyFileError, match=r"PUBLIC holds no public Ed25519 key .*not supported"):
        verify_record(sealed.folder, Request(key=sealed.folder / "PUBLIC"))
    with pytest.raises(KeyFileError, match=r"PRIVATE holds no private Ed25519 key .*not supp"):
        sign_record(sealed.folder, sealed.folder / "PRIVATE", overwrite=True)


@pytest.mark.parametrize("name", [".", "/", ""])
def test_a_key_needs_the_name_of_a_file(name: str) -> None:
    """A folder's own name is none."""
    with pytest.raises(KeyFileError, match="no name for a file"):
        make_keys(Path(name))


def test_a_full_disk_leaves_no_half_of_a_key_and_no_half_of_a_seal(
    sealed: SealedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys are never overwritten, so half a key would be in the way for ever."""
    before = sorted(sealed.folder.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.raises(OSError, match="No space left"):
            make_keys(tmp_path / "new")
        with pytest.raises(OSError, match="No space left"):
            sign_record(sealed.folder, sealed.key, overwrite=True)
    assert sorted(sealed.folder.iterdir()) == before
    assert verify_record(sealed.folder, Request(key=sealed.public)).failed is False
    assert not (tmp_path / "new").exists()
    make_keys(tmp_path / "new")


def test_a_public_key_that_cannot_be_written_takes_the_private_one_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both files or neither."""
    calls: list[int] = []

    def second_fails(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            no_room(descriptor)

    monkeypatch.setattr(os, "fsync", second_fails)
    with pytest.raises(OSError, match="No space left"):
        make_keys(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_sign_left_is_in_nobodys_way(sealed: SealedRun) -> None:
    """Process numbers come again, in containers the very next time."""
    (sealed.folder / SEAL_FILE).unlink()
    left = sealed.folder / f".{SEAL_FILE}.{os.getpid()}"
    left.write_bytes(b"half")
    sign_record(sealed.folder, sealed.key)
    assert left.read_bytes() == b"half"
    assert outcomes(verify_record(sealed.folder, Request(key=sealed.public)))["seal"] == "pass"


def test_a_run_that_is_going_on_is_not_sealed(sealed: SealedRun, tmp_path: Path) -> None:
    """Its next line would break the seal, and the record would look tampered with."""
    writer = RecordWriter(tmp_path / "run")
    writer.write(run_start())
    with pytest.raises(RecordLockedError, match="was not sealed: the run is going on"):
        sign_record(tmp_path / "run", sealed.key)
    assert not (tmp_path / "run" / SEAL_FILE).exists()
    writer.close()
    assert sign_record(tmp_path / "run", sealed.key).run["status"] == "interrupted"


def test_a_model_folder_that_holds_the_run_is_not_sealed(sealed: SealedRun, tmp_path: Path) -> None:
    """An output folder with the run in it: the seal itself would change what it seals."""
    out = tmp_path / "out"
    event_samples.write_run(out / "run")
    (out / "model.pt").write_bytes(b"weights")
    for model in (out, out / "run"):
        with pytest.raises(RecordFormatError, match=r"holds the run folder .*Name the model's own"):
            sign_record(out / "run", sealed.key, models=[model])
    sign_record(out / "run", sealed.key, models=[out / "model.pt"])
    request = Request(key=sealed.public, models=(out / "model.pt",))
    assert verify_record(out / "run", request).strict


@pytest.mark.parametrize("name", [b"mo\\del.pt", b"mo\xffdel.pt"])
def test_a_name_that_no_seal_can_bear_is_refused(
    sealed: SealedRun, tmp_path: Path, name: bytes
) -> None:
    """As a file and inside of a folder, with the name and what to do; nothing is written."""
    folder = tmp_path / "model"
    folder.mkdir()
    path = folder / os.fsdecode(name)
    path.write_bytes(b"weights")
    before = (sealed.folder / SEAL_FILE).read_bytes()
    for model in (path, folder):
        with pytest.raises(RecordFormatError, match=r"cannot be recorded: .*Rename the file"):
            sign_record(sealed.folder, sealed.key, models=[model], overwrite=True)
    assert (sealed.folder / SEAL_FILE).read_bytes() == before
