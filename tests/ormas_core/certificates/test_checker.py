"""The checker of proofs: it believes the engine's, and none that was tampered with."""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from checker_models import CASES, claims
from checker_rules import derived
from checker_tampering import changes
from hypothesis import given
from hypothesis import strategies as st

from ormas_core.certificates import SETTINGS
from ormas_core.certificates.checker import (
    OPERATIONS,
    check_claim,
    check_trace,
)
from ormas_core.claims import (
    Claim,
    Fact,
    StepKind,
    TraceStep,
    UnitKind,
    Use,
)

SMALL = tuple(name for name in CASES if name not in ("gpt2", "gpt2 eager", "bert", "vit", "llama"))


@pytest.mark.parametrize("name", list(CASES))
def test_every_proof_of_the_engine_verifies(name: str) -> None:
    """Each claim about each network has a proof whose every line follows, and concludes it."""
    found = claims(name)
    assert found
    assert [check_claim(claim) for claim in found] == [None] * len(found)


def test_the_checker_knows_every_operation_of_the_engine() -> None:
    """An operation that the engine has a rule for and the checker has not could not be checked."""
    assert set(OPERATIONS) == set(SETTINGS)


def test_the_checker_shares_no_code_with_the_engine() -> None:
    """It imports the standard library, the vocabulary of claims, and its own modules."""
    folder = Path(__file__).parents[3] / "ormas_core" / "certificates"
    own = sorted(folder.glob("check*.py"))
    assert len(own) > 5
    modules = {f"ormas_core.certificates.{path.stem}" for path in own}
    for path in own:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                ours = node.module in {*modules, "ormas_core.claims"} or names <= modules
                assert ours or str(node.module).partition(".")[0] != "ormas_core", path
            if isinstance(node, ast.Import):
                assert {alias.name for alias in node.names} <= {"math", "re"}, path


def _lines() -> Iterator[tuple[Claim, int]]:
    """Yield a line of each kind there is, from the shortest proof that has one."""
    proofs = sorted((c for name in SMALL for c in claims(name)), key=lambda c: len(c.trace))
    seen = set()
    for claim in proofs:
        for number, step in enumerate(claim.trace):
            premises = sorted(
                (u.role, u.position, claim.trace[u.step].fact or "") for u in step.uses
            )
            kind = (step.op, step.kind, step.position, step.fact, *premises)
            if kind not in seen:
                seen.add(kind)
                yield claim, number


def _still_valid(claim: Claim, what: str, line: int, changed: TraceStep) -> bool:
    """Whether a changed proof proves as much as before, by an argument without the checker.

    A node that one line only is about may have another number: the graph is the same. A premise
    about a parameter may be stronger, and either sign of a scale serves a limit. Otherwise the
    engine's own rules, written apart, must derive the changed line from the same premises.
    """
    step = claim.trace[line]
    if what == "node":
        return sum(other.node == step.node for other in claim.trace) == 1
    if what == "fact" and step.kind is StepKind.PARAMETER:
        serves = {s.kind for s in claim.trace if line in {use.step for use in s.uses}}
        return changed.fact is Fact.ZERO or serves == {StepKind.LIMIT}
    if what in ("settings", "box", "fact", "position"):
        return step.kind is not StepKind.GRADIENT and derived(changed, claim.trace)
    return False


def test_no_single_change_to_a_proof_goes_unnoticed() -> None:
    """Of thousands of proofs with one thing changed, those still accepted are still valid."""
    random = Random(0)  # noqa: S311 - the same on every machine
    tried, accepted, wrong = Counter[str](), Counter[str](), []
    for claim, line in _lines():
        for what, number, trace in changes(claim, line, random):
            tried[what] += 1
            if check_claim(replace(claim, trace=trace)) is None:
                accepted[what] += 1
                if len(trace) < len(claim.trace) or not _still_valid(
                    claim, what, number, trace[number]
                ):
                    wrong.append((what, number, claim.trace[number], trace[number : number + 1]))
    assert wrong == []
    assert sum(tried.values()) > 5000
    assert len(tried) >= 17, tried
    assert sum(accepted.values()) < 0.02 * sum(tried.values()), accepted


