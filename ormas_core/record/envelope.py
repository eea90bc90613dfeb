"""The seal as a file: a DSSE envelope, and the Ed25519 keys that sign it."""

import contextlib
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import rfc8785

from ormas_core.errors import KeyFileError, RecordExistsError, RecordFormatError
from ormas_core.record.files import open_inside
from ormas_core.record.reader import SEAL_FILE
from ormas_core.record.statement import PAYLOAD_TYPE
from ormas_core.record.strict import load_object

MAX_SEAL: Final = 4 * 2**20
_MAX_KEY: Final = 2**16


@dataclass(frozen=True, slots=True)
class Signed:
    """A DSSE envelope.

    Attributes:
        payload: the Statement's bytes.
        keyids: identifiers of the keys that are said to have signed.
        envelope: the parsed envelope, for checking signatures.
    """

    payload: bytes
    keyids: tuple[str, ...]
    envelope: Any


def read_envelope(folder: Path) -> Signed:
    """Return the envelope of a run folder.

    Raises:
        FileNotFoundError: there is none.
        RecordFormatError: it is no DSSE envelope of a Statement in its canonical spelling.
        RecordChangedError: it was changed while it was being read.
    """
    with open_inside(folder, SEAL_FILE) as file:
        data = file.read(MAX_SEAL + 1)

    from securesystemslib.dsse import Envelope  # a tenth of a second, for those with a seal

    if len(data) > MAX_SEAL:
        raise RecordFormatError(SEAL_FILE, f"{SEAL_FILE} is longer than {MAX_SEAL} bytes")
    try:
        envelope = Envelope.from_dict(load_object(data))
        canonical = rfc8785.dumps(envelope.to_dict())
    except RecordFormatError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the library makes of a stranger's bytes
        raise RecordFormatError(SEAL_FILE, f"no DSSE envelope: {error!r:.200}") from None
    if canonical != data.rstrip():
        raise RecordFormatError(SEAL_FILE, "the envelope is not in the spelling of RFC 8785")
    if not envelope.signatures or not all(type(keyid) is str for keyid in envelope.signatures):
        raise RecordFormatError(SEAL_FILE, "the envelope names nobody who has signed it")
    if envelope.payload_type != PAYLOAD_TYPE:
        raise RecordFormatError(SEAL_FILE, f"its payload is {envelope.payload_type!r:.100}")
    return Signed(envelope.payload, tuple(envelope.signatures), envelope)


def write_envelope(
    folder: Path, statement: Mapping[str, Any], key: Path, *, overwrite: bool
) -> str:
    """Sign a Statement and write the envelope beside the record; return the key's identifier.

    Raises:
        KeyFileError: `key` holds no private Ed25519 key.
        RecordExistsError: there is an envelope already, and it is not to be overwritten.
        RecordFormatError: the statement is too long.
    """
    from securesystemslib.dsse import Envelope

    path = folder / SEAL_FILE
    if os.path.lexists(path) and not overwrite:
        raise RecordExistsError(
            str(path), f"{path} is there already. Pass --overwrite to seal the record again."
        )
    envelope = Envelope(rfc8785.dumps(dict(statement)), PAYLOAD_TYPE, {})
    signature = envelope.sign(_signer(key))
    data = rfc8785.dumps(envelope.to_dict()) + b"\n"
    if len(data) > MAX_SEAL:
        raise RecordFormatError(str(path), f"The seal of {folder} would be {len(data)} bytes long.")
    new = folder / f".{SEAL_FILE}.{uuid.uuid4().hex[:16]}"  # nobody's, whatever a killed one left
    _create(new, data, 0o644)
    try:
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    return signature.keyid


def refutation(signed: Signed, key: Path) -> str:
    """Return why `key` does not confirm the signature; empty if it does.

    Raises:
        KeyFileError: `key` holds no public Ed25519 key.
    """
    from securesystemslib.exceptions import VerificationError

    public = _public_key(key)
    if public.keyid not in signed.keyids:
        named = ", ".join(keyid[:12] for keyid in signed.keyids) or "nobody"
        return f"It says it is signed by {named:.100}; {key} is {public.keyid[:12]}"
    try:
        signed.envelope.verify([public], 1)
    except VerificationError:
        return f"The signature that claims to be made with {key} is not over this seal"
    return ""


def make_keys(path: Path) -> str:
    """Write a new private key to `path`, 0600, and the public one to `path`.pub.

    Returns:
        The identifier of the key.

    Raises:
        RecordExistsError: one of the files exists; nothing is written.
        KeyFileError: `path` names no file.
        OSError: they cannot be written; neither is there then.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    if not path.name:
        raise KeyFileError(str(path), f"{path} is no name for a file of a private key.")
    private, public = Ed25519PrivateKey.generate(), path.with_name(f"{path.name}.pub")
    for file in (path, public):
        if os.path.lexists(file):
            raise RecordExistsError(
                str(file), f"{file} is there already, and keys are never overwritten: name another."
            )
    secret = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _create(path, secret, 0o600)
    form = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    try:
        _create(public, private.public_key().public_bytes(*form), 0o644)
    except BaseException:
        path.unlink()
        raise
    return str(_public_key(public).keyid)


def _create(path: Path, data: bytes, mode: int) -> None:
    """Write a file that must not exist, not even as a link: all of it, or no file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _key_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MAX_KEY)


def _signer(path: Path) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.signer import CryptoSigner

    try:
        private = load_pem_private_key(_key_bytes(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _no_key(path, "private", error) from None
    if not isinstance(private, Ed25519PrivateKey):
        raise _no_key(path, "private", type(private).__name__)
    return CryptoSigner(private)


def _public_key(path: Path) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    try:
        public = load_pem_public_key(_key_bytes(path))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _no_key(path, "public", error) from None
    if not isinstance(public, Ed25519PublicKey):
        raise _no_key(path, "public", type(public).__name__)
    return SSlibKey.from_crypto(public)


def _no_key(path: Path, which: str, found: object) -> KeyFileError:
    return KeyFileError(
        str(path),
        f"{path} holds no {which} Ed25519 key in PEM ({found!s:.100}). "
        "`ormas-monitor keygen PATH` writes PATH, the private key, and PATH.pub, the public one.",
    )
