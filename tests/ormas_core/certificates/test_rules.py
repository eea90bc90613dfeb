"""Every rule against its operation; and that every rule says what it rests on."""

import dataclasses
from typing import Final

import pytest
import torch
from fuzz.cases import CASES
from fuzz.oracle import Case, examine

from ormas_core.certificates import graph, prover, signs
from ormas_core.certificates.masks import everything, none
from ormas_core.certificates.rules import RULES, SETTINGS
from ormas_core.certificates.rules.rule import forget

SEEDS: Final = 2
"""Draws of facts for each program; more, up to the next number, until the rule says something."""
MOST_SEEDS: Final = 120

WHOLE: Final = {
    "IndexBackward0": "which element is picked is data",
    "GatherBackward0": "likewise",
    "IndexSelectBackward0": "likewise",
    "TakeBackward0": "likewise",
    "TopkBackward0": "likewise",
    "SortBackward0": "likewise",
    "SumBackward0": "there is one output, so its gradient is zero only with all of them",
    "MeanBackward0": "likewise",
    "MaxBackward1": "likewise",
    "MinBackward1": "likewise",
}
"""Rules that mask an operand only where every upstream gradient is zero, and why."""

GPU_ONLY: Final = {
    "CudnnBatchNormBackward0",
    "MiopenBatchNormBackward0",
    "FusedRmsNormBackward0",
    "ScaledDotProductFlashAttentionBackward0",
    "ScaledDotProductEfficientAttentionBackward0",
    "ScaledDotProductCudnnAttentionBackward0",
}


def test_every_rule_has_a_program() -> None:
    """A rule without a program here fails, and so does a program without a rule."""
    assert set(CASES) == set(RULES)
    assert all(CASES.values())


@pytest.mark.parametrize("name", sorted(RULES))
def test_a_rule_claims_what_is_so_and_claims_something(name: str) -> None:
    """Facts hold for computed values, masked gradients are exactly zero, on adversarial draws."""
    said = {"forward": RULES[name].forward is forget, "backward": False, "lively": name in WHOLE}
    checked = 0
    for seed in range(MOST_SEEDS):
        for number, case in enumerate(CASES[name]):
            verdict = examine(case, name, seed * 64 + number)
            assert not verdict.wrong, f"program {number}, seed {seed}: {verdict.wrong}"
            said = {what: so or getattr(verdict, what) for what, so in said.items()}
            checked += verdict.checked
        if seed + 1 >= SEEDS and all(said.values()) and checked:
            return
    raise AssertionError(f"the rule of {name} says nothing: {said}, finite draws {checked}")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="these kernels exist on a GPU only")
@pytest.mark.parametrize("name", sorted(GPU_ONLY | {"NativeDropoutBackward0"}))
def test_a_rule_holds_for_the_kernel_of_a_gpu(name: str) -> None:
    """The same programs, on a GPU, where they make the node itself instead of its stand-in."""
    missing, checked = "", 0
    for number, case in enumerate(CASES[name]):
        there = Case(case.program, case.shapes, case.values)
        for seed in range(10):
            try:
                verdict = examine(there, name, seed, device="cuda")
            except AssertionError as other_kernel:
                missing = str(other_kernel)
                continue
            assert not verdict.wrong, f"program {number}, seed {seed}: {verdict.wrong}"
            checked += verdict.checked
    if not checked:
        pytest.skip(f"this GPU runs another kernel: {missing}")


@pytest.mark.parametrize("name", sorted(RULES))
def test_a_rule_says_what_it_rests_on(name: str) -> None:
    """Each half of a rule states the rule, what it requires, its rounding and its source."""
    for function in (RULES[name].forward, RULES[name].backward):
        text = function.__doc__ or ""
        if function is not forget:
            assert [
                word for word in ("Rule:", "Requires:", "Rounding:", "Source:") if word in text
            ] == [
                "Rule:",
                "Requires:",
                "Rounding:",
                "Source:",
            ], f"{name}: {function.__name__}"


def node_of(output: torch.Tensor) -> graph.Node:
    """Return the node that made `output`."""
    read = graph.read([output], SETTINGS, {})
    return read.nodes[read.roots[0][0]]


