"""What a file is, by its content, whatever it is called."""

import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from checkpoint_builders import codes, details, f32, read_all, safetensors_bytes

from ormas_core.checkpoints import Kind, open_checkpoint
from ormas_core.errors import CheckpointError

POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    b"size 4976698672\n"
)


def npz() -> bytes:
    """Return an archive of NumPy arrays."""
    out = io.BytesIO()
    np.savez(out, a=np.ones(3))
    return out.getvalue()


def tar() -> bytes:
    """Return a tar archive as the first versions of PyTorch wrote them."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in ("sys_info", "pickle", "tensors", "storages"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO(b""))
    return out.getvalue()


FILES = {
    "pointer": (POINTER, Kind.POINTER, "4,976,698,672 bytes and sha256:4d7a2146"),
    "page": (
        b"\n<!DOCTYPE html><html><head><title>404 Not Found</title>",
        Kind.HTML,
        "'404 Not Found'",
    ),
    "error page": (b"<?xml version='1.0'?><Error>AccessDenied</Error>", Kind.HTML, "a web page"),
    "nothing": (b"", Kind.EMPTY, "empty"),
    "zeros": (bytes(9000), Kind.ZEROED, "set aside and not filled"),
    "zeroed length": (
        bytes(8) + safetensors_bytes({"a": f32(2)})[8:],
        Kind.ZEROED,
        "the length of a safetensors header, are zero",
    ),
    "gguf": (b"GGUF\x03\0\0\0" + bytes(40), Kind.GGUF, "gguf_file="),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(40), Kind.HDF5, "Keras"),
    "array": (b"\x93NUMPY\x01\0" + bytes(40), Kind.NUMPY, "NumPy array"),
    "arrays": (npz(), Kind.NUMPY, ".npz"),
    "tar": (tar(), Kind.TAR, "torch.load"),
    "onnx": (b"\x08\x07\x12\x07pytorch\x1a\x03" + bytes(40), Kind.ONNX, "ONNX"),
    "gzip": (b"\x1f\x8b\x08\0" + bytes(40), Kind.UNKNOWN, "compressed with gzip. Unpack"),
    "text": (b"hello world, this is no model", Kind.UNKNOWN, "68 65 6c 6c"),
    "text like a pickle": (b"copyright 2020, all rights", Kind.UNKNOWN, "no format known"),
    "json": (b'{"weight_map": 3}', Kind.UNKNOWN, "JSON"),
    "arguments": (pickle.dumps({"lr": 1e-3}), Kind.PICKLE, "pickle without tensors"),
    "short": (b"\x01\x02", Kind.UNKNOWN, "2 bytes, too few"),
}


@pytest.mark.parametrize("which", sorted(FILES))
def test_what_is_no_checkpoint_is_named(which: str, tmp_path: Path) -> None:
    """Its kind, what was seen, and what to do; never a traceback, and never clean."""
    raw, kind, said = FILES[which]
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw)
    found, facts = read_all(path)
    assert found.kind is kind
    assert facts == {}
    assert set(codes(found)) <= {"not-a-checkpoint", "unsupported"}
    assert said in details(found)


def test_the_name_of_a_file_says_nothing(tmp_path: Path) -> None:
    """A safetensors file called .bin is one, and says so."""
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(safetensors_bytes({"a": f32(2)}))
    assert open_checkpoint(path).kind is Kind.SAFETENSORS


@pytest.mark.parametrize("name", ["none", "none/at/all", "nul\0byte"])
def test_a_path_that_is_not_there_is_an_error(name: str, tmp_path: Path) -> None:
    """The one case in which there is nothing to say about a checkpoint."""
    with pytest.raises(CheckpointError, match="There is no checkpoint at"):
        open_checkpoint(f"{tmp_path}/{name}")
