"""MonitorConfig: every value is checked where it is handed over."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ormas_core.config import MonitorConfig
from ormas_core.errors import ConfigError, UnknownOptionError
from ormas_core.facts import TROUBLE
from ormas_core.terms import STOP_REASONS, Diagnosis

LEAST_INTEGERS = {
    "check_every": 1,
    "warmup": 2,
    "seed": 0,
    "baseline_memory": 2,
    "alarm_confirmations": 1,
    "skipped_steps_limit": 1,
    "anchor_every": 1,
    "patience": 1,
    "slope_min_layers": 6,
}
LEAST_NUMBERS = {
    "sigma": 0.0,
    "alarm_min_decades": 0.0,
    "alarm_decades_at_once": 0.0,
    "loss_spike_ratio": 1.0,
    "slope_min_decades": 1.0,
    "lock_stale": 1.0,
    "clip_factor_min": 0.0,
}


def refusal(name: str, value: Any) -> str:
    """Return the message with which a value is refused."""
    with pytest.raises(ConfigError) as caught:
        MonitorConfig(**{name: value})
    assert caught.value.subject == name
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


def test_every_field_is_covered_by_these_tests() -> None:
    """A new field needs its range here."""
    fields = {field.name for field in dataclasses.fields(MonitorConfig)}
    assert fields == {
        "layers",
        "lr_max",
        "certify_optimizers",
        "stop_on",
        *LEAST_INTEGERS,
        *LEAST_NUMBERS,
    }


def test_the_defaults_are_a_contract() -> None:
    """A changed default changes what existing runs alarm at."""
    assert dataclasses.asdict(MonitorConfig()) == {
        "layers": None,
        "check_every": 50,
        "warmup": 8,
        "sigma": 2.5,
        "baseline_memory": 64,
        "alarm_min_decades": 1.0,
        "alarm_confirmations": 2,
        "alarm_decades_at_once": 4.0,
        "loss_spike_ratio": 1.5,
        "skipped_steps_limit": 25,
        "anchor_every": 20,
        "lock_stale": 600.0,
        "patience": 4,
        "lr_max": None,
        "certify_optimizers": (),
        "seed": 0,
        "slope_min_layers": 8,
        "slope_min_decades": 8.0,
        "clip_factor_min": 0.01,
        "stop_on": (),
    }


@pytest.mark.parametrize(("name", "least"), LEAST_INTEGERS.items())
def test_integers_below_their_least_are_refused(name: str, least: int) -> None:
    """With the name, the least value and the value given."""
    expected = f"{name} must be a whole number of at least {least}; got "
    assert refusal(name, least - 1) == f"{expected}{least - 1}"
    assert refusal(name, -7) == f"{expected}-7"
    assert getattr(MonitorConfig(**{name: least}), name) == least


@pytest.mark.parametrize("name", LEAST_INTEGERS)
@pytest.mark.parametrize("value", [True, False, 3.0, math.nan, "3", None, [3], np.float64(3.0)])
def test_what_is_no_integer_is_refused(name: str, value: Any) -> None:
    """A bool is an int to Python, and a mistake here."""
    assert refusal(name, value).endswith(f"got {value!r}")


@pytest.mark.parametrize(("name", "least"), LEAST_NUMBERS.items())
def test_numbers_below_their_least_are_refused(name: str, least: float) -> None:
    """With the name, the least value and the value given."""
    below = math.nextafter(least, -math.inf)
    assert refusal(name, below) == f"{name} must be a finite number >= {least}; got {below!r}"
    assert getattr(MonitorConfig(**{name: least}), name) == least


@pytest.mark.parametrize("name", LEAST_NUMBERS)
@pytest.mark.parametrize(
    "value", [True, False, math.nan, math.inf, -math.inf, 10**400, "2.5", None, [2.5], 1j]
)
def test_what_is_no_finite_number_is_refused(name: str, value: Any) -> None:
    """NaN above all: every comparison with it would be false, and no alarm ever said."""
    assert refusal(name, value).endswith(f"got {value!r}")


@pytest.mark.parametrize("value", [3, np.float64(3.0)])
def test_numbers_become_plain_floats(value: Any) -> None:
    """So that the record and a comparison see one type."""
    sigma = MonitorConfig(sigma=value).sigma
    assert type(sigma) is float
    assert sigma == 3.0


@pytest.mark.parametrize(
    ("given_", "kept"),
    [
        (None, None),
        ("encoder.*", ("encoder.*",)),
        (["encoder.*", "head"], ("encoder.*", "head")),
        (("head",), ("head",)),
    ],
)
def test_layers_may_be_a_pattern_or_several(given_: Any, kept: tuple[str, ...] | None) -> None:
    """They are kept as a tuple."""
    assert MonitorConfig(layers=given_).layers == kept


@pytest.mark.parametrize(
    "value", ["", [], (), [""], ["head", ""], [3], 3, True, b"head", {"head"}, {"head": 1}, [None]]
)
def test_layers_of_another_form_are_refused_with_an_example(value: Any) -> None:
    """An empty list would watch nothing; a set has no order."""
    message = refusal("layers", value)
    assert message.endswith(f"got {value!r}")
    assert "['features.*', 'head']" in message


def test_a_config_cannot_be_changed() -> None:
    """What the record says at the start holds to the end."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        MonitorConfig().sigma = 1.0  # type: ignore[misc]


