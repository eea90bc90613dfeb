"""The hash chain over the lines of a file.

A line is a canonical JSON object (RFC 8785) with one member more at its end, `hash`: SHA-256 over
the canonical bytes without it. `prev` inside repeats the hash of the line before (zeros for the
first). A verifier cuts the member off again and hashes what is left: nothing is re-serialised.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from ormas_core.errors import RecordFormatError
from ormas_core.record import canonical

GENESIS: Final = "0" * 64
"""`prev` of the first line of a file."""

_SEALED: Final = re.compile(rb',"hash":"([0-9a-f]{64})"\}\Z')
_MEMBER_LENGTH: Final = len(b',"hash":""}') + 64


def seal(members: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return the line for `members`, newline included, and its hash (64 hexadecimal digits)."""
    body = canonical.dumps(dict(members))
    digest = hashlib.sha256(body).hexdigest()
    return body[:-1] + b',"hash":"' + digest.encode() + b'"}\n', digest


def unseal(line: bytes) -> tuple[bytes, str]:
    """Return the canonical body of a line (without newline) and the hash it claims.

    Raises:
        RecordFormatError: the line does not end in a hash member.
    """
    match = _SEALED.search(line)
    if match is None:
        raise RecordFormatError("hash", "the line does not end in a hash member")
    return line[:-_MEMBER_LENGTH] + b"}", match[1].decode()


def digest(body: bytes) -> str:
    """Return the hash of a line's canonical body."""
    return hashlib.sha256(body).hexdigest()