def test_a_change_of_the_class_of_a_norm_or_its_mode_is_noticed() -> None:
    """Evaluation mode, groups that do not fit, a bias that was not recorded as absent."""
    claim = claims("grouped")[0]
    for name, text in (
        ("training", "False"),
        ("groups", "4"),
        ("bias_sym_sizes_opt", "(6,)"),
    ):
        trace = tuple(
            replace(step, settings={**step.settings, name: text})
            if step.settings and name in step.settings
            else step
            for step in claim.trace
        )
        assert trace != claim.trace
        assert check_claim(replace(claim, trace=trace)) is not None, name


def test_a_fact_about_a_parameter_must_be_carried_on() -> None:
    """Without the line that the shift's own gradient is zero, its sign may change."""
    trace = claims("relu")[0].trace
    assert trace[-1].name == "norm.bias"
    assert check_trace(trace[:-1]) == ("line 2: the gradient of norm.bias is not proven zero there")


def test_an_operation_without_a_rule_is_named() -> None:
    """What the checker does not understand it rejects."""
    trace = tuple(
        replace(step, op="custom Foo") if step.op == "ReluBackward0" else step
        for step in claims("relu")[0].trace
    )
    assert check_trace(trace) == "line 4: no rule for custom Foo"


def test_an_operation_comes_after_what_it_uses() -> None:
    """Numbers of nodes are an order of the graph: the relu cannot come before its operand."""
    trace = [
        replace(step, node=0) if step.op == "ReluBackward0" else step
        for step in claims("relu")[0].trace
    ]
    assert check_trace(trace) == "line 4: an operation does not use what comes after it"


def test_a_parameter_is_one_leaf() -> None:
    """Under one name at two nodes, a zero gradient of one would pass for that of both."""
    trace = [
        replace(step, name="conv.weight") if step.name else step for step in claims("relu")[0].trace
    ]
    assert check_trace(trace) == "line 2: conv.weight is at two nodes"


def test_what_nobody_uses_may_be_the_loss() -> None:
    """The gradient of the loss itself is one: only other outputs may be without uses."""
    end = claims("relu")[0].trace[-1]
    alone = replace(end, op="SumBackward0", name="", users=0, uses=(), operands=((6, 2),))
    assert check_trace([alone]) == f"node {end.node} may be the loss: nobody uses it"


def test_a_use_that_other_lines_know_of_cannot_be_left_out() -> None:
    """The power in a tanh GELU reads the hidden unit, as the proof itself says elsewhere."""
    claim = next(c for c in claims("gpt2") if c.kind is UnitKind.UNIT)
    number = next(i for i, step in enumerate(claim.trace) if step.users == 3)
    step = claim.trace[number]
    assert claim.trace[step.uses[0].step].op == "PowBackward0"
    rest = tuple(replace(use, position=place) for place, use in enumerate(step.uses[1:]))
    trace = list(claim.trace)
    trace[number] = replace(step, users=2, uses=rest)
    assert "leaves out its use" in str(check_trace(trace))


def _large(batch: int, width: int, hidden: int) -> list[TraceStep]:
    """Return a proof by hand: a relu unit of a huge layer with zero weights and no bias."""
    whole, unit = (0, width, width), (5, 6, hidden)
    rows = (0, batch, batch)
    weight: dict[str, Any] = {
        "node": 0, "op": "parameter", "name": "fc.weight", "shape": (width, hidden),
        "box": (whole, unit), "outputs": ((width, hidden),),
    }  # fmt: skip
    mm: dict[str, Any] = {
        "node": 1, "op": "MmBackward0", "shape": (batch, hidden), "box": (rows, unit),
        "operands": ((batch, hidden), (width, hidden)), "outputs": ((batch, hidden),),
    }  # fmt: skip
    relu: dict[str, Any] = {
        "node": 2, "op": "ReluBackward0", "shape": (batch, hidden), "box": (rows, unit),
        "operands": ((batch, hidden),), "outputs": ((batch, hidden),),
    }  # fmt: skip
    return [
        TraceStep(kind=StepKind.PARAMETER, fact=Fact.ZERO, **weight),
        TraceStep(
            kind=StepKind.VALUE,
            fact=Fact.ZERO,
            uses=(Use(step=0, role="operand", position=1),),
            **mm,
        ),
        TraceStep(kind=StepKind.BACKWARD, uses=(Use(step=1, role="operand", position=0),), **relu),
        TraceStep(
            kind=StepKind.GRADIENT, users=1, uses=(Use(step=2, role="user", position=0),), **mm
        ),
        TraceStep(
            kind=StepKind.BACKWARD,
            uses=(Use(step=3, role="output", position=0),),
            **{**mm, "position": 1, "shape": (width, hidden), "box": (whole, unit)},
        ),
        TraceStep(
            kind=StepKind.GRADIENT, users=1, uses=(Use(step=4, role="user", position=0),), **weight
        ),
    ]


