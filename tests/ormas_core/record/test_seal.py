"""Keys, seals and signatures: what binds a record to its model, and what breaks that."""

import base64
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import event_samples
import pytest
import rfc8785
from seal_support import SealedRun, copied, make_sealed, outcomes, sentence

from ormas_core.errors import KeyFileError, RecordExistsError, RecordFormatError
from ormas_core.record import (
    METRICS_FILE,
    PAYLOAD_TYPE,
    PREDICATE_TYPE,
    RECORD_FILE,
    SEAL_FILE,
    Request,
    Verification,
    make_keys,
    sign_record,
    verify_record,
)
from ormas_core.record.statement import seal_of


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> SealedRun:
    """One sealed run for the tests of this module, to be copied before it is changed."""
    return make_sealed(tmp_path_factory.mktemp("sealed"))


@pytest.fixture
def sealed(original: SealedRun, tmp_path: Path) -> SealedRun:
    """A copy of the sealed run."""
    return copied(original, tmp_path)


def verify(sealed: SealedRun) -> Verification:
    """Verify with the key and the model at hand."""
    return verify_record(
        sealed.folder, Request(key=sealed.public, models=(sealed.model,), canonical=True)
    )


def statement(folder: Path) -> dict[str, Any]:
    """Return the Statement in a seal."""
    envelope = json.loads((folder / SEAL_FILE).read_bytes())
    found: dict[str, Any] = json.loads(base64.b64decode(envelope["payload"]))
    return found


