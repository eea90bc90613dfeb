"""A checkpoint that was opened: what it is, what it holds, and what was found on the way."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeAlias

from ormas_core.checkpoints.files import inside, stamp_of
from ormas_core.checkpoints.names import clean_name
from ormas_core.checkpoints.tensors import TensorFacts
from ormas_core.errors import CheckpointError

_CHANGED: Final = (
    "{} was changed while it was read: what was found in it is void. Run the check again when "
    "nobody writes."
)

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes read so far and the bytes to read."""


class Kind(Enum):
    """What was opened."""

    SAFETENSORS = "safetensors"
    ZIP = "PyTorch zip"
    LEGACY = "PyTorch, format before 1.6"
    TORCHSCRIPT = "TorchScript archive"
    SHARDED = "shards with an index"
    FOLDER = "model folder"
    ADAPTER = "adapter folder"
    DISTRIBUTED = "torch.distributed.checkpoint folder"
    DEEPSPEED = "DeepSpeed ZeRO folder"
    GGUF = "GGUF"
    TAR = "PyTorch tar, format before 0.1.10"
    PICKLE = "pickle without tensors"
    HDF5 = "HDF5"
    ONNX = "ONNX or another protocol buffer"
    NUMPY = "NumPy array file"
    POINTER = "Git LFS pointer"
    HTML = "HTML page"
    EMPTY = "empty"
    ZEROED = "zeroed"
    UNKNOWN = "unknown"


PROBLEMS: Final[Mapping[str, str]] = {
    "not-a-checkpoint": "The file is something else; what it is and what to do is said.",
    "unsupported": "A known format that is not read here; how to convert it is said.",
    "truncated": "The file is shorter than it says.",
    "malformed": "The header or the directory of the file cannot be right.",
    "missing-file": "A file that is named by the index or needed by the folder is not there.",
    "missing-tensor": "The index names a tensor that its file does not hold.",
    "orphan-tensor": "A shard holds a tensor that the index does not name.",
    "misplaced-tensor": "The index names another file than the one that holds the tensor.",
    "duplicate-tensor": "Two files hold a tensor of the same name.",
    "no-index": "Several shards without an index.",
    "index-size": "The total size in the index is not that of the tensors.",
    "unsafe-path": "An entry leads out of the folder, through a foreign link, or to a device.",
    "unreadable": "The file could not be read; the reason is said.",
    "changed": "The file was changed while it was read: the result is void.",
    "dangerous-objects": "The pickle would import what can run code; none was imported.",
    "refused-objects": "The pickle holds objects that are no tensors; none was made.",
    "refused-tensors": "Tensors that only code of the pickle could make were not read.",
    "stray-weights": "Other weight files beside those that a loader would use.",
    "stray-copies": "Other weight files that hold the same as those a loader would use.",
    "not-judged": "Files of the folder that hold no weights, such as those of an optimizer.",
    "incomplete": "The folder was not saved to its end: what is missing is said.",
    "no-tensors": "There is not a single tensor.",
    "config": "config.json, or another settings file, is there and cannot be read.",
}
"""Code of a problem -> what it means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadProblem:
    """Something that is wrong with a file rather than with a tensor.

    Attributes:
        code: a key of `PROBLEMS`.
        where: the file, or the tensor, that it is about.
        detail: what was found and what to do, a sentence or two.
    """

    code: str
    where: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where a tensor is.

    Attributes:
        name: name in the file.
        dtype: as in `TensorFacts`.
        shape: its shape.
        file: file it is in, relative to what was opened.
        offset: byte of the file at which it begins.
        size: bytes it takes; for strided tensors the bytes from its first to its last element.
        strides: elements from one index to the next per axis where it is not contiguous.
        packed: why it is packed integers rather than weights; empty if it is not.
        missing: why it cannot be read; empty if it can.
        placeholder: whether it was saved without data.
        shares: name of an earlier tensor that is the same stretch of the same file; or "".
        source: for formats that a library reads: what to ask it for.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    offset: int = 0
    size: int = 0
    strides: tuple[int, ...] | None = None
    packed: str = ""
    missing: str = ""
    placeholder: bool = False
    shares: str = ""
    source: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What `open_checkpoint` found. Headers have been read, tensors have not.

    Attributes:
        path: what was opened.
        kind: what it is.
        files: the weight files, relative to `path` (its name, if it is a file).
        entries: the tensors, in the order in which they are read.
        size: bytes of all of them.
        metadata: text that the file holds beside the tensors (safetensors `__metadata__`).
        config: the parsed `config.json` of the folder, or None.
        adapter: the parsed `adapter_config.json` of the folder, or None.
        index: the parsed index of the shards, or None.
        globals: names that the pickles of the file would import, sorted; none is imported.
        problems: what was wrong with files.
        folder: the folder that holds the files; equal to `path` if that is a folder.
        strays: other weight files of the folder, which a loader would not use.
        stamps: what each file was when it was opened.
    """

    path: Path
    kind: Kind
    files: tuple[str, ...] = ()
    entries: tuple[Entry, ...] = field(default=(), repr=False)
    size: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] | None = field(default=None, repr=False)
    adapter: Mapping[str, Any] | None = field(default=None, repr=False)
    index: Mapping[str, Any] | None = field(default=None, repr=False)
    globals: tuple[str, ...] = ()
    problems: tuple[ReadProblem, ...] = ()
    folder: Path = Path()
    strays: tuple[str, ...] = ()
    stamps: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Clean names of the tensors, in the order of `entries`."""
        return tuple(clean_name(entry.name) for entry in self.entries)

    def place(self, file: str) -> Path:
        """Return the path of one of the files.

        Raises:
            CheckpointError: it leads out of the folder.
            OSError: it is not there.
        """
        own = self.path != self.folder and file == self.path.name
        return self.path if own else inside(self.folder, file)

    def tensors(
        self, against: "Checkpoint | None" = None, *, progress: Progress | None = None
    ) -> Iterator[TensorFacts]:
        """Read the tensors one after the other, in the order of `entries`; never raises for a file.

        Args:
            against: a base to compare each with, by clean name.
            progress: told how far the reading is.
        """
        from ormas_core.checkpoints.reading import read_tensors

        return read_tensors(self, against, progress)

    def changes(self) -> tuple[ReadProblem, ...]:
        """Return which files are no longer what they were when they were opened: ask at the end."""
        return tuple(
            ReadProblem(code="changed", where=file, detail=_CHANGED.format(file))
            for file, stamp in self.stamps.items()
            if self._stamp(file) != stamp
        )

    def _stamp(self, file: str) -> tuple[int, ...]:
        try:
            return stamp_of(self.place(file).stat())
        except (OSError, CheckpointError):
            return ()

    def stray_problems(self) -> tuple[ReadProblem, ...]:
        """Return how far other weight files of the folder agree with the model; reads them."""
        from ormas_core.checkpoints.strays import stray_problems

        return stray_problems(self)

    def same_bytes(self, name: str, other: str) -> bool:
        """Whether two tensors with equal fingerprints have equal bytes; reads both again."""
        from ormas_core.checkpoints.reading import same_bytes

        return same_bytes(self, name, other)
