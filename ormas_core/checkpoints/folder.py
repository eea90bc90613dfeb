"""A folder: which of its files are the model, as the loaders of the libraries would choose."""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ormas_core.checkpoints import index as indexes
from ormas_core.checkpoints.files import Opened, inside, read_settings, read_small
from ormas_core.checkpoints.opened import Checkpoint, Kind, ReadProblem
from ormas_core.checkpoints.sets import FileSet, assemble
from ormas_core.checkpoints.sniff import LOOKED_AT, sniff
from ormas_core.errors import CheckpointError

PREFERRED: Final = (
    "adapter_model.safetensors", "adapter_model.bin", "model.safetensors",
    "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
    "diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.safetensors.index.json",
    "diffusion_pytorch_model.bin", "open_clip_model.safetensors", "consolidated.safetensors",
)  # fmt: skip
"""File names in the order in which peft, transformers and diffusers look for them."""

BESIDE: Final = re.compile(
    r"(optimizer|scheduler|scaler|training_args|rng_state|random_states|sampler|trainer_state)"
    r"[\w.-]*\.(bin|pt|pth|pkl|safetensors|json)"
)
"""Files that trainers write beside the weights."""

_TRAINER: Final = "trainer_state.json"
_RESUMES: Final = re.compile(r"(optimizer|scheduler|scaler)\.pt|rng_state[\w.-]*\.pth")
"""Files that the trainer of transformers resumes from; what other trainers need is not known."""

_SHARD: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.[\w.]+)")
_DEEPSPEED: Final = re.compile(
    r"(bf16_)?zero_pp_rank_\d+.*|mp_rank_\d+_model_states\.pt|layer_\d+-.*"
)
_UNFINISHED: Final = (".incomplete", ".tmp", ".part", ".partial", ".crdownload", ".download")
_TEXT: Final = frozenset(
    (".json", ".txt", ".md", ".py", ".model", ".yaml", ".yml", ".png", ".jpg", ".csv", ".jsonl",
     ".log", ".gitattributes", ".gitignore", ".sh", ".toml", ".jinja", ".pyc", ".html", ".pdf")
)  # fmt: skip
_WEIGHTS: Final = (Kind.SAFETENSORS, Kind.ZIP, Kind.LEGACY, Kind.TORCHSCRIPT)
MAX_FILES: Final = 10_000


def open_folder(path: Path, *, trust: bool) -> Checkpoint:
    """Return the model in a folder.

    Args:
        path: the folder; that of a whole repository in a hub cache stands for its snapshot.
        trust: as for `open_checkpoint`.

    Raises:
        CheckpointError: none of its files holds weights or ever did, or several hold the same.
    """
    folder = _snapshot(path)
    names, problems = _names(folder)
    settings, bad = _settings(folder)
    problems += bad
    if any(name == ".metadata" or name.endswith(".distcp") for name in names):
        from ormas_core.checkpoints.distributed import open_distributed

        return open_distributed(folder)
    chosen = _chosen(folder, names, settings)
    if chosen is None and (found := _deepspeed(folder, names)):
        return Checkpoint(
            path=folder, folder=folder, kind=Kind.DEEPSPEED, problems=(found, *problems), **settings
        )
    files = chosen or FileSet(path=folder, folder=folder, files=(), kind=Kind.FOLDER)
    problems += [*files.problems, *_around(folder, names, files)]
    if chosen is None and not problems:
        raise CheckpointError(str(path), _nothing(folder, names))
    files = replace(files, problems=tuple(problems), settings=settings)
    whole = assemble(files, trust=trust)
    if files.index is None and (two := _alike(whole)):
        text = f"holds several checkpoints, such as {two[0]} and {two[1]}: check each."
        raise CheckpointError(str(path), f"The folder {folder} {text}")
    return whole


def open_index(path: Path, *, trust: bool) -> Checkpoint | None:
    """Return the model whose index a file is; None if it is none."""
    try:
        index = read_settings(path.parent, path.name)
        found = _from_index(path.parent, path.name, index or {})
    except (CheckpointError, OSError):
        return None
    return assemble(
        FileSet(
            path=path,
            folder=path.parent,
            files=found.files,
            kind=Kind.SHARDED,
            index=found.index,
            index_name=path.name,
            problems=found.problems,
        ),
        trust=trust,
    )


