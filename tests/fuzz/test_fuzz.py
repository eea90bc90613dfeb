"""The soundness fuzz in the ordinary run: some networks, and planted bugs that it must see."""

import pytest
from fuzz import within
from fuzz.attack import Tally, fuzz_one
from fuzz.mutants import Mutant, every, hunt

from ormas_core.certificates.rules import RULES

NETWORKS = 300

SOME = {
    ("ReluBackward0", "closes where x is positive"),
    ("ConvolutionBackward0", "one group stands for all"),
    ("SplitBackward0", "masks come back one place off"),
    ("SoftmaxBackward0", "each element by itself"),
    ("NativeLayerNormBackward0", "each feature by itself"),
    ("AddBackward0", "the sign of alpha is ignored"),
    ("ScaledDotProductFlashAttentionForCpuBackward0", "k by one query head"),
    ("NativeBatchNormBackward0", "batch statistics are assumed"),
    ("AdamW", "momentum is overlooked"),
    ("SGD", "a decay of any size only shrinks"),
    ("prover", "one consumer is enough"),
    ("prover", "facts need no masked gradient"),
    ("arithmetic", "constants are zero"),
    ("bounded norm", "the mean is exact"),
    ("bounded sum", "nothing is rounded"),
}
"""Planted bugs of the ordinary run; `make fuzz-mutants` has them all."""


def test_no_attack_moves_what_is_proven() -> None:
    """Zero gradients stay zero and facts hold, whatever batch, loss, optimizer and type."""
    tally = Tally()
    for seed in range(NETWORKS):
        fuzz_one(seed, tally, most_steps=6)
    assert not tally.violations, tally.violations[0]
    assert tally.networks == NETWORKS
    assert sum(tally.certified.values()) > NETWORKS / 4, "little was proven"
    assert set(tally.certified) == {"features", "positions", "tokens", "image"}
    assert sum(tally.skipped.values()) < NETWORKS / 10


@pytest.mark.parametrize("kind", within.NETS)
def test_no_attack_within_its_limits_moves_what_is_bounded(kind: str) -> None:
    """The worst inputs open nothing, whatever momentum is left and however parameters decay."""
    verdicts = [within.examine(kind, seed) for seed in range(NETWORKS // 4)]
    assert not any(verdict.wrong for verdict in verdicts), verdicts
    assert sum(verdict.units for verdict in verdicts) > NETWORKS / 10, "little was proven"
    assert sum(verdict.steps for verdict in verdicts) > NETWORKS / 10, "little was attacked"


def test_every_rule_has_a_planted_bug() -> None:
    """A rule without a mutant is not tested."""
    assert {mutant.where for mutant in every()} >= {*RULES, "bounded norm", "bounded sum"}


@pytest.mark.parametrize(
    "mutant",
    [mutant for mutant in every() if (mutant.where, mutant.what) in SOME],
    ids=lambda mutant: f"{mutant.where}-{mutant.what}".replace(" ", "_"),
)
def test_a_planted_bug_is_seen(mutant: Mutant) -> None:
    """The fuzz reports a counterexample as long as the bug is in place, and only then."""
    assert hunt(mutant)


def test_all_chosen_bugs_exist() -> None:
    """The list above names mutants."""
    assert {(mutant.where, mutant.what) for mutant in every()} >= SOME
