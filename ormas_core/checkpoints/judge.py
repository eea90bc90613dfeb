"""Reads a checkpoint once, from beginning to end, and puts every check to what was seen."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ormas_core.checkpoints.findings import Finding, finding, in_order, listed
from ormas_core.checkpoints.opened import Checkpoint, Progress, ReadProblem
from ormas_core.checkpoints.tensors import State
from ormas_core.checkpoints.vocabulary import read_vocabulary

if TYPE_CHECKING:
    from ormas_core.checkpoints.seen import Looked

FINDING_OF: Final[Mapping[str, str]] = {
    "not-a-checkpoint": "unreadable",
    "unsupported": "not-inspected",
    "truncated": "unreadable",
    "malformed": "unreadable",
    "missing-file": "missing-file",
    "missing-tensor": "missing-tensors",
    "orphan-tensor": "index-disagreement",
    "misplaced-tensor": "index-disagreement",
    "duplicate-tensor": "index-disagreement",
    "no-index": "no-index",
    "index-size": "index-size",
    "unsafe-path": "unsafe-path",
    "unreadable": "unreadable",
    "changed": "unreadable",
    "refused-objects": "refused-objects",
    "dangerous-objects": "dangerous-objects",
    "incomplete": "incomplete",
    "refused-tensors": "not-inspected",
    "stray-copies": "stray-copies",
    "stray-weights": "stray-weights",
    "not-judged": "not-judged",
    "no-tensors": "no-tensors",
    "config": "settings-file",
}
"""Code of a `ReadProblem` -> code of the finding that it becomes."""

_ONE_BY_ONE: Final = 8
"""Problems of one kind in one file that are reported one by one."""

_BROKEN: Final = frozenset(
    {
        "dangerous-objects",
        "malformed",
        "missing-file",
        "not-a-checkpoint",
        "refused-objects",
        "truncated",
        "unreadable",
        "unsafe-path",
        "unsupported",
    }
)
"""Problems of a file that are the reason why its tensors cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What one reading of a checkpoint gave.

    Attributes:
        findings: critical ones first.
        tensors: number of tensors.
        read: number of tensors that were read whole.
        packed: number of those that are packed integers.
        void: whether a file was changed while it was being read.
    """

    findings: tuple[Finding, ...]
    tensors: int
    read: int
    packed: int
    void: bool


def judge(
    checkpoint: Checkpoint,
    base: Checkpoint | None = None,
    *,
    followers: Mapping[str, tuple[str, ...]] | None = None,
    progress: Progress | None = None,
) -> Judged:
    """Read every tensor and return what the checks find.

    Args:
        checkpoint: what to judge.
        base: what to compare it with.
        followers: what the output of each layer goes into; None where the wiring is unknown.
        progress: told how far the reading is.
    """
    from ormas_core.checkpoints.checks import (
        CHECKS,
    )  # with numpy, which a mere import must not cost
    from ormas_core.checkpoints.seen import Seen, look

    looked = tuple(look(facts) for facts in checkpoint.tensors(base, progress=progress))
    seen = Seen(
        tensors=looked,
        config=checkpoint.config,
        adapter=checkpoint.adapter,
        vocabulary=lambda: read_vocabulary(checkpoint.folder),
        base_vocabulary=lambda: read_vocabulary(base.folder) if base is not None else None,
        base=frozenset(base.names) if base is not None else None,
        followers=followers,
        same=checkpoint.same_bytes,
    )
    changes = (*checkpoint.changes(), *(base.changes() if base is not None else ()))
    problems = (*checkpoint.problems, *checkpoint.stray_problems(), *changes)
    broken = {problem.where for problem in problems if problem.code in _BROKEN}
    if broken:  # then it is no wonder
        problems = tuple(problem for problem in problems if problem.code != "no-tensors")
    found = list(_of_problems(problems, checkpoint.files))
    if base is not None:
        found += (_of_base(problem) for problem in base.problems if problem.code in _BROKEN)
    found += (
        one
        for check in CHECKS
        for one in check(seen)
        if not (one.code == "unreadable" and one.file in broken)
    )
    return Judged(
        findings=in_order(found),
        tensors=len(looked),
        read=_count(looked, State.READ),
        packed=_count(looked, State.PACKED),
        void=bool(changes),
    )


def _count(looked: "Sequence[Looked]", state: State) -> int:
    return sum(one.facts.state is state for one in looked)


def _of_base(problem: ReadProblem) -> Finding:
    return finding("not-compared", problem.where, f"in the base: {problem.detail}")


def _of_problems(problems: Sequence[ReadProblem], files: Sequence[str]) -> Iterator[Finding]:
    groups: dict[str, list[ReadProblem]] = defaultdict(list)
    for problem in problems:
        groups[problem.code].append(problem)
    for code, group in groups.items():
        if len(group) <= _ONE_BY_ONE:
            for one in group:
                file = one.where if one.where in files else ""
                yield finding(FINDING_OF[code], one.where, one.detail, file=file)
            continue
        names = [one.where for one in group]
        detail = f"{len(group)} of a kind: {listed(names)}. The first: {group[0].detail}"
        yield finding(FINDING_OF[code], f"{len(group)} places", detail)
