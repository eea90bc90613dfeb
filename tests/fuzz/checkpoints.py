"""`make fuzz-checkpoints N=20000`: mutated checkpoints, which no check may crash, hang or run.

Headers are compared with the safetensors library. Pickles, zip files and files of the older format
are mutated byte by byte and operation by operation; what a mutant would run leaves a trace in this
process, and none may. Memory is bounded by a limit on the address space.
"""

import io
import pickle
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from fuzz.headers import accepted_by_library, accepted_here, mutants

from ormas_core.checkpoints import State, open_checkpoint
from ormas_core.checkpoints.opened import PROBLEMS

SEED: Final = 13
ROOM: Final = 3 * 2**30
TRACE: Final = "ormas-fuzz-trace"
_OPERATIONS: Final = (
    b"\x80\x05", b"\x95" + bytes(8), b"(", b"0", b"1", b"2", b"N", b"\x88", b"\x89", b"]", b"}",
    b")", b"\x8f", b"a", b"e", b"s", b"u", b"t", b"l", b"d", b"\x85", b"\x86", b"\x87", b"R",
    b"\x81", b"\x92", b"b", b"Q", b"o", b"\x93", b"\x94", b"\x90", b"\x91", b".", b"q\x00",
    b"h\x00", b"cposix\nsystem\n", b"cbuiltins\nexec\n", b"itorch\nTensor\n", b"P0\n", b"F1e999\n",
    b"\x97", b"r\xff\xff\xff\xff", b"j\xff\xff\xff\x7f", b"\x8b\xff\xff\xff\x7f",
    b"\x8d" + b"\xff" * 8,
    b"\x8e" + (2**40).to_bytes(8, "little"), b"B\xff\xff\xff\x7f", b"T\xff\xff\xff\xff",
    b"I99999999999999999999\n", b"L" + b"9" * 5000 + b"L\n", b"\x82\x01", b"\x84\xff\xff\xff\xff",
    b"\x85" * 3000, b"]" * 3000, b"h\x00\x86" * 400, b"g99999999999\n", b"p99999999999\n",
    b"X\xff\xff\xff\xff", b"\x96" + b"\xff" * 8,
)  # fmt: skip

Mutation = Callable[[random.Random, bytes], bytes]


class Traced:
    """An object whose unpickling leaves a trace."""

    def __reduce__(self) -> Any:
        return (exec, (f"import sys; sys.modules[{TRACE!r}] = sys",))


def originals() -> dict[str, bytes]:
    """Return a small file of each kind that is mutated."""
    import torch

    state = {
        "state_dict": {
            "a.weight": torch.ones(3, 4),
            "b": torch.arange(5),
            "t": torch.ones(4, 3).t(),
        },
        "traced": Traced(),
    }
    found = {"pickle": pickle.dumps({"a": [1, (2.5, "x")], "traced": Traced()})}
    for name, new in (("zip", True), ("legacy", False)):
        out = io.BytesIO()
        torch.save(state, out, _use_new_zipfile_serialization=new)
        found[name] = out.getvalue()
    return found


def flip(rng: random.Random, raw: bytes) -> bytes:
    """Change a few bytes."""
    out = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 8))):
        out[rng.randrange(len(out))] = rng.randrange(256)
    return bytes(out)


def insert(rng: random.Random, raw: bytes) -> bytes:
    """Put operations in, near the beginning more often than not."""
    at = rng.randrange(min(len(raw), rng.choice((40, 400, len(raw)))) + 1)
    return raw[:at] + rng.choice(_OPERATIONS) * rng.choice((1, 1, 3)) + raw[at:]


def overwrite(rng: random.Random, raw: bytes) -> bytes:
    """Write operations over what is there; the length stays, so that a zip stays one."""
    operation = rng.choice(_OPERATIONS)[:200]
    at = rng.randrange(max(1, len(raw) - len(operation)))
    return raw[:at] + operation + raw[at + len(operation) :]


def numbers(rng: random.Random, raw: bytes) -> bytes:
    """Write a large number where there may be a size."""
    size = rng.choice((2, 4, 8))
    at = rng.randrange(max(1, len(raw) - size))
    value = rng.choice((0, 1, 2 ** (8 * size) - 1, 2 ** (8 * size - 1), 2 ** (8 * size - 2)))
    return raw[:at] + value.to_bytes(size, "little") + raw[at + size :]


def cut(rng: random.Random, raw: bytes) -> bytes:
    """Take a piece out, or the end off."""
    at = rng.randrange(len(raw))
    return raw[:at] + raw[at + rng.choice((1, 10, 100, len(raw))) :]


MUTATIONS: Final[tuple[Mutation, ...]] = (flip, insert, overwrite, overwrite, numbers, cut)


def mutate(rng: random.Random, raw: bytes) -> bytes:
    """Return a mutant, never empty."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        raw = rng.choice(MUTATIONS)(rng, raw) or raw
    return raw


def look(path: Path) -> str:
    """Open and read a mutant; return what came of it.

    Raises:
        AssertionError: something of it ran, or a problem has no known code.
    """
    found = open_checkpoint(path)
    facts = list(found.tensors())
    assert TRACE not in sys.modules, "a mutant was run"
    assert all(problem.code in PROBLEMS for problem in found.problems), found.problems
    assert facts or found.problems, "neither a tensor nor a problem"
    if any(one.state is State.UNREADABLE for one in facts):
        return "partly readable"
    return "readable" if facts else "not readable"


def files(number: int, path: Path) -> Counter[str]:
    """Mutate files of the PyTorch kinds; return what came of them."""
    made, found = originals(), Counter[str]()
    for at in range(number):
        rng = random.Random(SEED * 10**9 + at)
        kind = rng.choice(sorted(made))
        path.write_bytes(mutate(rng, made[kind]))
        try:
            found[look(path)] += 1
        except Exception as error:
            raise AssertionError(f"mutant {at} of {kind}: {error!r}") from error
    return found


def headers(number: int) -> Counter[str]:
    """Compare mutated headers with the library; return how many it accepts."""
    found = Counter[str]()
    for at, raw in enumerate(mutants(number)):
        accepted = accepted_by_library(raw)
        assert accepted_here(raw) is accepted, f"header {at}: {raw!r:.2000}"
        found["accepted" if accepted else "refused"] += 1
    return found


def main() -> None:
    """Fuzz as many mutants of each sort as asked for and print what came of them."""
    number = int(sys.argv[1])
    began = time.perf_counter()
    judged = headers(number)
    made = originals()  # imports torch, which needs more room than a check may take
    assert made
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
    with tempfile.TemporaryDirectory() as folder:
        found = files(number, Path(folder) / "mutant")
    seconds = time.perf_counter() - began
    print(
        f"{2 * number} mutants in {seconds:.0f} s. Headers: {judged['accepted']} accepted, "
        f"{judged['refused']} refused, all as by the library. PyTorch files: {dict(found)}. None "
        "crashed the check, none ran."
    )


if __name__ == "__main__":
    main()
