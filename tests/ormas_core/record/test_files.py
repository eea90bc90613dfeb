"""Files of a folder that a stranger filled: opened if they are regular files in it, never else."""

import os
from pathlib import Path

import pytest

from ormas_core.errors import RecordChangedError, RecordFormatError
from ormas_core.record.files import open_inside, open_named, require_inside


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file and a folder in it, and a secret beside it."""
    run = tmp_path / "run"
    (run / "sub").mkdir(parents=True)
    (run / "file").write_bytes(b"file")
    (run / "sub" / "inner").write_bytes(b"inner")
    (tmp_path / "secret").write_bytes(b"secret")
    return run


@pytest.mark.parametrize(("name", "holds"), [("file", b"file"), ("sub/inner", b"inner")])
def test_a_regular_file_is_read(folder: Path, name: str, holds: bytes) -> None:
    """In the folder and below, also where the folder itself was reached by a link."""
    link = folder.parent / "link"
    link.symlink_to(folder)
    for start in (folder, link):
        with open_inside(start, name) as file:
            assert file.read() == holds


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "../secret", "sub/../file", "./file", "sub//inner", "a\0b", "a\\b"]
)
def test_a_path_that_leaves_the_folder_is_refused(folder: Path, name: str) -> None:
    """Before anything is opened."""
    with pytest.raises(RecordFormatError, match="is no path inside the folder"):
        require_inside(name)
    with pytest.raises(RecordFormatError), open_inside(folder, name):
        pass


def test_links_pipes_devices_and_folders_are_refused(folder: Path) -> None:
    """Each by its name; nothing waits and nothing outside is read."""
    (folder / "to-file").symlink_to(folder / "file")
    (folder / "to-secret").symlink_to("../secret")
    (folder / "to-device").symlink_to("/dev/zero")
    (folder / "loop").symlink_to("loop")
    (folder / "to-folder").symlink_to(folder / "sub")
    os.mkfifo(folder / "pipe")
    found = {}
    for name in ("to-file", "to-secret", "to-device", "loop", "to-folder/inner", "pipe", "sub"):
        with pytest.raises(RecordFormatError) as caught, open_inside(folder, name):
            pass
        found[name] = str(caught.value)
    assert found == {
        "to-file": "to-file is a symbolic link, not a regular file",
        "to-secret": "to-secret is a symbolic link, not a regular file",
        "to-device": "to-device is a symbolic link, not a regular file",
        "loop": "loop is a symbolic link, not a regular file",
        "to-folder/inner": "to-folder/inner goes through a symbolic link, no folder",
        "pipe": "pipe is a named pipe, not a regular file",
        "sub": "sub is a folder, not a regular file",
    }


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mknod needs root")
def test_a_device_is_refused(folder: Path) -> None:
    """A copy of /dev/zero would be read forever."""
    try:
        os.mknod(folder / "zero", 0o20666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("this machine makes no device files")
    with pytest.raises(RecordFormatError, match="is a device"), open_inside(folder, "zero"):
        pass
    with pytest.raises(RecordFormatError, match="is a device"), open_named(folder / "zero"):
        pass


def test_what_is_missing_is_named_with_its_folder(folder: Path) -> None:
    """As the file system would say it."""
    with pytest.raises(FileNotFoundError) as caught, open_inside(folder, "nothing"):
        pass
    assert caught.value.filename == str(folder / "nothing")


@pytest.mark.parametrize("named", [False, True], ids=["inside", "named"])
def test_a_file_that_changes_makes_the_result_void(folder: Path, named: bool) -> None:
    """With both sizes in the message."""
    path = folder / "file"
    opened = open_named(path) if named else open_inside(folder, "file")
    with pytest.raises(RecordChangedError, match=r"4 bytes, then 6.*void"), opened:
        path.write_bytes(b"longer")


def test_a_reader_may_follow_a_growing_file(folder: Path) -> None:
    """`summary` of a run that goes on is no fault."""
    with open_inside(folder, "file", steady=False):
        (folder / "file").write_bytes(b"longer")


def test_a_file_that_the_caller_names_may_be_a_link(folder: Path) -> None:
    """A pipe may not."""
    link = folder.parent / "link"
    link.symlink_to(folder / "file")
    with open_named(link) as file:
        assert file.read() == b"file"
    os.mkfifo(folder / "pipe")
    with pytest.raises(RecordFormatError, match="named pipe"), open_named(folder / "pipe"):
        pass
