"""`make fuzz-mutants`: plants one bug at a time, and runs the fuzz until it sees it."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import torch
from fuzz import momentum, resting, within
from fuzz.attack import Tally, fuzz_one
from fuzz.cases import CASES
from fuzz.mutants_bounded import BOUNDED_BUGS
from fuzz.mutants_engine import ENGINE_BUGS, OPTIMIZER_BUGS
from fuzz.mutants_rules import BUGS
from fuzz.oracle import examine

from ormas_core.certificates import rules
from ormas_core.certificates.rules.rule import Rule

MOST_SEEDS: Final = 60
MOST_NETWORKS: Final = 1500
MOST_BOUNDED: Final = 600


class Mutant(NamedTuple):
    """A planted bug.

    Attributes:
        where: the rule, optimizer or step that has it.
        what: the bug.
        plant: puts it in place for as long as the context lasts.
        directed: looks for it where it is; returns what it found, or "".
    """

    where: str
    what: str
    plant: Callable[[], contextlib.AbstractContextManager[None]]
    directed: Callable[[], str]


@contextlib.contextmanager
def _in_table(name: str, change: Callable[[Rule], Rule]) -> Iterator[None]:
    table = rules.RULES
    kept = table[name]
    table[name] = change(kept)  # type: ignore[index] - the table is a dictionary
    try:
        yield
    finally:
        table[name] = kept  # type: ignore[index]


def _by_programs(name: str) -> str:
    for seed in range(MOST_SEEDS):
        for number, case in enumerate(CASES[name]):
            wrong = examine(case, name, seed * 64 + number).wrong
            if wrong:
                return f"program {number}, seed {seed}: {wrong[0]}"
    return ""


def _by_networks() -> str:
    tally = Tally()
    for seed in range(MOST_NETWORKS):
        fuzz_one(seed, tally)
        if tally.violations:
            found = tally.violations[0]
            return f"network {found.seed}: {found.what}"
    return ""


def _by_steps(kind: type[torch.optim.Optimizer]) -> str:
    for seed in range(4):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            wrong = resting.examine(kind, dtype, seed)[1]
            if wrong:
                return wrong[0]
        run = {torch.optim.SGD: momentum.run_cone, torch.optim.AdamW: momentum.run_drain}.get(kind)
        wrong = run(seed).wrong if run is not None else []
        if wrong:
            return f"with other settings, {wrong[0]}"
    return ""


def _by_limits(where: str) -> str:
    kinds = [kind for kind in within.NETS if kind.startswith(where)]
    for seed in range(MOST_BOUNDED):
        for kind in kinds:
            wrong = within.examine(kind, seed).wrong
            if wrong:
                return wrong
    return ""


def every() -> list[Mutant]:
    """Return all mutants."""
    in_rules = [
        Mutant(
            name,
            what,
            lambda name=name, change=change: _in_table(name, change),
            lambda name=name: _by_programs(name),
        )
        for (name, what), change in BUGS.items()
    ]
    in_optimizers = [
        Mutant(kind.__name__, what, plant, lambda kind=kind: _by_steps(kind))
        for (kind, what), plant in OPTIMIZER_BUGS.items()
    ]
    in_engine = [
        Mutant(where, what, plant, _by_networks) for (where, what), plant in ENGINE_BUGS.items()
    ]
    in_limits = [
        Mutant(where, what, plant, lambda where=where: _by_limits(where))
        for (where, what), plant in BOUNDED_BUGS.items()
    ]
    return [*in_rules, *in_optimizers, *in_engine, *in_limits]


def hunt(mutant: Mutant) -> str:
    """Return what the fuzz sees of a planted bug; empty if it sees nothing."""
    with mutant.plant():
        return mutant.directed()


def main(only: list[str]) -> int:
    torch.set_num_threads(1)
    survived = 0
    chosen = [m for m in every() if not only or any(word in m.where for word in only)]
    start = time.perf_counter()
    for mutant in chosen:
        found = hunt(mutant)
        survived += not found
        verdict = "killed  " if found else "SURVIVED"
        sys.stdout.write(f"{verdict} {mutant.where}: {mutant.what} ({found})\n")
        sys.stdout.flush()
    seconds = time.perf_counter() - start
    sys.stdout.write(f"{len(chosen)} mutants, {survived} survived, {seconds:.0f} s\n")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
