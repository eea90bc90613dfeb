"""Files of the safetensors format: whole, cut, contradictory, and without torch."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checkpoint_builders import (
    codes,
    details,
    f32,
    read_all,
    safetensors_bytes,
    with_header,
    write_safetensors,
)

from ormas_core.checkpoints import Kind, State, open_checkpoint

ENTRY = '{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'


def test_a_sound_file_is_read_and_nothing_is_said(tmp_path: Path) -> None:
    """Tensors, text and numbers as they were written, whatever the file is called."""
    tensors = {"module.a.weight": f32(3, 4), "b": f32(5, i3=-9)}
    path = write_safetensors(tmp_path / "weights.txt", tensors, metadata={"format": "pt"})
    found, facts = read_all(path)
    assert (found.kind, found.problems, found.metadata) == (Kind.SAFETENSORS, (), {"format": "pt"})
    assert found.names == ("a.weight", "b")
    assert facts["module.a.weight"].clean == "a.weight"
    assert facts["b"].magnitude.tolist() == [0.5, 0.75, 1.0, 9.0, 1.5]
    assert found.changes() == ()


def test_a_cut_file_names_what_is_missing_and_the_rest_is_read(tmp_path: Path) -> None:
    """Sizes, the first incomplete tensor, and how many are whole."""
    raw = safetensors_bytes({"a": f32(64), "b": f32(64, i2=np.nan), "c": f32(256)})
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw[: int(len(raw) * 0.7)])
    found, facts = read_all(path)
    assert codes(found) == ["truncated"]
    assert f"promises {len(raw):,} bytes, the file has {int(len(raw) * 0.7):,}" in details(found)
    assert "first incomplete tensor is 'c'; 2 of 3 tensors are whole" in details(found)
    assert (facts["b"].nan, facts["b"].first) == (1, (2,))
    assert facts["c"].state is State.UNREADABLE
    assert "beyond the end of the file" in facts["c"].reason


def test_a_file_cut_within_its_header_is_named(tmp_path: Path) -> None:
    """Nothing can be read, and why is said."""
    raw = safetensors_bytes({"a": f32(64)})
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw[:40])
    found, facts = read_all(path)
    assert facts == {}
    assert codes(found)[0] == "truncated"
    assert "the file has 40" in details(found)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (f'{{"a":{ENTRY},"b":{ENTRY}}}', "within what another one takes"),
        ('{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}', "gap"),
        ('{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}', "needs 12 bytes"),
        ('{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}', "does not fill whole bytes"),
        ('{"a":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}}', "unknown dtype 'F99'"),
        ('{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}', "no proper shape"),
        (
            '{"a":{"dtype":"F32","shape":[4611686018427387904,8],"data_offsets":[0,8]}}',
            "too large",
        ),
        ("[" * 5000, "not valid"),
        ('{"a":' + "[" * 100_000, "not valid"),
        ('{"a":1}', "describes no tensor"),
    ],
)
def test_a_header_that_contradicts_itself_is_explained(
    header: str, said: str, tmp_path: Path
) -> None:
    """Each with the reason, in a problem and not in a traceback."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(with_header(header, bytes(8)))
    if not header.startswith("{"):
        path.write_bytes(with_header('{"' + header, bytes(8)))
    found, _ = read_all(path)
    assert "malformed" in codes(found)
    assert said in details(found)


@pytest.mark.parametrize("length", [2**62, 2**64 - 1, 100_000_001, 10**9])
def test_a_header_of_silly_size_is_refused_before_it_is_read(length: int, tmp_path: Path) -> None:
    """No memory is asked for what the first eight bytes say."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b'{"a":' + bytes(100))
    found, facts = read_all(path)
    assert facts == {}
    assert codes(found)[0] in ("malformed", "truncated")
    assert f"{length:,} bytes" in details(found)


def test_a_name_that_is_there_twice_is_noted(tmp_path: Path) -> None:
    """The library takes the last one, and so is it here; that there were two is said."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(with_header(f'{{"a":{ENTRY},"a":{ENTRY}}}', bytes(8)))
    found, facts = read_all(path)
    assert codes(found) == ["malformed"]
    assert "'a' is named twice" in details(found)
    assert facts["a"].state is State.READ


