"""Records that a training must not go on with, and models that a record cannot name."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support import ToyNet, loader, plain_loop, sgd

from ormas_core import (
    MemorySink,
    Monitor,
    RecordExistsError,
    RecordFormatError,
    verify_record,
)

Make = Callable[..., tuple[Monitor, MemorySink]]


def trained(make: Make) -> None:
    """Leave the record of a training of five checks."""
    net = ToyNet()
    monitor, _ = make(net, sgd(net))
    plain_loop(net, monitor.step, list(loader())[:5], sgd(net))
    monitor.close()


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_metrics_that_lack_rows_are_not_continued(make: Make, tmp_path: Path, kept: int) -> None:
    """An anchor names rows that are gone: the record would never verify again."""
    trained(make)
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:kept]))
    before = (tmp_path / "run" / "record.jsonl").read_bytes()
    with pytest.raises(RecordFormatError, match=f"has {kept} rows, and an anchor .* names 5"):
        make(ToyNet(), resume=True)
    assert (tmp_path / "run" / "record.jsonl").read_bytes() == before
    assert not (tmp_path / "run" / "record.lock").exists()


@pytest.mark.parametrize("left", [b"", None])
def test_metrics_without_a_record_are_not_taken_over(
    make: Make, tmp_path: Path, left: bytes | None
) -> None:
    """Rows of a run that is gone would count as those of the new one."""
    trained(make)
    path = tmp_path / "run" / "record.jsonl"
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    with pytest.raises(RecordFormatError, match=r"has 5 rows, and no run begins in record\.jsonl"):
        make(ToyNet(), resume=True)
    make(ToyNet(), overwrite=True)[0].close()
    assert verify_record(tmp_path / "run").complete


@pytest.mark.parametrize(
    "name",
    ["mo\\del.pt", os.fsdecode(b"mo\xffdel.pt"), "."],
    ids=["backslash", "not UTF-8", "dot"],
)
def test_a_model_that_no_record_can_name_costs_its_binding_only(
    make: Make, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Odd names, and a folder that holds the run: said in the log, and the record verifies."""
    monitor, _ = make(ToyNet())
    (tmp_path / name).is_dir() or (tmp_path / name).write_bytes(b"weights")
    monitor.close(models=[tmp_path / name])
    assert caplog.text.count("is not bound to the record") == 1
    assert verify_record(tmp_path / "run").complete


def test_a_sealed_record_is_not_continued(make: Make, tmp_path: Path) -> None:
    """Its signature would not hold any more; nothing is changed."""
    make(ToyNet())[0].close()
    (tmp_path / "run" / "record.dsse.json").write_text("{}")
    before = (tmp_path / "run" / "record.jsonl").read_bytes()
    with pytest.raises(RecordExistsError, match="is sealed"):
        make(ToyNet(), resume=True)
    assert (tmp_path / "run" / "record.jsonl").read_bytes() == before
    assert not (tmp_path / "run" / "record.lock").exists()
    make(ToyNet(), overwrite=True)[0].close()
    assert not (tmp_path / "run" / "record.dsse.json").exists()


def test_a_record_that_cannot_be_read_is_not_continued(make: Make, tmp_path: Path) -> None:
    """Refused before training, with the line; the lock is given back."""
    make(ToyNet())[0].close()
    path = tmp_path / "run" / "record.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"world_size":1', b'"world_size":"x"'))
    with pytest.raises(RecordFormatError, match=r"line 1: .* cannot be continued"):
        make(ToyNet(), resume=True)
    assert not (tmp_path / "run" / "record.lock").exists()