def test_the_size_of_a_tensor_does_not_matter() -> None:
    """No element is ever looked at: a layer of 10**21 elements is checked like a small one."""
    steps = _large(64 * 4096, 10**10, 10**11)
    assert check_trace(steps) is None
    steps[1] = replace(steps[1], box=((0, 64 * 4096, 64 * 4096), (5, 10**10, 10**11)))
    assert check_trace(steps) == "line 1: MmBackward0 does not give it from these premises"


def _any_step() -> st.SearchStrategy[TraceStep]:
    size = st.integers(-1, 6) | st.sampled_from((10**6, 2**60))
    shape = st.lists(size, max_size=4).map(tuple)
    span = st.tuples(size, size, size)
    text = st.sampled_from(("True", "None", "(1, 0)", "-1", "1e400", "nan", "(", "9" * 500, ""))
    names = sorted({name for used in SETTINGS.values() for name in used})
    return st.builds(
        TraceStep,
        kind=st.sampled_from(StepKind),
        node=st.integers(-1, 4) | size,
        op=st.sampled_from((*sorted(OPERATIONS), "parameter", "custom Foo", "")),
        name=st.sampled_from(("", "a.weight")),
        fact=st.none() | st.sampled_from(Fact),
        position=size,
        shape=shape,
        box=st.lists(span, max_size=4).map(tuple),
        operands=st.lists(shape, max_size=3).map(tuple),
        outputs=st.lists(shape, max_size=3).map(tuple),
        settings=st.none() | st.dictionaries(st.sampled_from(names), text, max_size=6),
        users=size,
        uses=st.lists(
            st.builds(
                Use,
                step=st.integers(-1, 3),
                role=st.sampled_from(("operand", "output", "user", "")),
                position=st.integers(-1, 2),
            ),
            max_size=3,
        ).map(tuple),
    )


@given(st.lists(_any_step(), max_size=4))
def test_nonsense_is_rejected_without_an_error(steps: list[TraceStep]) -> None:
    """Whatever the lines are, the answer is a sentence."""
    assert isinstance(check_trace(steps), str)


@given(
    st.sampled_from(SMALL),
    st.lists(st.tuples(st.integers(0, 10**6), _any_step(), st.sets(st.integers(0, 13)))),
)
def test_any_change_at_all_gives_an_answer(
    name: str, wild: list[tuple[int, TraceStep, set[int]]]
) -> None:
    """Lines with many fields replaced at once are believed or not, and never an error."""
    claim = claims(name)[0]
    trace = list(claim.trace)
    names = [field.name for field in fields(TraceStep)]
    for place, other, chosen in wild:
        number = place % len(trace)
        changed = {names[i]: getattr(other, names[i]) for i in chosen if i < len(names)}
        trace[number] = replace(trace[number], **changed)
    doubt = check_claim(replace(claim, trace=tuple(trace)))
    assert doubt is None or isinstance(doubt, str)


@pytest.mark.parametrize("value", [None, "x", 1.5, (1.5,), ("x",), [1], (None,), ((1, 2),), True])
def test_fields_of_another_type_are_no_error(value: Any) -> None:
    """A record may have been written by anyone."""
    claim = claims("relu")[0]
    for field in fields(TraceStep):
        trace = list(claim.trace)
        trace[3] = replace(trace[3], **{field.name: value})
        assert check_trace(trace) is not None, field.name
    assert check_trace([value]) is not None
