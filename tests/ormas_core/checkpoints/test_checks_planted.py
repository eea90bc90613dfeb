"""Every check on tiny tensors: what is planted is found, alone, and its near miss is not."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pytest
from checkpoint_facts import codes, facts_of, found, random

from ormas_core.checkpoints import Against, Comparison, State
from ormas_core.checkpoints.groups import row_groups
from ormas_core.checkpoints.vocabulary import Vocabulary


def put(array: Any, index: Any, value: float) -> Any:
    """Return a copy with one place or row changed."""
    changed = np.array(array, dtype=np.float32)
    changed[index] = value
    return changed


def batch_norm(
    scale: Any = None, shift: Any = None, variance: Any = None, width: int = 16
) -> dict[str, Any]:
    """Return the tensors of a batch normalisation `bn` with sane numbers where none are given."""
    ordinary = np.linspace(0.5, 1.5, width)
    return {
        "bn.weight": ordinary if scale is None else scale,
        "bn.bias": np.linspace(-0.3, 0.3, width) if shift is None else shift,
        "bn.running_mean": np.zeros(width),
        "bn.running_var": ordinary if variance is None else variance,
    }


def beside(array: Any, verdict: Against, moved: Any = None, name: str = "w.weight") -> Any:
    """Return the facts of a tensor that was compared with a base."""
    return facts_of(name, array, base=Comparison(verdict=verdict, moved=moved))


W: Final = random(16, 8)
ONES: Final = np.ones(16)
LINE: Final = np.linspace(0.5, 1.5, 16)
TOKENS: Final = random(32, 8)

Tensors = Mapping[str, Any]
PLANTED: Final[tuple[tuple[str, Tensors, Tensors], ...]] = (
    ("nonfinite", {"fc.weight": put(W, (3, 2), np.nan)}, {"fc.weight": put(W, (3, 2), 0.03)}),
    ("nonfinite", {"fc.bias": put(ONES, 1, np.inf)}, {"fc.bias": ONES}),
    ("zero-weights", {"fc.weight": W * 0}, {"fc.weight": put(W * 0, (..., 0), 1e-9)}),
    ("zero-tensor", {"pos_embed": np.zeros((1, 4, 8))}, {"pos_embed": random(1, 4, 8)}),
    ("dead-channels", {"conv.weight": put(W, 5, 0)}, {"conv.weight": put(W, (5, 1), 0)}),
    (
        "dead-channels",
        {"fc.weight": put(W, 5, 0), "fc.bias": put(LINE, 5, -0.1)},
        {"fc.weight": W, "fc.bias": put(LINE, 5, -0.1)},
    ),
    ("flat-channels", {"fc.weight": put(W, 5, 0), "fc.bias": LINE}, {"fc.weight": W}),
    ("decayed-channels", {"fc.weight": put(W, 5, 1e-9)}, {"fc.weight": put(W, 5, 1e-3)}),
    ("outlier-rows", {"fc.weight": put(W, (5, 0), 9e4)}, {"fc.weight": put(W, (5, 0), 0.5)}),
    ("constant-tensor", {"fc.weight": put(W, ..., 0.5)}, {"fc.weight": put(W * 0 + 1, (0, 0), 2)}),
    ("uninitialised", {"fc.weight": W * 1e30}, {"fc.weight": W * 1e3}),
    ("uninitialised", {"fc.weight": W.astype(np.float64) * 1e-39}, {"fc.weight": W * 1e-30}),
    (
        "duplicate-tensors",
        {"a.weight": W, "b.weight": W},
        {"a.weight": W, "b.weight": put(W, (0, 0), 0.5)},
    ),
    ("dead-channels", batch_norm(put(LINE, 3, 0), LINE * -1), batch_norm(LINE, LINE * -1)),
    ("flat-channels", batch_norm(put(LINE, 3, 0), LINE), batch_norm(put(LINE, 3, 0.01), LINE)),
    ("decayed-channels", batch_norm(put(LINE, 3, 1e-8)), batch_norm(put(LINE, 3, 1e-2), ONES)),
    ("norm-scale-zero", batch_norm(LINE * 0), batch_norm(put(LINE, slice(1, 4), 0.1))),
    ("dormant-channels", batch_norm(None, put(LINE, 3, -9)), batch_norm(None, put(LINE, 3, -2))),
    ("untouched-statistics", batch_norm(LINE, LINE, ONES), batch_norm(LINE, ONES * 0, ONES)),
    ("unvarying-variance", batch_norm(None, None, put(LINE, 3, 0)), batch_norm()),
    (
        "norm-scale-zero",
        {"ln.weight": put(LINE, 3, 0), "ln.bias": LINE},
        {"ln.weight": put(LINE, 3, 0.05), "ln.bias": LINE},
    ),
    ("norm-scale-zero", {"norm.weight": put(LINE, 3, 1e-9)}, {"act.weight": put(LINE, 3, 1e-9)}),
    (
        "untrained-vocabulary",
        {"embed_tokens.weight": put(TOKENS, slice(20, 32), 0)},
        {"embed_tokens.weight": TOKENS},
    ),
    ("idle-by-design", {"embed_tokens.weight": put(TOKENS, 0, 0)}, {"wte.weight": TOKENS}),
    (
        "idle-by-design",
        {"attn.mask": put(random(4, 4), 1, -np.inf)},
        {"attn.mask": put(random(4, 4), 1, -1e4)},
    ),
    (
        "idle-by-design",
        {"stft_conv.weight": put(W, [0, 15], 0)},
        {"stft_conv.weight": put(W, (0, 0), 0)},
    ),
    (
        "adapter-no-op",
        {"q.lora_A.weight": W, "q.lora_B.weight": W * 0},
        {"q.lora_A.weight": W, "q.lora_B.weight": put(W * 0, (0, 0), 1e-6)},
    ),
    (
        "adapter-zero",
        {"q.lora_A.weight": W * 0, "q.lora_B.weight": W * 0},
        {"q.lora_A.weight": W, "q.lora_B.weight": W},
    ),
    (
        "adapter-part-no-op",
        {
            "q.lora_A.weight": W,
            "q.lora_B.weight": W * 0,
            "v.lora_A.weight": W,
            "v.lora_B.weight": W,
        },
        {"v.lora_down.weight": W, "v.lora_up.weight": W, "v.alpha": np.float32(8)},
    ),
)


@pytest.mark.parametrize(("code", "planted", "near"), PLANTED)
def test_what_is_planted_is_found_and_its_near_miss_is_not(
    code: str, planted: Tensors, near: Tensors
) -> None:
    """One finding for one cause, and none for what only looks like it."""
    assert codes(planted) == [code]
    assert codes(near) == []


def test_a_nan_is_counted_and_located() -> None:
    """Tensor, count, share, rows and the first index; the worst tensor comes first."""
    many, one = found({"a.weight": put(W, (3, 2), np.nan), "b.weight": put(W, 4, np.inf)})
    assert many.where == "b.weight"
    assert many.detail.startswith("8 infinite of 128 elements (6.25%), in 1 of 16 rows")
    assert one.where == "a.weight"
    assert one.detail.endswith("the first at [3, 2]")


def test_a_row_of_nothing_but_nan_is_not_dead_too() -> None:
    """A row of NaN has no finite element but zero; a row of zeros beside one NaN is dead too."""
    assert codes({"fc.weight": put(W, 5, np.nan)}) == ["nonfinite"]
    both = put(put(W, (3, 2), np.nan), 5, 0)
    assert codes({"fc.weight": both}) == ["nonfinite", "dead-channels"]


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (State.NO_DATA, "no-data"),
        (State.UNKNOWN, "not-inspected"),
        (State.UNREADABLE, "unreadable"),
        (State.PACKED, "packed"),
    ],
)
def test_what_was_not_looked_at_is_said_once_for_each_reason(state: State, code: str) -> None:
    """Never as healthy, and not once for each tensor."""
    changes = {"state": state, "reason": "because", "magnitude": None, "values": None}
    tensors = {name: facts_of(name, W, **changes) for name in ("a.weight", "b.weight", "c.weight")}
    (one,) = found(tensors)
    assert one.code == code
    assert one.where == "3 tensors"
    assert len(one.tensors) == 3


def test_rows_of_a_known_vocabulary_are_told_apart() -> None:
    """Beyond the tokenizer and reserved: information. A token in use: a warning."""
    table = {"embed_tokens.weight": put(put(TOKENS, slice(28, 32), 1e-12), [3, 7], 1e-12)}
    known = Vocabulary(size=28, special=frozenset({3}))
    first, second = found(table, vocabulary=lambda: known)
    assert (first.code, first.units) == ("untrained-vocabulary", (3, 28, 29, 30, 31))
    assert (second.code, second.units) == ("near-zero-rows", (7,))


def test_the_wiring_decides_what_a_constant_channel_means() -> None:
    """Before a ReLU it is dead; before an addition it adds a constant and is not."""
    tensors = batch_norm(put(LINE, 3, 0), LINE * -1)
    unknown = found(tensors)[0]
    assert "if a ReLU directly follows" in unknown.detail
    closed = found(tensors, followers={"bn": ("relu",)})[0]
    assert closed.code == "dead-channels"
    assert "if a ReLU" not in closed.detail
    assert codes(tensors, followers={"bn": ("add",)}) == ["flat-channels"]
    assert codes(batch_norm(None, put(LINE, 3, -9)), followers={"bn": ("silu",)}) == []


def test_scales_that_are_stored_minus_one_are_read_so() -> None:
    """Zeros of a Gemma norm are ones; -1 is its zero; without a config nothing is wrong."""
    norms = {f"{i}.norm.weight": np.zeros(16) for i in range(3)}
    assert codes(norms, config={"model_type": "gemma2"}) == []
    inside = {"model_type": "llava", "text_config": {"model_type": "gemma2"}}
    assert codes(norms, config=inside) == []
    assert codes({"norm.weight": put(LINE * 0, 3, -1)}, config={"model_type": "gemma2"}) == [
        "norm-scale-zero"
    ]
    assert set(codes(norms)) == {"idle-by-design"}
    assert set(codes(norms, config={"model_type": "llama"})) == {"norm-scale-zero"}


TIED: Final = {"model.embed_tokens.weight": TOKENS, "lm_head.weight": TOKENS}
UNTIED: Final = {**TIED, "lm_head.weight": random(32, 8, seed=1)}


@pytest.mark.parametrize(
    ("config", "tensors", "expected"),
    [
        ({"tie_word_embeddings": True}, UNTIED, ["tied-flag"]),
        ({"tie_word_embeddings": True}, TIED, []),
        ({"tie_word_embeddings": False}, UNTIED, []),
        ({}, UNTIED, []),
        (
            {"tie_word_embeddings": False, "architectures": ["LlamaForCausalLM"]},
            {"model.embed_tokens.weight": TOKENS},
            ["tied-flag"],
        ),
        (
            {"tie_word_embeddings": False, "architectures": ["LlamaForSequenceClassification"]},
            {"model.embed_tokens.weight": TOKENS},
            [],
        ),
    ],
)
def test_the_flag_for_tied_embeddings_is_compared(
    config: dict[str, Any], tensors: Tensors, expected: list[str]
) -> None:
    """Where it is written down, and where a loader would do something else than the file says."""
    assert codes(tensors, config=config) == expected


BASE: Final = frozenset({"w.weight", "v.weight"})


def test_equal_weights_are_one_finding() -> None:
    """After rounding to a narrower type too; one tensor that moved makes it frozen tensors."""
    same = {
        "w.weight": beside(W, Against.SAME),
        "v.weight": beside(random(9, 9), Against.CAST, name="v.weight"),
    }
    (one,) = found(same, base=BASE)
    assert one.code == "identical-to-base"
    assert "all 2 tensors are equal, 1 of them after rounding" in one.detail
    trained = {**same, "v.weight": beside(random(9, 9), Against.DIFFERENT, name="v.weight")}
    assert codes(trained, base=BASE) == ["frozen-tensors"]
    moved = {name: beside(W + i, Against.DIFFERENT, name=name) for i, name in enumerate(BASE)}
    assert codes(moved, base=BASE) == []


def test_what_only_one_of_two_has_is_said() -> None:
    """Names, here and in the base; nothing in common at all is a warning."""
    odd = {"x.weight": beside(W, Against.ABSENT, name="x.weight")}
    assert codes(odd, base=BASE) == ["not-compared"]
    both = {**odd, "w.weight": beside(random(3, 3), Against.DIFFERENT)}
    (one,) = found(both, base=BASE)
    assert one.code == "structure-differs"
    assert one.detail == "1 only in the base: v.weight; 1 only here: x.weight"


def test_a_population_needs_a_gap() -> None:
    """Rows that fade evenly over ten decades have no gap, and few rows are no population."""
    even = row_groups(np.logspace(-10, 0, 40))
    assert (even.low, even.high) == ((), ())
    few = row_groups(np.array([1e-9, 1.0, 1.1, 0.9]))
    assert few.low == ()
    split = row_groups(np.array([1.0, 1e-9, *np.linspace(0.5, 1.5, 30), 1e4, 0.0]))
    assert (split.low, split.high, split.zero) == ((1,), (32,), (33,))
    steps = row_groups(np.array([1e-33, 1e-9, *np.linspace(0.5, 1.5, 30)]))
    assert steps.low == (0, 1)
