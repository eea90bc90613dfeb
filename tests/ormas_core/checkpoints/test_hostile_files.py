"""Files that were made to hurt: bounded memory and work, no traceback."""

import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import torch
from checkpoint_builders import codes, details, f32, read_all, safetensors_bytes, with_header

from ormas_core.checkpoints import State, header, open_checkpoint, pickles, zips
from ormas_core.checkpoints.sniff import LEGACY_START

PROTOCOL: Final = b"\x80\x04"


def shared(levels: int) -> bytes:
    """Return a pickle of pairs of pairs: few bytes, 2 ** levels paths."""
    pairs = b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86\x94" for n in range(levels))
    return PROTOCOL + b"]\x94" + pairs + b"."


PICKLES: Final[dict[str, bytes]] = {
    "a pickle of two to the power of 60 paths": shared(60),
    "tuples in tuples": PROTOCOL + b"N" + b"\x85" * 50_000 + b".",
    "a deep tuple as a key": PROTOCOL + b"}N" + b"\x85" * 50_000 + b"Ns.",
    "a list that holds itself": PROTOCOL + b"]\x94h\x00a.",
    "a memo of four thousand million places": PROTOCOL + b"Nr\xff\xff\xff\xff.",
    "bytes of an exabyte": PROTOCOL + b"\x8e" + (2**60).to_bytes(8, "little") + b"x.",
    "a number of a million digits": PROTOCOL + b"I" + b"9" * 1_000_000 + b"\n.",
    "a storage named by a deep tuple": b"".join(
        (PROTOCOL, b"ctorch._utils\n_rebuild_tensor_v2\n(N", b"\x85" * 50_000)
    )
    + b"K\x01K\x01K\x01K\x01K\x01tQK\x00K\x00K\x00tR.",
    "sizes that are a deep tuple": b"".join(
        (PROTOCOL, b"ctorch._utils\n_rebuild_meta_tensor_no_storage\nctorch\nfloat32\nN")
    )
    + b"\x85" * 50_000
    + b"\x86R.",
    "a call of what a call made": PROTOCOL + b"cx\ny\n)R" + b")R" * 50_000 + b".",
    "a key of ten thousand digits": PROTOCOL + b"}\x8b\x10\x27\0\0" + b"\x7f" * 10_000 + b"]s.",
    "deep keys of the older format": LEGACY_START
    + PROTOCOL
    + b"N."
    + PROTOCOL
    + b"N."
    + PROTOCOL
    + b"}."
    + PROTOCOL
    + b"]N"
    + b"\x85" * 50_000
    + b"a.",
    "no end": PROTOCOL + b"N" * 100,
    "more taken than put": PROTOCOL + b"000.",
    "an extension": PROTOCOL + b"\x82\x01.",
    "out-of-band data": PROTOCOL + b"\x97.",
    "an identity that is no storage": PROTOCOL + b"NQ.",
}


@pytest.mark.parametrize("which", sorted(PICKLES))
def test_a_hostile_pickle_is_looked_through_or_refused(which: str, tmp_path: Path) -> None:
    """With a reason, and without tensors."""
    path = tmp_path / "w.bin"
    path.write_bytes(PICKLES[which])
    found, facts = read_all(path)
    assert facts == {}
    assert found.problems
    allowed = {"malformed", "not-a-checkpoint", "refused-tensors", "refused-objects", "no-tensors"}
    assert set(codes(found)) <= allowed


def test_a_pickle_of_too_many_operations_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the work is bounded."""
    monkeypatch.setattr(pickles, "MAX_OPERATIONS", 1000)
    (tmp_path / "w.bin").write_bytes(PROTOCOL + b"]" * 1001 + b".")
    assert "more than 1,000 operations" in details(open_checkpoint(tmp_path / "w.bin"))


def test_a_header_of_too_many_parts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is parsed, which would take a hundred times its size."""
    monkeypatch.setattr(header, "MAX_PARTS", 100)
    (tmp_path / "m").write_bytes(with_header('{"a":[' + "{}," * 50 + "{}]}"))
    assert "more than 100 parts" in details(open_checkpoint(tmp_path / "m"))


