"""`make fuzz N=10000`: the soundness fuzz at length."""

import argparse
import sys
import time

import torch
from fuzz.attack import Tally, fuzz_one


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", type=int)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    tally, start = Tally(), time.perf_counter()
    for seed in range(asked.first, asked.first + asked.networks):
        fuzz_one(seed, tally)
        if len(tally.violations) > 50:
            break
    show(tally, time.perf_counter() - start)
    return 1 if tally.violations else 0


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def show(tally: Tally, seconds: float) -> None:
    """Print what a run did."""
    say(f"networks         {tally.networks} in {seconds:.0f} s, {tally.steps} steps of attack")
    for label, counted in (
        ("certified", tally.certified),
        ("closed elements", tally.closed),
        ("claims", tally.claims),
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