def _snapshot(path: Path) -> Path:
    """Return the snapshot that the folder of a repository in a hub cache stands for."""
    snapshots = path / "snapshots"
    if not (snapshots.is_dir() and (path / "blobs").is_dir()):
        return path
    try:
        revision = read_small(path, "refs/main").decode("utf-8").strip()
        found = inside(path, f"snapshots/{revision}")
    except (CheckpointError, OSError, ValueError):
        names = sorted(entry.name for entry in snapshots.iterdir())
        try:
            found = inside(path, f"snapshots/{names[0]}") if names else path
        except (CheckpointError, OSError):
            return path
    return found if found.is_dir() else path


def _names(folder: Path) -> tuple[tuple[str, ...], list[ReadProblem]]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry, _ in zip(entries, range(MAX_FILES), strict=False))
    except OSError as error:
        return (), [_problem("unreadable", folder.name, f"The folder cannot be read: {error}.")]
    return tuple(names), []


def _settings(folder: Path) -> tuple[dict[str, Any], list[ReadProblem]]:
    settings: dict[str, Any] = {}
    problems = []
    for key, name in (("config", "config.json"), ("adapter", "adapter_config.json")):
        try:
            settings[key] = read_settings(folder, name)
        except (CheckpointError, OSError) as error:
            problems.append(_problem("config", name, f"It cannot be read: {error!s:.200}."))
    return settings, problems


def _chosen(folder: Path, names: Sequence[str], settings: Mapping[str, Any]) -> FileSet | None:
    """Return the files that a loader would take."""
    others = [name for name in names if name.endswith(".index.json") and name not in PREFERRED]
    for name in (*PREFERRED, *others):
        if name not in names:
            continue
        if not name.endswith(".json"):
            kind = Kind.ADAPTER if name.startswith("adapter_") else Kind.FOLDER
            return _set(folder, names, (name,), kind)
        try:
            found = _from_index(folder, name, read_settings(folder, name) or {})
        except (CheckpointError, OSError) as error:
            problem = _problem("malformed", name, f"The index cannot be used: {error!s:.300}.")
            shards = _unnamed(folder, names)
            return _set(folder, names, shards, Kind.SHARDED, problems=(problem,))
        return _set(
            folder,
            names,
            found.files,
            Kind.SHARDED,
            problems=found.problems,
            index=found.index,
            index_name=name,
        )
    files = _unnamed(folder, names)
    adapter = settings.get("adapter") is not None
    problems = _without_index(files) if files else ()
    if not files and not adapter:
        return None
    kind = Kind.ADAPTER if adapter else Kind.FOLDER
    if adapter and not files:
        text = "There are settings of an adapter and no adapter_model.safetensors."
        problems = (_problem("missing-file", "adapter_model.safetensors", text),)
    return _set(folder, names, files, kind, problems=problems)


def _set(
    folder: Path,
    names: Sequence[str],
    files: tuple[str, ...],
    kind: Kind,
    *,
    problems: tuple[ReadProblem, ...] = (),
    index: Mapping[str, Any] | None = None,
    index_name: str = "",
) -> FileSet:
    strays = tuple(name for name in _weights(folder, names) if name not in files)
    return FileSet(
        path=folder,
        folder=folder,
        files=files,
        kind=kind,
        index=index,
        index_name=index_name,
        problems=problems,
        strays=strays,
    )


def _from_index(folder: Path, name: str, index: Mapping[str, Any]) -> FileSet:
    """Raises: CheckpointError: it is no index."""
    named = indexes.weight_map(index, name)
    files, problems = indexes.shards_of(folder, named, name)
    return FileSet(
        path=folder, folder=folder, files=files, index=index, index_name=name, problems=problems
    )


