"""`make fuzz N=10000`: the soundness fuzz at length."""

import argparse
import os
import sys
import time
from multiprocessing import get_context
from typing import Final

import torch
from fuzz import within
from fuzz.attack import Tally, Violation, fuzz_one

_CHUNK: Final = 25
_BOUNDED_EVERY: Final = 10
_ENOUGH: Final = 50
"""Counterexamples after which no more are looked for."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", type=int)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    asked = parser.parse_args()
    tally, start = Tally(), time.perf_counter()
    last = asked.first + asked.networks
    chunks = [range(seed, min(seed + _CHUNK, last)) for seed in range(asked.first, last, _CHUNK)]
    # Forked processes would share torch's threads.
    with get_context("spawn").Pool(asked.jobs, torch.set_num_threads, (1,)) as pool:
        for part in pool.imap_unordered(attacked, chunks):
            tally.add(part)
            if len(tally.violations) > _ENOUGH:
                break
    show(tally, time.perf_counter() - start)
    return 1 if tally.violations else 0


def attacked(seeds: range) -> Tally:
    """Attack the networks of some seeds, and for every tenth those with limits."""
    tally = Tally()
    for seed in seeds:
        fuzz_one(seed, tally)
        for kind in within.NETS if seed % _BOUNDED_EVERY == 0 else ():
            verdict = within.examine(kind, seed)
            tally.bounded[kind] += verdict.units
            if verdict.wrong:
                tally.violations.append(Violation(seed, -1, kind, verdict.wrong, "within limits"))
    return tally


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def show(tally: Tally, seconds: float) -> None:
    """Print what a run did."""
    say(f"networks         {tally.networks} in {seconds:.0f} s, {tally.steps} steps of attack")
    for label, counted in (
        ("certified", tally.certified),
        ("closed elements", tally.closed),
        ("claims", tally.claims),
        ("bounded units", tally.bounded),
        ("optimizers", tally.optimizers),
        ("dtypes", tally.dtypes),
        ("skipped", tally.skipped),
    ):
        listed = ", ".join(f"{name} {count}" for name, count in counted.most_common())
        say(f"{label:16} {sum(counted.values())}: {listed}")
    say(f"counterexamples  {len(tally.violations)}")
    for one in tally.violations:
        say(f"  seed {one.seed} step {one.step} {one.parameter}: {one.what}\n    {one.text}")


if __name__ == "__main__":
    sys.exit(main())
