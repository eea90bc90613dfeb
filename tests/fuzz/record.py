"""`make fuzz-record N=20000`: mutated run folders, none of which may pass for intact.

A signed run of three checks is mutated byte by byte, line by line and file by file. `verify` must
never raise, and may call a mutant intact only if it is byte-identical or differs in white space at
the end of a file. Mutants are the same on every machine: `SEED` and a number name each.
"""

import collections
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from seal_support import SealedRun, make_sealed

from ormas_core.record import (
    METRICS_FILE,
    RECORD_FILE,
    SEAL_FILE,
    Request,
    Verification,
    chain,
    verify_record,
)

SEED: Final = 4
FILES: Final = (RECORD_FILE, METRICS_FILE, SEAL_FILE)
TOKENS: Final = (
    b"NaN", b"null", b"1e999", b"-0", b"\x00", b"\xff\xfe", b"\n", b"\r\n", b'"', b"\\u0000", b"{",
    b"[" * 2000, b"9" * 5000, b'"seq":0', b'"event":"anchor"', b',"hash":"' + b"0" * 64 + b'"}',
    b" ", b"\xf0\x9f\x94\xa5", b'\\ud800', b"true", b"/etc/passwd", b"../",
)  # fmt: skip

Mutation = Callable[[random.Random, bytes], bytes]


def flip(rng: random.Random, data: bytes) -> bytes:
    """Change a few bytes."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        out[rng.randrange(len(out))] = rng.randrange(256)
    return bytes(out)


def cut(rng: random.Random, data: bytes) -> bytes:
    """Take a piece out."""
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.choice((1, 1, 10, 100, len(data))) :]


def insert(rng: random.Random, data: bytes) -> bytes:
    """Put a piece in: a token, or a piece of the file itself."""
    at, start = rng.randrange(len(data) + 1), rng.randrange(len(data))
    piece = rng.choice((rng.choice(TOKENS), data[start : start + rng.choice((1, 20, 400))]))
    return data[:at] + piece + data[at:]


def overwrite(rng: random.Random, data: bytes) -> bytes:
    """Write a token over what is there."""
    at, token = rng.randrange(len(data)), rng.choice(TOKENS)
    return data[:at] + token + data[at + len(token) :]


def lines(rng: random.Random, data: bytes) -> bytes:
    """Drop, repeat or swap lines."""
    found = data.splitlines(keepends=True)
    one, other = rng.randrange(len(found)), rng.randrange(len(found))
    match rng.randrange(4):
        case 0:
            del found[one]
        case 1:
            found.insert(other, found[one])
        case 2:
            found[one], found[other] = found[other], found[one]
        case _:
            del found[one:]
    return b"".join(found)


def tail(rng: random.Random, data: bytes) -> bytes:
    """Cut the end off, or add to it."""
    if rng.random() < 0.5:
        return data[: rng.randrange(len(data))]
    return data + rng.choice((b"\n", b" ", b"\t\n", b"{", b"\x00", *TOKENS))


def reseal(rng: random.Random, data: bytes) -> bytes:
    """Change a line and give it, and no other, a right hash again."""
    found = data.splitlines(keepends=True)
    at = rng.randrange(len(found))
    body = bytearray(found[at][: -len(b',"hash":""}\n') - 64] + b"}")
    if len(body) < 3:
        return flip(rng, data)
    body[rng.randrange(len(body) - 1)] = rng.randrange(256)
    digest = chain.digest(bytes(body)).encode()
    found[at] = bytes(body[:-1]) + b',"hash":"' + digest + b'"}\n'
    return b"".join(found)


MUTATIONS: Final[tuple[Mutation, ...]] = (
    flip, cut, insert, overwrite, lines, tail, reseal,
)  # fmt: skip


def mutate(rng: random.Random, whole: dict[str, bytes]) -> tuple[str, dict[str, bytes]]:
    """Return what was done, and the files of the mutant."""
    mutant, done = dict(whole), []
    for _ in range(rng.choice((1, 1, 1, 2))):
        name, mutation = rng.choice(FILES), rng.choice(MUTATIONS)
        if mutant[name]:
            mutant[name] = mutation(rng, mutant[name])
        done.append(f"{mutation.__name__} {name}")
    return ", ".join(done), mutant


def run(number: int, sealed: SealedRun) -> collections.Counter[str]:
    """Verify mutants; return by what they were found, and how many.

    Raises:
        AssertionError: a mutant passed for intact, or the verifier raised; it is named.
    """
    whole = {name: (sealed.folder / name).read_bytes() for name in FILES}
    request = Request(key=sealed.public, models=(sealed.model,))
    found = collections.Counter[str]()
    for at in range(number):
        what, mutant = mutate(random.Random(SEED * 10**9 + at), whole)
        for name, data in mutant.items():
            (sealed.folder / name).write_bytes(data)
        try:
            result = verify_record(sealed.folder, request)
        except Exception as error:
            raise AssertionError(f"mutant {at} ({what}): {error!r}") from error
        found[_judge(f"mutant {at} ({what})", result, whole, mutant)] += 1
    for name, data in whole.items():
        (sealed.folder / name).write_bytes(data)
    return found


def _judge(
    which: str, result: Verification, whole: dict[str, bytes], mutant: dict[str, bytes]
) -> str:
    """Return by what a mutant was found, asserting that it was."""
    changed = {name for name in FILES if mutant[name].rstrip() != whole[name].rstrip()}
    checks = {check.name: check.outcome.value for check in result.checks}
    assert not changed or not result.strict, f"{which} passes for intact"
    if not changed:
        return "same"
    if changed == {SEAL_FILE}:
        return "seal"
    # Without a seal the record would have to speak for itself.
    core = {checks[name] for name in ("chain", "completeness", "metrics", "schema")}
    assert core != {"pass"}, f"{which} passes for whole"
    return "record" if "fail" in core else "interrupted"


def main() -> None:
    """Fuzz as many mutants as asked for and print what came of them."""
    number = int(sys.argv[1])
    base = Path(tempfile.mkdtemp())
    try:
        began = time.perf_counter()
        found = run(number, make_sealed(base / "run", checks=3))
        seconds = time.perf_counter() - began
    finally:
        shutil.rmtree(base)
    print(
        f"{number} mutants in {seconds:.0f} s. Record or metrics changed: {found['record']} fail "
        f"by themselves, {found['interrupted']} read as interrupted; all fail against the seal. "
        f"Only the seal changed: {found['seal']} fail. White space at an end: {found['same']}. "
        "None passed for intact, none raised."
    )


if __name__ == "__main__":
    main()