def test_replace_returns_a_changed_copy() -> None:
    """The other values stay, and the original does."""
    config = MonitorConfig(patience=9)
    changed = config.replace({"sigma": 3, "layers": "head"})
    assert changed == MonitorConfig(patience=9, sigma=3.0, layers=("head",))
    assert config == MonitorConfig(patience=9)


def test_replace_refuses_unknown_names_with_the_known_ones() -> None:
    """As the error of a misspelt keyword."""
    with pytest.raises(UnknownOptionError, match="Unknown option 'sigmas'") as caught:
        MonitorConfig().replace({"sigmas": 3.0})
    assert caught.value.subject == "sigmas"
    assert isinstance(caught.value, TypeError)
    names = ", ".join(field.name for field in dataclasses.fields(MonitorConfig))
    assert str(caught.value) == f"Unknown option 'sigmas'. The options are: {names}."


def test_replace_checks_values_too() -> None:
    """There is no way around the ranges."""
    with pytest.raises(ConfigError, match="warmup"):
        MonitorConfig().replace({"warmup": 1})


@given(
    st.fixed_dictionaries(
        {},
        optional={
            **{name: st.integers(least, 10**6) for name, least in LEAST_INTEGERS.items()},
            **{name: st.floats(least, 1e300) for name, least in LEAST_NUMBERS.items()},
        },
    )
)
def test_every_value_in_range_is_accepted_and_kept(values: dict[str, Any]) -> None:
    """All combinations."""
    config = MonitorConfig(**values)
    assert {name: getattr(config, name) for name in values} == values
    assert MonitorConfig().replace(values) == config


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, "0.1", True])
def test_a_learning_rate_to_cover_is_a_number_or_none(value: Any) -> None:
    """Negative, infinite and other values are refused; None and numbers are kept."""
    assert refusal("lr_max", value).startswith("lr_max must be a finite number >= 0.0; got ")
    assert MonitorConfig(lr_max=1).lr_max == 1.0
    assert MonitorConfig(lr_max=None).lr_max is None


@pytest.mark.parametrize("value", [[""], [3], 3, ["Lion", None]])
def test_optimizers_to_trust_are_class_names(value: Any) -> None:
    """One name or several; anything else is refused with an example."""
    assert "such as ['Lion']" in refusal("certify_optimizers", value)
    assert MonitorConfig(certify_optimizers="Lion").certify_optimizers == ("Lion",)
    assert MonitorConfig(certify_optimizers=["Lion", "Sophia"]).certify_optimizers == (
        "Lion",
        "Sophia",
    )


@pytest.mark.parametrize(
    ("given_", "kept"),
    [
        ("nonfinite_loss", ("nonfinite_loss",)),
        (["alarm:exploding", "loss_spike", "alarm:exploding"], ("alarm:exploding", "loss_spike")),
        ((), ()),
    ],
)
def test_reasons_to_stop_may_be_one_or_several(given_: Any, kept: tuple[str, ...]) -> None:
    """Each counts once, in the order given."""
    assert MonitorConfig(stop_on=given_).stop_on == kept


@pytest.mark.parametrize("value", ["nan", ["nonfinite_loss", "alarm:loud"], 3, [None], None, [[]]])
def test_unknown_reasons_to_stop_are_refused_with_the_known_ones(value: Any) -> None:
    """A misspelt one would never stop anything."""
    text = refusal("stop_on", value)
    assert "nonfinite_loss" in text
    assert "alarm:exploding" in text


def test_reasons_to_stop_are_alarms_of_a_run() -> None:
    """Everything that counts as an alarm, a check that saw nothing, and a certificate."""
    kinds = {event.kind for event in TROUBLE}
    diagnoses = {f"alarm:{diagnosis}" for diagnosis in Diagnosis}
    assert set(STOP_REASONS) == kinds | diagnoses | {"no_gradients", "certificate"}