def _weights(folder: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Return the files that hold tensors by their content, those beside the model left out."""
    found = []
    for name in names:
        if Path(name).suffix.lower() in _TEXT or BESIDE.fullmatch(name):
            continue
        try:
            with Opened(inside(folder, name)) as file:
                kind = sniff(file.read(0, LOOKED_AT), file.size).kind
        except (CheckpointError, OSError, RuntimeError, ValueError):
            continue
        if kind in _WEIGHTS and not _DEEPSPEED.fullmatch(name):
            found.append(name)
    return tuple(found)


def _unnamed(folder: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Return the weight files of a folder in which no name is one that loaders look for."""
    found = _weights(folder, names)
    safe = tuple(name for name in found if name.endswith(".safetensors"))
    shards = [part for name in (*safe, *found) if (part := _SHARD.fullmatch(name))]
    if shards:  # of one model: those of another, or in another format, lie beside it
        family = shards[0].group(1, 3, 4)
        return tuple(dict.fromkeys(one[0] for one in shards if one.group(1, 3, 4) == family))
    return safe or found or _broken(folder, names)


def _alike(found: Checkpoint) -> tuple[str, str] | None:
    """Return two files one of which holds all the names of the other, and which are no shards.

    Each is a model, such as those of two steps of a training: no loader would put them together.
    """
    holders: dict[str, str] = {}
    common: Counter[tuple[str, str]] = Counter()
    for entry in found.entries:
        first = holders.setdefault(entry.name, entry.file)
        common[first, entry.file] += 1
    sizes = Counter(entry.file for entry in found.entries)
    for (first, file), count in common.items():
        whole = count == min(sizes[first], sizes[file])
        if whole and first != file and not _SHARD.fullmatch(file):
            return first, file
    return None


def _broken(folder: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Return files that are called like weights and hold something else: they say what it is."""
    endings = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx")
    return tuple(
        name
        for name in names
        if name.endswith(endings) and not BESIDE.fullmatch(name) and not _DEEPSPEED.fullmatch(name)
    )


def _without_index(files: Sequence[str]) -> tuple[ReadProblem, ...]:
    parts = [found for name in files if (found := _SHARD.fullmatch(name))]
    if not parts:
        return ()
    total = int(parts[0][3])
    missing = sorted(set(range(1, total + 1)) - {int(part[2]) for part in parts})
    problems = [
        _problem(
            "no-index",
            files[0],
            f"{len(parts)} shards without an index: loaders do not find them. Save the model "
            "again, or write the index.",
        )
    ]
    stem, ending = parts[0][1], parts[0][4]
    if missing and total <= MAX_FILES:
        lost = [f"{stem}-{number:05d}-of-{total:05d}{ending}" for number in missing]
        text = f"{len(lost)} of {total} shards are not there: {indexes.some(lost)}."
        problems.append(_problem("missing-file", lost[0], text))
    return tuple(problems)


def _around(folder: Path, names: Sequence[str], files: FileSet) -> list[ReadProblem]:
    """Return what is to be said of the other files of a folder."""
    problems = []
    beside = [name for name in names if BESIDE.fullmatch(name)]
    aside = [name for name in beside if not name.endswith(".json")]
    if aside:
        text = f"{indexes.some(aside)}: no weights, left alone."
        problems.append(_problem("not-judged", aside[0], text))
    resumed = [name for name in aside if _RESUMES.fullmatch(name)]
    if resumed and _TRAINER not in names:
        text = (
            f"There is {indexes.some(resumed)} and no {_TRAINER}: no training can resume from it."
        )
        problems.append(_problem("incomplete", _TRAINER, text))
    if not files.files and beside:
        text = f"There is {indexes.some(beside)} and no file of weights: the save was not finished."
        problems.append(_problem("missing-file", "model.safetensors", text))
    unfinished = [name for name in names if name.endswith(_UNFINISHED)]
    if unfinished:
        text = f"{indexes.some(unfinished)}: a download or a save that was not finished."
        problems.append(_problem("incomplete", unfinished[0], text))
    return problems


def _deepspeed(folder: Path, names: Sequence[str]) -> ReadProblem | None:
    """Return what is to be said of a folder of ZeRO shards, or None if it is none."""
    steps = [name for name in names if name.startswith("global_step") and (folder / name).is_dir()]
    inner = [file for step in steps[:1] for file in _names(folder / step)[0]]
    if not any(_DEEPSPEED.fullmatch(name) for name in (*names, *inner)):
        return None
    where = steps[0] if steps else folder.name
    return _problem(
        "unsupported",
        where,
        "It holds the shards of DeepSpeed ZeRO, which are no model by themselves. Put them "
        "together with zero_to_fp32.py, which DeepSpeed writes beside them (python "
        "zero_to_fp32.py . out --safe_serialization), and check the result.",
    )


def _nothing(folder: Path, names: Sequence[str]) -> str:
    """Return what to do about a folder without weights, such as that of a pipeline of models."""
    inner = [name for name in names if (folder / name).is_dir()]
    found = [name for name in inner if _weights(folder / name, _names(folder / name)[0])]
    hint = f"There are some in {indexes.some(found)}: check each." if found else "Name another."
    return f"The folder {folder} holds no file of weights. {hint}"


def _problem(code: str, where: str, detail: str) -> ReadProblem:
    return ReadProblem(code=code, where=where, detail=detail)