@pytest.mark.parametrize("name", sorted(name for name in RULES if RULES[name].settings))
def test_a_node_without_its_settings_is_opaque(name: str) -> None:
    """A rule whose recorded settings cannot be read is not used."""
    rule = RULES[name]
    shape = (2, 2)
    node = graph.Node(
        name, (None,), (shape,), (shape,), "float32", "cpu", dict.fromkeys(rule.settings, 1)
    )
    assert prover.rule_of(node) is rule
    assert prover.rule_of(dataclasses.replace(node, attrs={})) is None


def test_an_empty_tensor_makes_a_node_opaque() -> None:
    """At another size it may hold something."""
    x = torch.zeros(0, 3, requires_grad=True)
    assert prover.rule_of(node_of(x.relu())) is None


def test_a_function_of_the_users_is_never_taken_for_one_of_torch() -> None:
    """A custom `Relu` has the name of torch's node and another prefix."""

    class Relu(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return grad

    x = torch.zeros(2, requires_grad=True)
    assert prover.rule_of(node_of(Relu.apply(x))) is None  # type: ignore[no-untyped-call]


def test_a_convolution_passes_no_sign() -> None:
    """Kernels that transform their operands form sums of mixed signs."""
    x, weight = torch.rand(1, 2, 4, 4, requires_grad=True), torch.rand(3, 2, 3, 3)
    node = node_of(torch.nn.functional.conv2d(x, weight.requires_grad_()))
    facts = [signs.nonnegative(shape) for shape in node.in_shapes]
    (found,) = RULES[node.name].forward(node, facts)
    assert not found.known


def test_a_constant_operand_is_unknown_and_not_absent() -> None:
    """A frozen bias, scale, shift or factor may be anything."""
    x = torch.zeros(2, 3, requires_grad=True)
    for output in (
        torch.nn.functional.batch_norm(x, None, None, torch.ones(3), torch.ones(3), training=True),
        torch.addmm(torch.ones(3), x, torch.zeros(3, 3, requires_grad=True)),
        x * torch.ones(3) + torch.ones(3),
    ):
        node = node_of(output)
        zero = everything((2, 3))
        facts = [
            signs.facts(zero, zero, zero) if edge is not None else signs.unknown(shape)
            for edge, shape in zip(node.inputs, node.in_shapes, strict=True)
        ]
        (found, *_) = RULES[node.name].forward(node, facts)
        assert found.zero.same(none((2, 3))), node.name


def every_number(dtype: torch.dtype) -> torch.Tensor:
    """Return every finite number of a half type, or as many of a wider one, in order of size."""
    half = torch.bfloat16 if dtype != torch.float16 else torch.float16
    drawn = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(half)
    wide = drawn[drawn.isfinite()].to(dtype)
    if dtype in {torch.float16, torch.bfloat16}:
        return wide
    return wide * (1 + torch.rand(wide.shape, dtype=dtype, generator=torch.Generator()))


CURVES: Final = (
    "GeluBackward0",
    "SiluBackward0",
    "TanhBackward0",
    "MishBackward0",
    "HardswishBackward0",
    "EluBackward0",
    "CeluBackward0",
    "HardshrinkBackward0",
    "SoftshrinkBackward0",
    "LeakyReluBackward0",
    "SigmoidBackward0",
    "HardsigmoidBackward0",
    "ExpBackward0",
    "SoftplusBackward0",
    "SinBackward0",
    "ErfBackward0",
    "AtanBackward0",
    "AbsBackward0",
    "ReluBackward0",
    "HardtanhBackward0",
    "ClampBackward1",
    "PowBackward0",
)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", CURVES)
def test_a_curve_keeps_signs_for_every_number(name: str, dtype: torch.dtype) -> None:
    """Facts hold for all numbers of the half types, and for as many of the wider ones."""
    for case in CASES[name]:
        x = every_number(dtype)
        if case.values == "positive":
            continue
        for part, fact in ((x <= 0, "neg"), (x >= 0, "pos"), (x == 0, "zero")):
            leaf = x[part].requires_grad_()
            output = case.program(leaf)
            assert isinstance(output, torch.Tensor)
            node = node_of(output)
            mask = {one: none(node.in_shapes[0]) for one in ("zero", "neg", "pos")}
            mask[fact] = everything(node.in_shapes[0])
            (said, *_) = RULES[node.name].forward(
                node, [signs.facts(mask["zero"], mask["neg"], mask["pos"])]
            )
            finite = output.isfinite()
            for claimed, holds in (
                (said.zero, output == 0),
                (said.neg, output <= 0),
                (said.pos, output >= 0),
            ):
                assert not claimed.parts or bool((holds | ~finite).all()), (fact, claimed)
