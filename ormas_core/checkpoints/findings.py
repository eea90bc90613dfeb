"""What a check of a checkpoint says: findings, and the one table of all their kinds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ormas_core.terms import Severity


@dataclass(frozen=True, slots=True)
class FindingKind:
    """A kind of finding.

    Attributes:
        severity: `critical` if the file cannot be used as it is, `warning` if it probably should
            not ship, `info` if it is worth knowing.
        meaning: what holds where it is reported, a clause.
        advice: what to do, a sentence.
    """

    severity: Severity
    meaning: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that was found.

    Attributes:
        code: a key of `CATALOGUE`; codes never change their meaning.
        severity: that of the catalogue.
        where: the tensor or the file, or how many of them.
        detail: what was found there, with numbers.
        advice: what to do.
        file: the file it is in, relative to the checkpoint; empty if it is in none alone.
        tensors: every tensor it is about, by the names in the files.
        units: the rows (channels, tokens, elements) it is about, if it is about one tensor.
    """

    code: str
    severity: Severity
    where: str
    detail: str
    advice: str
    file: str = ""
    tensors: tuple[str, ...] = ()
    units: tuple[int, ...] = ()


_C, _W, _I = Severity.CRITICAL, Severity.WARNING, Severity.INFO

CATALOGUE: Final[Mapping[str, FindingKind]] = {
    "nonfinite": FindingKind(
        _C,
        "elements are NaN or infinite",
        "Do not ship it: go back to a checkpoint from before the first bad step.",
    ),
    "missing-file": FindingKind(
        _C,
        "a file that the checkpoint needs is not there",
        "Copy or download the file again; compare sizes with the source.",
    ),
    "missing-tensors": FindingKind(
        _C,
        "tensors that the index or the architecture names are not in the files",
        "Save the whole model again; a loader would initialise these at random.",
    ),
    "index-disagreement": FindingKind(
        _C,
        "the index and the shards do not say the same",
        "Save model and index together again; do not edit one of them by hand.",
    ),
    "unreadable": FindingKind(
        _C,
        "a file, or part of it, cannot be read",
        "Get the file again and compare its size and digest with the source.",
    ),
    "unsafe-path": FindingKind(
        _C,
        "an entry leads out of the folder",
        "Do not load this folder before you know who wrote that entry.",
    ),
    "no-data": FindingKind(
        _C,
        "tensors were saved as placeholders without data",
        "Load the weights onto a real device before saving; offloaded models need their gathering "
        "save function.",
    ),
    "no-tensors": FindingKind(
        _C,
        "there is not a single tensor to load",
        "Save on all ranks, or gather the state first; an empty file loads without an error.",
    ),
    "digest-mismatch": FindingKind(
        _C,
        "the files are not those of the signed record",
        "Use the files that were sealed, or find out who changed them.",
    ),
    "certified-dead": FindingKind(
        _W,
        "proven on the executed graph: no input gives these units a gradient",
        "Re-initialise or prune them; see the page about certificates for what is proven.",
    ),
    "zero-weights": FindingKind(
        _W,
        "every element of a weight is zero",
        "Check that this layer was trained and that the right tensor was saved.",
    ),
    "dead-channels": FindingKind(
        _W,
        "channels that give the same output, zero or below, whatever the input",
        "Re-initialise or prune them, and look at the learning rate and the weight decay.",
    ),
    "decayed-channels": FindingKind(
        _W,
        "channels whose weights have all but vanished, apart from the others by a gap",
        "Prune them, or re-initialise them and go on training.",
    ),
    "norm-scale-zero": FindingKind(
        _W,
        "scales of a normalisation that are zero, or next to it",
        "Check whether the layer stores its scale as 1 + weight, and whether it was trained.",
    ),
    "adapter-no-op": FindingKind(
        _W,
        "the adapter changes nothing",
        "Check that the adapter was trained and that its trained weights were saved.",
    ),
    "adapter-part-no-op": FindingKind(
        _W,
        "some layers of the adapter change nothing",
        "Check that these layers took part in the training.",
    ),
    "adapter-zero": FindingKind(
        _W,
        "both matrices of an adapter layer are zero, so that it cannot be trained either",
        "Initialise one of the two at random.",
    ),
    "identical-to-base": FindingKind(
        _W,
        "all weights are those of the base: nothing that trained was saved",
        "Check which weights were trainable, and what the saving function was given.",
    ),
    "near-zero-rows": FindingKind(
        _W,
        "rows next to zero, apart from the others by a gap",
        "Check whether these rows were ever trained.",
    ),
    "outlier-rows": FindingKind(
        _W,
        "rows far larger than all others, apart from them by a gap",
        "Check for a damaged file or a spike late in training.",
    ),
    "constant-tensor": FindingKind(
        _W,
        "a weight has the same value everywhere",
        "Check that this layer was initialised and trained.",
    ),
    "duplicate-tensors": FindingKind(
        _W,
        "weights of different layers are bit-identical",
        "Check whether these layers are meant to share weights; copies that train grow apart.",
    ),
    "tied-flag": FindingKind(
        _W,
        "the flag for tied embeddings contradicts the file",
        "Correct tie_word_embeddings in config.json, or save the output layer.",
    ),
    "uninitialised": FindingKind(
        _W,
        "values look like memory that was never written to",
        "Find the layer that is allocated and never initialised or loaded.",
    ),
    "not-inspected": FindingKind(
        _W,
        "tensors that could not be looked at",
        "Update the libraries, or convert these tensors; nothing is known of them.",
    ),
    "stray-weights": FindingKind(
        _W,
        "weight files beside those that a loader would use",
        "Remove the set that is not meant.",
    ),
    "dangerous-objects": FindingKind(
        _C,
        "the pickle would import what runs commands or opens connections; nothing was run",
        "Do not load this file, and find out where it comes from.",
    ),
    "incomplete": FindingKind(
        _W,
        "a folder that was saved in part",
        "Take an earlier checkpoint, or save this one again.",
    ),
    "stray-copies": FindingKind(
        _I,
        "weight files that hold the same as those that a loader would use",
        "Nothing to do; one of the two takes room.",
    ),
    "refused-objects": FindingKind(
        _W,
        "the pickle asks for code beyond tensors; none was run",
        "Save plain state dictionaries, better as safetensors.",
    ),
    "settings-file": FindingKind(
        _W,
        "a settings file of the folder cannot be read",
        "Write it again; a loader would fail or take defaults.",
    ),
    "partial-wiring": FindingKind(
        _W,
        "the architecture covers only part of the checkpoint",
        "Check that it is the architecture that the checkpoint was made with.",
    ),
    "not-compared": FindingKind(
        _W,
        "something that was asked for could not be compared",
        "See the detail for what is missing.",
    ),
    "flat-channels": FindingKind(
        _I,
        "channels with the same positive output whatever the input",
        "They act as a bias; prune or re-initialise them.",
    ),
    "dormant-channels": FindingKind(
        _I,
        "channels that a ReLU would hardly ever let through, estimated from shift and scale",
        "Count their activations on real data before pruning.",
    ),
    "unvarying-variance": FindingKind(
        _I,
        "channels whose input never varied in training",
        "Look at the layer before them.",
    ),
    "untouched-statistics": FindingKind(
        _I,
        "running statistics as they were built, beside a shift that was trained",
        "Check that training updated them; expected where they were folded into scale and shift.",
    ),
    "frozen-tensors": FindingKind(
        _I, "tensors that are those of the base", "Expected if they were frozen."
    ),
    "unmoved-rows": FindingKind(
        _I,
        "rows of an embedding that are those of the base",
        "Expected for tokens that the training data does not hold.",
    ),
    "untrained-vocabulary": FindingKind(
        _I,
        "rows of the vocabulary that look untrained",
        "Expected beyond the tokenizer and for reserved tokens.",
    ),
    "structure-differs": FindingKind(
        _I, "tensors that only one of the two has", "Check that the base is the right one."
    ),
    "zero-tensor": FindingKind(
        _I,
        "a tensor that is no weight of a layer is zero throughout",
        "Expected where it starts at zero and was not trained.",
    ),
    "idle-by-design": FindingKind(
        _I,
        "looks dead and is meant to be so",
        "Nothing to do.",
    ),
    "packed": FindingKind(
        _I,
        "packed integer weights are present and whole, and not judged",
        "Check the model before it is quantised.",
    ),
    "index-size": FindingKind(
        _I,
        "the total size in the index is not that of the tensors",
        "Some tools count tied weights twice; save again if yours does not.",
    ),
    "not-judged": FindingKind(_I, "files beside the weights that are not judged", "Nothing to do."),
    "no-index": FindingKind(
        _W,
        "several shards without an index",
        "Save again with the index; without it a loader cannot know that all shards are there.",
    ),
}
"""Code -> what it means. Described for users in `docs/reference/findings.md`."""

