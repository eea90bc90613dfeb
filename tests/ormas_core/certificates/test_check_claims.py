"""A claim is checked against its own proof: units, class, conditions and limits."""

from dataclasses import replace

from checker_models import claims

from ormas_core.certificates.checker import check_claim, check_limit, check_trace
from ormas_core.claims import (
    CertificateClass,
    Claim,
    Condition,
    StepKind,
    TraceStep,
    UnitKind,
)


def test_a_claim_says_what_its_proof_proves() -> None:
    """Another unit, layer, kind, class, engine or no condition: each is noticed."""
    claim = claims("relu")[0]
    for changed, doubt in (
        (replace(claim, units=(2,)), "unit 2 of conv is zero"),
        (replace(claim, units=()), "no units"),
        (replace(claim, units=(-1,)), "no units"),
        (replace(claim, layer="head"), "unit 3 of head is zero"),
        (replace(claim, layer=""), "unit 3 of  is zero"),
        (replace(claim, engine=0), "engine 0"),
        (replace(claim, trace=()), "between 1 and"),
        (replace(claim, trace=claim.trace[5:]), "line 0"),
        (replace(claim, cls=CertificateClass.BOUNDED), "0 lines with limits"),
        (replace(claim, conditions=()), "does not state lr_max"),
    ):
        assert doubt in str(check_claim(changed))
    assert check_claim(replace(claim, units=(3, 4))) is None  # The proof is for the first unit.
    assert check_claim(replace(claim, cls=CertificateClass.CLOSED_NOW, conditions=())) is None
    assert check_claim(replace(claim, engine=0), engines=(0,)) is None


def test_a_condition_is_a_number_and_met() -> None:
    """What was seen at the time of the proof keeps to the limit."""
    claim = claims("relu")[0]
    for value, seen in ((0.1, 0.2), (float("nan"), None), (-1.0, None), (float("inf"), 0.0)):
        conditions = tuple(
            replace(c, value=value, seen=seen) if c.name == "lr_max" else c
            for c in claim.conditions
        )
        assert str(check_claim(replace(claim, conditions=conditions))).startswith("lr_max is")


def test_columns_are_units_where_the_weight_multiplies_from_the_right() -> None:
    """A row of a weight that is stored as (inputs, outputs) is an input, not a unit."""
    claim = next(c for c in claims("gpt2") if c.kind is UnitKind.UNIT)
    assert claim.layer == "transformer.h.0.mlp.c_fc"
    assert check_claim(claim) is None
    # The proof also closes row 7 of the projection after it, which is its input 7.
    moved = replace(claim, layer="transformer.h.0.mlp.c_proj")
    assert "unit 7 of transformer.h.0.mlp.c_proj" in str(check_claim(moved))


def test_heads_are_counted_as_the_proof_splits_them() -> None:
    """Head 1 of four: its rows are 3 to 5, and no other head is concluded."""
    for claim in claims("qk fused"):
        assert (claim.kind, claim.units) == (UnitKind.HEAD, (1,))
        assert "unit 2" in str(check_claim(replace(claim, units=(2,))))
        assert "unit 1" in str(check_claim(replace(claim, kind=UnitKind.UNIT)))


def _bounded() -> tuple[Claim, int, TraceStep]:
    claim = claims("bounded")[0]
    assert claim.cls is CertificateClass.BOUNDED
    number = next(i for i, step in enumerate(claim.trace) if step.kind is StepKind.LIMIT)
    return claim, number, claim.trace[number]


def test_limits_are_stated_in_the_claim() -> None:
    """Without m_max or x_max, or with larger or exceeded ones, a claim is none."""
    claim, _, step = _bounded()
    assert check_limit(step, claim) is None
    for name in ("m_max", "x_max"):
        others = tuple(c for c in claim.conditions if c.name != name)
        assert f"does not state {name}" in str(check_claim(replace(claim, conditions=others)))
        own = next(c for c in claim.conditions if c.name == name)
        for changed, doubt in (
            (replace(own, value=own.value * 1.01), "larger in the claim"),
            (replace(own, seen=own.value * 1.01), "was seen"),
            (replace(own, layer="other"), f"does not state {name} for norm"),
        ):
            conditions = (*others, changed)
            assert doubt in str(check_claim(replace(claim, conditions=conditions)))
    assert "1 lines with limits" in str(check_claim(replace(claim, cls=CertificateClass.ABSORBING)))


def test_an_input_keeps_well_below_its_limit() -> None:
    """A sixteenth of x_max is allowed."""
    claim, _, _ = _bounded()
    for factor, fine in ((1 / 16, True), (1 / 15, False)):
        conditions = tuple(
            replace(c, seen=c.value * factor) if c.name == "x_max" else c for c in claim.conditions
        )
        assert (check_claim(replace(claim, conditions=conditions)) is None) is fine


def test_the_numbers_of_a_limit_must_leave_room() -> None:
    """Each number of the formula is checked against the others, and none may be missing."""
    claim, number, step = _bounded()
    numbers = dict(step.settings or {})
    for name, text, doubt in (
        ("scale", "1.0", "leave no room"),
        ("scale", "-1e-4", "do not fit"),
        ("shift", "-0.001", "leave no room"),
        ("shift", "0.0", "do not fit"),
        ("m_max", "4e6", "leave no room"),
        ("m_max", "2.0", "does not give it"),
        ("m_max", "nan", "nan"),
        ("x_max", "1e9", "no room for rounding"),
        ("roundoff", "1e-30", "too few roundings"),
        ("m_factor", "1.0", "too few roundings"),
        ("decay_margin", "0.5", "do not fit"),
        ("decay_margin", "4000", "leave no room"),
        ("training", "False", "statistics of the batch"),
        ("eps", "1.0", "described in two ways"),
    ):
        trace = list(claim.trace)
        trace[number] = replace(step, settings={**numbers, name: text})
        assert doubt in str(check_trace(trace)), (name, text)
        trace[number] = replace(step, settings={k: v for k, v in numbers.items() if k != name})
        assert check_trace(trace) is not None, name


def test_conditions_are_read_by_name() -> None:
    """A surplus condition harms nothing."""
    claim = claims("relu")[0]
    more = (*claim.conditions, Condition(name="other", value=-1.0))
    assert check_claim(replace(claim, conditions=more)) is None