def sparse(path: Path) -> None:
    """Write 64 GiB of zeros, which take no room."""
    shape, size = [2**16, 2**19], 2**36
    header_ = f'{{"a":{{"dtype":"F16","shape":{shape},"data_offsets":[0,{size}]}}}}'
    raw = with_header(header_)
    path.write_bytes(raw)
    with path.open("r+b") as file:
        file.truncate(len(raw) + size)


def nested(path: Path) -> None:
    """Write a header of 60 million open brackets."""
    path.write_bytes(with_header(b'{"a":' + b"[" * 60_000_000))


def commas(path: Path) -> None:
    """Write a header of 30 million empty objects."""
    path.write_bytes(with_header(b'{"a":[' + b"{}," * 30_000_000 + b"{}]}"))


@pytest.mark.parametrize("make", [nested, commas])
def test_memory_is_bounded_by_the_file(make: Callable[[Path], None], tmp_path: Path) -> None:
    """In a process that may not have more than half a gigabyte."""
    path = tmp_path / "m.safetensors"
    make(path)
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**29, 2**29))\n"
        "from ormas_core.checkpoints.open import open_checkpoint\n"
        f"found = open_checkpoint({str(path)!r})\n"
        "assert [p.code for p in found.problems] == ['malformed'], found.problems\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_large_file_is_listed_by_its_header_alone(tmp_path: Path) -> None:
    """64 GiB are opened, and the first tensor of them could be read block by block."""
    sparse(tmp_path / "m")
    found = open_checkpoint(tmp_path / "m")
    assert (found.size, found.problems) == (2**36, ())


def test_names_may_be_anything(tmp_path: Path) -> None:
    """Control characters and paths in names are names; nothing is opened by them."""
    names = ["../../etc/passwd", "\x1b[2Jgone", "a" * 100_000, "", "__proto__", "\u202egnp"]
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_bytes({name: f32(2) for name in names}))
    found, facts = read_all(path)
    assert found.problems == ()
    assert list(facts) == names


def test_tensors_laid_over_each_other_are_not_read_for_days(tmp_path: Path) -> None:
    """A few views are read, thousands are not: the bytes are read sixteen times at most."""
    whole = torch.arange(100_000.0)
    views = {f"l{i}.weight": whole[i : i + 90_000].view(100, -1) for i in range(100)}
    torch.save(views, tmp_path / "w.pt")
    found, facts = read_all(tmp_path / "w.pt")
    assert found.size <= 16 * (tmp_path / "w.pt").stat().st_size
    read = [name for name, one in facts.items() if one.state is State.READ]
    assert read == [f"l{i}.weight" for i in range(len(read))]
    assert 10 < len(read) < 20
    torch.save({f"l{i}.weight": whole for i in range(100)}, tmp_path / "tied.pt")
    _, facts = read_all(tmp_path / "tied.pt")
    assert {one.state for one in facts.values()} == {State.READ}


class _Runs:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return (exec, ("raise SystemExit('it ran')",))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_pickles_of_one_name_are_both_looked_through(first: bool, tmp_path: Path) -> None:
    """Which of them a loader takes is its affair: neither passes for the other."""
    torch.save({"w": torch.ones(2)}, tmp_path / "w.pt")
    with zipfile.ZipFile(tmp_path / "w.pt") as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    evil = [(members[0][0].partition("/")[0] + "/data.pkl", pickle.dumps(_Runs(), protocol=2))]
    with zipfile.ZipFile(tmp_path / "two.pt", "w") as archive:
        for name, raw in (*evil, *members) if first else (*members, *evil):
            archive.writestr(name, raw)
    found, facts = read_all(tmp_path / "two.pt")
    assert facts == {}
    assert codes(found) == ["malformed", "dangerous-objects"]
    assert "builtins.exec" in found.globals


def test_a_directory_of_too_many_members_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes ten times its size in memory."""
    monkeypatch.setattr(zips, "_MAX_READ", 1000)
    with zipfile.ZipFile(tmp_path / "w.pt", "w") as archive:
        for number in range(100):
            archive.writestr(str(number), b"")
    assert "a directory of" in details(open_checkpoint(tmp_path / "w.pt"))