def replace_statement(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the Statement and leave the signature as it is, as a forger without a key would."""
    path, found = folder / SEAL_FILE, statement(folder)
    envelope = json.loads(path.read_bytes())
    change(found)
    envelope["payload"] = base64.b64encode(rfc8785.dumps(found)).decode()
    path.write_bytes(rfc8785.dumps(envelope) + b"\n")


def test_a_sealed_run_passes_every_question(sealed: SealedRun) -> None:
    """With key and model at hand: all that applies passes, which --strict asks for."""
    found = verify(sealed)
    assert set(outcomes(found).values()) == {"pass", "skipped"}
    assert {name for name, out in outcomes(found).items() if out == "skipped"} == {
        "certificates",
        "witness",
    }
    assert found.strict
    assert sentence(found, "model files") == ("4 model files are the ones that the seal names.")


def test_without_key_and_model_these_are_unchecked(sealed: SealedRun) -> None:
    """The sentence says whose signature it claims to be, and which model is meant."""
    found = verify_record(sealed.folder)
    assert outcomes(found)["seal"] == "pass"
    assert outcomes(found)["signature"] == outcomes(found)["model files"] == "unchecked"
    assert "--key FILE" in sentence(found, "signature")
    assert sentence(found, "model files").startswith("Not in the run folder: model.safetensors.")
    assert not found.failed
    assert not found.strict


@pytest.mark.parametrize("name", [RECORD_FILE, METRICS_FILE])
def test_a_record_that_is_cut_to_an_earlier_state_breaks_the_seal(
    sealed: SealedRun, name: str
) -> None:
    """Also where what is left verifies by itself."""
    path = sealed.folder / name
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    found = verify(sealed)
    assert outcomes(found)["seal"] == "fail"
    assert f"{name} has " in sentence(found, "seal")
    assert outcomes(found)["signature"] == "pass"


def test_another_record_under_the_seal_fails(sealed: SealedRun, tmp_path: Path) -> None:
    """A whole record written anew verifies by itself, and is not the sealed one."""
    other = make_sealed(tmp_path / "other", checks=3)
    for name in (RECORD_FILE, METRICS_FILE):
        (sealed.folder / name).write_bytes((other.folder / name).read_bytes())
    found = verify(sealed)
    whole = ("chain", "completeness", "metrics", "schema", "signature", "model files")
    assert {outcomes(found)[name] for name in whole} == {"pass"}
    assert outcomes(found)["seal"] == "fail"


def test_other_bytes_of_the_same_length_under_the_seal_fail(sealed: SealedRun) -> None:
    """The digest is compared, not only the size."""
    replace_statement(sealed.folder, lambda s: s["subject"][0]["digest"].update(sha256="0" * 64))
    assert "is not the sealed file: its digest is" in sentence(verify(sealed), "seal")


def test_a_broken_chain_is_not_the_sealed_file(sealed: SealedRun) -> None:
    """No digest is needed: only records that verify are sealed."""
    path = sealed.folder / RECORD_FILE
    path.write_bytes(path.read_bytes().replace(b'"manifest"', b'"manifesT"'))
    found = verify(sealed)
    assert "its chain is broken" in sentence(found, "seal")


def test_a_changed_statement_loses_its_signature(sealed: SealedRun) -> None:
    """Whoever has no key can change the seal, and not sign it."""
    replace_statement(sealed.folder, lambda s: s["predicate"]["run"].update(status="problem"))
    found = verify(sealed)
    assert outcomes(found)["signature"] == "fail"
    assert "is not over this seal" in sentence(found, "signature")


def test_a_seal_by_another_key_fails(sealed: SealedRun, tmp_path: Path) -> None:
    """Anybody can seal; the question is who did."""
    make_keys(tmp_path / "stranger")
    models = [sealed.model, sealed.shards]
    sign_record(sealed.folder, tmp_path / "stranger", models=models, overwrite=True)
    found = verify(sealed)
    assert outcomes(found)["seal"] == "pass"
    assert outcomes(found)["signature"] == "fail"
    assert f"{sealed.public} is " in sentence(found, "signature")


def test_a_seal_that_was_taken_away_fails_who_asks_for_it(sealed: SealedRun) -> None:
    """Absent, unless a key or a model is given: then somebody counts on it."""
    (sealed.folder / SEAL_FILE).unlink()
    bare = outcomes(verify_record(sealed.folder))
    assert bare["seal"] == bare["signature"] == bare["model files"] == "absent"
    asked = verify(sealed)
    assert outcomes(asked)["signature"] == outcomes(asked)["model files"] == "fail"


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "ckpt/../../secret", "ckpt//x", "", "other/people"]
)
def test_a_seal_that_names_other_peoples_files_is_refused(sealed: SealedRun, name: str) -> None:
    """None of them is opened."""

    def change(found: dict[str, Any]) -> None:
        found["subject"].append({"name": name, "digest": {"sha256": "0" * 64}})
        found["predicate"]["sizes"][name] = "6"

    (sealed.folder.parent / "secret").write_bytes(b"secret")
    replace_statement(sealed.folder, change)
    found = verify(sealed)
    assert outcomes(found)["seal"] == outcomes(found)["model files"] == "fail"
    says = sentence(found, "seal")
    assert "is no path inside the folder" in says or "belongs to no model" in says


def test_a_link_in_place_of_a_sealed_file_is_not_followed(sealed: SealedRun) -> None:
    """Even where the bytes would be right."""
    path = sealed.shards / "model-1.safetensors"
    path.rename(sealed.folder.parent / "moved")
    path.symlink_to(sealed.folder.parent / "moved")
    found = verify(sealed)
    assert sentence(found, "model files") == (
        "ckpt/model-1.safetensors is a symbolic link, not a regular file."
    )


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "no object": lambda _: b"[]",
    "deep": lambda _: b'{"a":' + b"[" * 200_000,
    "long": lambda data: data[:-2] + b" " * 5_000_000 + b"}",
    "no signatures": lambda data: data.replace(b'"signatures"', b'"signaturez"'),
    "another type": lambda data: data.replace(b"in-toto+json", b"in-toto+yaml"),
    "spaces": lambda data: data.replace(b'","', b'", "', 1),
    "base64 noise": lambda data: data.replace(b'"payload":"', b'"payload":"!', 1),
    "a member more": lambda data: b'{"a":1,' + data[1:],
    "a member twice": lambda data: b'{"payloadType":"x",' + data[1:],
    "signatures of the wrong type": lambda _: rfc8785.dumps(
        {"payload": "e30=", "payloadType": PAYLOAD_TYPE, "signatures": 7}
    ),
    "a signature of the wrong type": lambda _: rfc8785.dumps(
        {"payload": "e30=", "payloadType": PAYLOAD_TYPE, "signatures": [{"keyid": 1, "sig": {}}]}
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_an_envelope_that_is_none_fails_seal_and_signature(sealed: SealedRun, how: str) -> None:
    """Whatever is wrong with it: three checks fail and nothing is raised."""
    path = sealed.folder / SEAL_FILE
    path.write_bytes(BROKEN[how](path.read_bytes()))
    found = outcomes(verify(sealed))
    assert (found["seal"], found["signature"], found["model files"]) == ("fail", "fail", "fail")
    assert found["chain"] == found["completeness"] == "pass"


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "another statement": lambda s: s.update(_type="https://in-toto.io/Statement/v0.1"),
    "another predicate": lambda s: s.update(predicateType="https://slsa.dev/provenance/v1"),
    "no subjects": lambda s: s.update(subject=[]),
    "subjects of the wrong type": lambda s: s.update(subject={}),
    "a subject of the wrong type": lambda s: s["subject"].append(7),
    "a name of the wrong type": lambda s: s["subject"][0].update(name=7),
    "a digest of the wrong type": lambda s: s["subject"][0].update(digest=7),
    "a digest that is none": lambda s: s["subject"][0]["digest"].update(sha256="Z" * 64),
    "another digest": lambda s: s["subject"][0].update(digest={"md5": "0" * 32}),
    "a subject twice": lambda s: s["subject"].append(s["subject"][0]),
    "a size that is none": lambda s: s["predicate"]["sizes"].update({RECORD_FILE: "-1"}),
    "a huge size": lambda s: s["predicate"]["sizes"].update({RECORD_FILE: "9" * 30}),
    "a size too many": lambda s: s["predicate"]["sizes"].update(other="1"),
    "no predicate": lambda s: s.pop("predicate"),
    "models of the wrong type": lambda s: s["predicate"].update(models=7),
    "a model without files": lambda s: s["predicate"]["models"].append(
        {"name": "x", "folder": True, "inside": True}
    ),
    "too many models": lambda s: s["predicate"].update(models=[{}] * 101),
    "no time": lambda s: s["predicate"].pop("timeNs"),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_statement_that_is_no_seal_fails(sealed: SealedRun, how: str) -> None:
    """Types, names, numbers and what belongs together are all looked at."""
    replace_statement(sealed.folder, lambda found: (CHANGES[how](found), None)[1])
    found = verify(sealed)
    assert outcomes(found)["seal"] == outcomes(found)["model files"] == "fail"


def test_private_keys_are_0600_and_never_overwritten(tmp_path: Path) -> None:
    """Whatever the umask; neither file of a pair is touched, not even through a link."""
    before = os.umask(0)
    try:
        make_keys(tmp_path / "key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    kept = (tmp_path / "key").read_bytes(), (tmp_path / "key.pub").read_bytes()
    with pytest.raises(RecordExistsError, match="never overwritten"):
        make_keys(tmp_path / "key")
    (tmp_path / "other.pub").write_bytes(b"mine")
    with pytest.raises(RecordExistsError, match=r"other\.pub"):
        make_keys(tmp_path / "other")
    assert not (tmp_path / "other").exists()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(RecordExistsError):
        make_keys(tmp_path / "link")
    assert kept == ((tmp_path / "key").read_bytes(), (tmp_path / "key.pub").read_bytes())
    assert not (tmp_path / "nowhere").exists()


def test_a_file_without_the_key_that_is_needed_is_named(sealed: SealedRun, tmp_path: Path) -> None:
    """A public key does not sign, a private one does not verify, and text does neither."""
    (tmp_path / "text").write_text("no key")
    for wrong in (sealed.public, tmp_path / "text"):
        with pytest.raises(KeyFileError, match="no private Ed25519 key") as caught:
            sign_record(sealed.folder, wrong, overwrite=True)
        assert caught.value.subject == str(wrong)
    for wrong in (sealed.key, tmp_path / "text"):
        with pytest.raises(KeyFileError, match="no public Ed25519 key"):
            verify_record(sealed.folder, Request(key=wrong))


def test_an_ecdsa_key_is_refused(sealed: SealedRun, tmp_path: Path) -> None:
    """One kind of key only, so that one check can be described in four lines of shell."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "ec").write_bytes(pem)
    with pytest.raises(KeyFileError, match="ECPrivateKey"):
        sign_record(sealed.folder, tmp_path / "ec", overwrite=True)


def test_a_seal_is_replaced_only_when_told(sealed: SealedRun) -> None:
    """And then whole: it is written beside the old one and moved."""
    before = (sealed.folder / SEAL_FILE).read_bytes()
    with pytest.raises(RecordExistsError, match="--overwrite"):
        sign_record(sealed.folder, sealed.key)
    assert (sealed.folder / SEAL_FILE).read_bytes() == before
    sign_record(sealed.folder, sealed.key, overwrite=True)
    assert (sealed.folder / SEAL_FILE).read_bytes() != before
    assert not [path for path in sealed.folder.iterdir() if path.name.startswith(".")]


def test_a_record_that_does_not_verify_is_not_sealed(tmp_path: Path) -> None:
    """A signature under a broken record would lend it credit."""
    run = tmp_path / "run"
    event_samples.write_run(run)
    make_keys(tmp_path / "key")
    path = run / RECORD_FILE
    whole = path.read_bytes()
    for broken in (whole.replace(b'"step":1', b'"step":7', 1), b""):
        path.write_bytes(broken)
        with pytest.raises(RecordFormatError, match="was not sealed, because it does not verify"):
            sign_record(run, tmp_path / "key")
    assert not (run / SEAL_FILE).exists()


def test_an_interrupted_record_can_be_sealed(tmp_path: Path) -> None:
    """The seal says so, and completeness stays absent."""
    run = tmp_path / "run"
    event_samples.write_run(run, finished=False)
    make_keys(tmp_path / "key")
    seal = sign_record(run, tmp_path / "key")
    assert (seal.run["status"], seal.run["complete"]) == ("interrupted", False)
    found = outcomes(verify_record(run, Request(key=tmp_path / "key.pub")))
    assert (found["completeness"], found["seal"], found["signature"]) == ("absent", "pass", "pass")


def test_two_models_of_one_name_are_refused(sealed: SealedRun, tmp_path: Path) -> None:
    """Nobody could tell later which file is meant."""
    other = tmp_path / "elsewhere" / RECORD_FILE
    other.parent.mkdir()
    other.write_bytes(b"a model with an odd name")
    with pytest.raises(RecordFormatError, match=f"are called {RECORD_FILE}"):
        sign_record(sealed.folder, sealed.key, models=[other], overwrite=True)


def test_the_models_that_the_record_names_are_sealed_too(tmp_path: Path) -> None:
    """As they were at the end of the run; a model that is named again counts as it is now."""
    run, model = tmp_path / "run", tmp_path / "model.bin"
    model.write_bytes(b"weights")
    event_samples.write_run(run, models=[model])
    make_keys(tmp_path / "key")
    seal = sign_record(run, tmp_path / "key")
    assert [file.name for file in seal.files] == [RECORD_FILE, METRICS_FILE, "model.bin"]
    good = verify_record(run, Request(models=(model,)))
    assert outcomes(good)["model files"] == "pass"
    model.write_bytes(b"tampered")
    assert outcomes(verify_record(run, Request(models=(model,))))["model files"] == "fail"
    (run / SEAL_FILE).unlink()
    unsealed = verify_record(run, Request(models=(model,)))
    assert "sealed are 7" in sentence(unsealed, "model files")


def test_an_independent_reader_reads_the_statement(sealed: SealedRun) -> None:
    """The in-toto project's own package: a valid Statement v1 with our subjects and predicate."""
    from google.protobuf import json_format
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.statement import Statement

    parsed = json_format.ParseDict(statement(sealed.folder), statement_pb2.Statement())
    found = Statement.copy_from_pb(parsed)
    found.validate()
    assert found.pb.predicate_type == PREDICATE_TYPE
    assert {subject.name: subject.digest["sha256"] for subject in found.pb.subject} == {
        file.name: file.sha256 for file in seal_of(rfc8785.dumps(statement(sealed.folder))).files
    }


def test_verify_says_void_when_a_model_changes_meanwhile(
    sealed: SealedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that is being written while it is hashed proves nothing (case 87)."""
    from ormas_core.errors import RecordChangedError
    from ormas_core.record import modelcheck

    whole = modelcheck.digest_of

    def meanwhile(file: Any) -> tuple[int, str]:
        with sealed.model.open("ab") as other:
            other.write(b"more")
        return whole(file)

    monkeypatch.setattr(modelcheck, "digest_of", meanwhile)
    with pytest.raises(RecordChangedError, match="the result is void"):
        verify(sealed)