RANK: Final[Mapping[Severity, int]] = {_C: 2, _W: 1, _I: 0}
"""Severities that findings have, in order."""

_SHOWN: Final = 8


def finding(
    code: str,
    where: str,
    detail: str,
    *,
    file: str = "",
    tensors: Iterable[str] = (),
    units: Iterable[int] = (),
) -> Finding:
    """Return a finding with the severity and the advice that the catalogue has for its code."""
    kind = CATALOGUE[code]
    return Finding(
        code=code,
        severity=kind.severity,
        where=where,
        detail=detail,
        advice=kind.advice,
        file=file,
        tensors=tuple(tensors),
        units=tuple(map(int, units)),
    )


def in_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings with the critical ones first, otherwise as they are."""
    return tuple(sorted(findings, key=lambda one: -RANK[one.severity]))


def spans(units: Iterable[int]) -> str:
    """Return ascending numbers as ranges, the first few of them: `0-3, 7, 9-12`."""
    found: list[list[int]] = []
    for unit in map(int, units):
        if found and unit == found[-1][1] + 1:
            found[-1][1] = unit
        else:
            found.append([unit, unit])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in found]
    return ", ".join(texts[:_SHOWN]) + (", ..." if len(texts) > _SHOWN else "")


def listed(names: Iterable[str]) -> str:
    """Return the first few names, and how many there are beyond."""
    every = list(names)
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + more
