"""The seal as a value: an in-toto Statement about the files of a run and of its models.

Values in, values out: nothing here opens a file or knows a key.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ormas_core.errors import RecordFormatError
from ormas_core.record.files import require_inside
from ormas_core.record.reader import METRICS_FILE, RECORD_FILE
from ormas_core.record.strict import load_object
from ormas_core.terms import SavedFile

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
PREDICATE_TYPE: Final = "urn:ormas:run-record:v1"
"""Documented in `docs/reference/record.md`; another meaning of a member is another version."""

MAX_MODELS: Final = 100
_DIGEST: Final = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedModel:
    """A model that a seal binds the record to.

    Attributes:
        name: its path in the run folder if `inside`, else the name of its file or folder.
        folder: whether it is a folder of files.
        inside: whether it lies in the run folder.
        files: its files; their names begin with `name`.
    """

    name: str
    folder: bool
    inside: bool
    files: tuple[SavedFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """What a seal says.

    Attributes:
        run: facts of the run as `sign` found them: run_id, status, head, lines, rows, complete.
        record: the sealed `record.jsonl`.
        metrics: the sealed `metrics.jsonl`.
        models: what else is sealed.
        ignored: names in model folders that were left out.
        tool: what made the seal.
        time_ns: when, by the clock of whoever made it.
    """

    run: Mapping[str, Any]
    record: SavedFile
    metrics: SavedFile
    models: tuple[SealedModel, ...]
    ignored: tuple[str, ...]
    tool: str
    time_ns: int

    @property
    def files(self) -> tuple[SavedFile, ...]:
        """Every sealed file, the record first."""
        models = (file for model in self.models for file in model.files)
        return (self.record, self.metrics, *models)


def statement_of(seal: Seal) -> dict[str, Any]:
    """Return the seal as an in-toto Statement, a plain mapping.

    Raises:
        RecordFormatError: two files would have one name.
    """
    for name, count in Counter(file.name for file in seal.files).items():
        if count > 1:
            raise RecordFormatError(
                name, f"Two of the files to be sealed are called {name}. Rename one of the models."
            )
    if len(seal.models) > MAX_MODELS:
        raise RecordFormatError("models", f"A seal holds {MAX_MODELS} models at most.")
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": f.name, "digest": {"sha256": f.sha256}} for f in seal.files],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "run": dict(seal.run),
            "sizes": {file.name: str(file.bytes) for file in seal.files},
            "models": [
                {"name": m.name, "folder": m.folder, "inside": m.inside} for m in seal.models
            ],
            "ignored": list(seal.ignored),
            "tool": seal.tool,
            "timeNs": str(seal.time_ns),
        },
    }


def seal_of(payload: bytes) -> Seal:
    """Return what a Statement says.

    Raises:
        RecordFormatError: it is none, or not one about a run record, or it names a file twice, or
            one outside of the run folder and its models.
    """
    statement = load_object(payload)
    if statement.get("_type") != STATEMENT_TYPE:
        raise _wrong("_type", statement.get("_type"))
    if statement.get("predicateType") != PREDICATE_TYPE:
        raise _wrong("predicateType", statement.get("predicateType"))
    predicate = _typed(statement, "predicate", dict)
    files = _files(_typed(statement, "subject", list), _typed(predicate, "sizes", dict))
    sealed = {file.name: file for file in files}
    record, metrics = sealed.pop(RECORD_FILE, None), sealed.pop(METRICS_FILE, None)
    if record is None or metrics is None:
        raise RecordFormatError("subject", f"it does not name {RECORD_FILE} and {METRICS_FILE}")
    listed = _typed(predicate, "models", list)
    if len(listed) > MAX_MODELS:
        raise RecordFormatError("models", f"it names {len(listed)} models, over {MAX_MODELS}")
    models = tuple(_model(each, sealed) for each in listed)
    if sealed:
        raise RecordFormatError("subject", f"{min(sealed)!r:.200} belongs to no model it names")
    ignored = tuple(map(str, _typed(predicate, "ignored", list)))
    return Seal(
        run=_typed(predicate, "run", dict),
        record=record,
        metrics=metrics,
        models=models,
        ignored=ignored,
        tool=_typed(predicate, "tool", str),
        time_ns=_number(predicate.get("timeNs"), "timeNs"),
    )


def _files(subjects: list[Any], sizes: dict[str, Any]) -> list[SavedFile]:
    found: list[SavedFile] = []
    for subject in subjects:
        if not isinstance(subject, dict) or subject.keys() != {"name", "digest"}:
            raise _wrong("subject", subject)
        name = _typed(subject, "name", str)
        digest = _typed(_typed(subject, "digest", dict), "sha256", str)
        require_inside(name)
        if _DIGEST.fullmatch(digest) is None:
            raise _wrong("digest", digest)
        found.append(SavedFile(name=name, bytes=_number(sizes.get(name), name), sha256=digest))
    if len({file.name for file in found}) != len(found) or len(sizes) != len(found):
        raise RecordFormatError("subject", "it names a file twice, or the size of another one")
    return found


def _model(member: Any, sealed: dict[str, SavedFile]) -> SealedModel:
    """Return a model, taking its files out of `sealed`."""
    if not isinstance(member, dict) or member.keys() != {"name", "folder", "inside"}:
        raise _wrong("models", member)
    name, folder = _typed(member, "name", str), _typed(member, "folder", bool)
    require_inside(name)
    own = [key for key in sealed if key == name or (folder and key.startswith(f"{name}/"))]
    if not own:
        raise RecordFormatError("models", f"it names no file of the model {name!r:.200}")
    files = tuple(sealed.pop(key) for key in own)
    inside = _typed(member, "inside", bool)
    return SealedModel(name=name, folder=folder, inside=inside, files=files)


def _typed(members: Mapping[str, Any], name: str, kind: type) -> Any:
    value = members.get(name)
    if not isinstance(value, kind):
        raise _wrong(name, value)
    return value


def _number(value: Any, name: str) -> int:
    if not isinstance(value, str) or not (value.isascii() and value.isdigit() and len(value) < 20):  # noqa: PLR2004 - 64 bits
        raise _wrong(name, value)
    return int(value)


def _wrong(name: str, value: Any) -> RecordFormatError:
    shown = json.dumps(value)[:80]
    return RecordFormatError(name, f"{name} of the statement is {shown}")


def model_of(files: tuple[SavedFile, ...], *, inside: bool = False) -> SealedModel:
    """Return the model whose files are called so, as `model_files` calls them.

    Raises:
        RecordFormatError: they are no files of one model.
    """
    parts = [require_inside(file.name) for file in files]
    folder = any(len(part) > 1 for part in parts)
    if not files or len({part[0] for part in parts}) > 1 or (len(files) > 1 and not folder):
        raise RecordFormatError("files", "they are not the files of one model")
    return SealedModel(name=parts[0][0], folder=folder, inside=inside, files=files)