def test_bytes_behind_the_last_tensor_are_a_problem(tmp_path: Path) -> None:
    """As the library has it; the tensors are read all the same."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_bytes({"a": f32(4)}) + b"more")
    found, facts = read_all(path)
    assert "4 bytes follow the last tensor" in details(found)
    assert facts["a"].state is State.READ


def test_a_file_with_metadata_only_holds_no_tensor(tmp_path: Path) -> None:
    """It is sound for the library, and empty."""
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(with_header('{"__metadata__":{"format":"pt"}}'))
    found, facts = read_all(path)
    assert (codes(found), facts) == (["no-tensors"], {})


def test_torch_is_not_imported_for_safetensors(tmp_path: Path) -> None:
    """Nor is numpy, until a tensor is read."""
    path = write_safetensors(tmp_path / "m.safetensors", {"a": f32(3, 4)})
    code = (
        "import sys\nfrom ormas_core.checkpoints.open import open_checkpoint\n"
        f"found = open_checkpoint({str(path)!r})\n"
        "assert len(list(found.tensors())) == 1\n"
        "print(*({'torch', 'safetensors', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_a_change_during_the_check_is_seen(tmp_path: Path) -> None:
    """Whoever asks at the end learns that the result is void, also after a rename."""
    path = write_safetensors(tmp_path / "m.safetensors", {"a": f32(4)})
    found = open_checkpoint(path)
    list(found.tensors())
    assert found.changes() == ()
    other = write_safetensors(tmp_path / "new", {"a": f32(4)})
    other.replace(path)
    assert [problem.code for problem in found.changes()] == ["changed"]
    path.unlink()
    assert [problem.code for problem in found.changes()] == ["changed"]


def test_a_file_that_shrinks_while_it_is_read_is_no_crash(tmp_path: Path) -> None:
    """The tensors that are gone are unreadable; a memory map would end the process here."""
    path = write_safetensors(tmp_path / "m.safetensors", {"a": f32(4), "b": f32(40)})
    found = open_checkpoint(path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 80)
    states = {facts.name: facts.state for facts in found.tensors()}
    assert states == {"a": State.READ, "b": State.UNREADABLE}
    assert [problem.code for problem in found.changes()] == ["changed"]


def test_threads_give_the_facts_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same facts, in the order of the file, whoever read them; progress goes up to the end."""
    from ormas_core.checkpoints import reading

    tensors = {f"t{n}": f32(3, n + 1, start=n) for n in range(40)}
    path = write_safetensors(tmp_path / "m.safetensors", tensors)
    alone = [(f.name, f.fingerprint) for f in open_checkpoint(path).tensors()]
    monkeypatch.setattr(reading, "_WORTH_THREADS", 0)
    monkeypatch.setattr(reading, "_cores", lambda: 4)
    told: list[tuple[int, int]] = []
    found = open_checkpoint(path)
    together = [
        (f.name, f.fingerprint) for f in found.tensors(progress=lambda *at: told.append(at))
    ]
    assert together == alone
    assert told == sorted(told)
    assert told[-1] == (found.size, found.size)


def test_reading_may_be_left_in_the_midst(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are closed and threads end when whoever reads loses interest."""
    from ormas_core.checkpoints import reading

    monkeypatch.setattr(reading, "_WORTH_THREADS", 0)
    monkeypatch.setattr(reading, "_cores", lambda: 4)
    path = write_safetensors(tmp_path / "m.safetensors", {f"t{n}": f32(8) for n in range(40)})
    tensors = open_checkpoint(path).tensors()
    assert next(tensors).name == "t0"
    tensors.close()  # type: ignore[attr-defined]
    open_files = [link.resolve() for link in Path("/proc/self/fd").iterdir()]
    assert path.resolve() not in open_files


def test_equal_bytes_are_told_from_equal_fingerprints(tmp_path: Path) -> None:
    """`same_bytes` reads both; type and shape count."""
    tensors = {"a": f32(8, 8), "b": f32(8, 8), "c": f32(8, 8, i9=7), "d": f32(64)}
    found = open_checkpoint(write_safetensors(tmp_path / "m.safetensors", tensors))
    assert found.same_bytes("a", "b")
    assert not found.same_bytes("a", "c")
    assert not found.same_bytes("a", "d")


def test_a_json_file_without_weights_is_named(tmp_path: Path) -> None:
    """It is neither an index nor weights."""
    path = tmp_path / "model.safetensors"
    path.write_text(json.dumps({"error": "not found"}))
    found = open_checkpoint(path)
    assert (found.kind, codes(found)) == (Kind.UNKNOWN, ["not-a-checkpoint"])
    assert "JSON" in details(found)
