"""Keys and values are legal for MLflow whatever a layer is called, and say what happened."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_length_limit, _validate_tag_name
from tag_support import ANY_NAME, alarm, cleared, fold, nonfinite, run_end

from ormas_core import (
    Alarm,
    Anchor,
    Diagnosis,
    LossRecovered,
    LossSpike,
    NonfiniteLoss,
    NotLearning,
    Stage,
    Status,
)
from ormas_core.testing import run_start
from ormas_mlflow.tags import alarm_key


@given(ANY_NAME)
def test_every_layer_name_makes_a_key_mlflow_takes(layer: str) -> None:
    """A key passes MLflow's own checks of names and length for any name at all."""
    key = alarm_key(layer)
    _validate_tag_name(key)
    _validate_length_limit("key", 250, key)
    assert key.startswith("ormas.alarm.")
    assert key.encode().decode() == key
    assert alarm_key(layer) == key


@given(st.sets(ANY_NAME, min_size=2, max_size=5))
def test_two_layers_never_share_a_key(layers: set[str]) -> None:
    """Different names give different keys."""
    assert len({alarm_key(layer) for layer in layers}) == len(layers)


@pytest.mark.parametrize(
    "layer",
    ["fc1", "encoder.layer.11.attention.self.query", "Net", "слой.1", "a b", "x-1_y", "d" * 238],
)
def test_legal_names_are_kept(layer: str) -> None:
    """A name MLflow takes is the key's end as it is, so that a person can type it into a filter."""
    assert alarm_key(layer) == f"ormas.alarm.{layer}"


@pytest.mark.parametrize(
    "layer",
    ["a/../b", "a//b", "a/", "/a", "../a", "w[0]", "f(x)", "a@b", "a#1", "`a`", " a", "a ", "a\nb",
     "", "a:b", "d" * 239, "d" * 300, "\ud800", "\x00"],
)  # fmt: skip
def test_illegal_names_are_cleaned_and_still_told_apart(layer: str) -> None:
    """A name MLflow refuses ends in a hash, and a layer that bears the cleaned name has another."""
    key = alarm_key(layer)
    _validate_tag_name(key)
    assert len(key) <= 250
    bearer = key.removeprefix("ormas.alarm.")
    assert bearer != layer
    assert alarm_key(bearer) != key


def test_names_that_are_equal_after_cleaning_stay_apart() -> None:
    """Two names that clean to the same text keep a tag each."""
    tags = fold(run_start(), alarm("w[0]"), alarm("w(0)"))
    assert len([key for key in tags if key.startswith("ormas.alarm.")]) == 2


def test_changed_key_says_the_original_name() -> None:
    """The value names the layer where the key could not."""
    tags = fold(run_start(), alarm("w[0]"))
    assert tags[alarm_key("w[0]")] == "w[0]: exploding at step 60: 1.36e+05, normal 0.132"


def test_start_of_a_run() -> None:
    """A run begins as running, without alarms, and with the id that its record bears."""
    assert fold(run_start()) == {
        "ormas.status": "running",
        "ormas.alarms": "0",
        "ormas.run_id": "0" * 32,
    }


def test_alarm_says_diagnosis_step_and_value_against_normal() -> None:
    """The tag of an alarm has the four things a person asks for."""
    tags = fold(run_start(), alarm())
    assert tags["ormas.alarm.fc1"] == "exploding at step 60: 1.36e+05, normal 0.132"
    assert tags["ormas.alarms"] == "1"


def test_missing_gradient_says_which_kind() -> None:
    """Zero and absent gradients both have the value 0, so the text tells them apart."""
    event = Alarm(
        step=5,
        layer="fc1",
        diagnosis=Diagnosis.NO_GRADIENT,
        value=0.0,
        normal=0.5,
        sigma=math.inf,
        stage=Stage.UNSCALED,
        detail="the parameters have no .grad",
    )
    assert fold(run_start(), event)["ormas.alarm.fc1"] == (
        "no_gradient at step 5: 0 (the parameters have no .grad), normal 0.5"
    )


def test_cleared_alarm_says_so_and_still_counts() -> None:
    """The end of an episode is added to its text; the number of alarms stays."""
    tags = fold(run_start(), alarm(), cleared())
    assert tags["ormas.alarm.fc1"] == (
        "exploding at step 60: 1.36e+05, normal 0.132 (cleared at step 90)"
    )
    assert tags["ormas.alarms"] == "1"


def test_clearing_does_not_hide_a_nonfinite_gradient_in_between() -> None:
    """Each episode of a layer keeps its own end."""
    tags = fold(run_start(), alarm(), nonfinite("fc1", "fc0", step=70), cleared())
    assert tags["ormas.alarm.fc1"] == (
        "exploding at step 60: 1.36e+05, normal 0.132 (cleared at step 90); "
        "nonfinite at step 70: 3 NaN and 1 Inf, loss 0.5, first of 2 layers"
    )


def test_nonfinite_gradient_is_one_tag_for_the_first_layer() -> None:
    """Layers that are only consequences get no tag."""
    tags = fold(run_start(), nonfinite("block.4", "block.3", "block.2"))
    assert [key for key in tags if key.startswith("ormas.alarm.")] == ["ormas.alarm.block.4"]
    assert tags["ormas.alarms"] == "1"


def test_loss_has_a_tag_that_no_layer_can_take() -> None:
    """A layer called loss and the loss itself are told apart."""
    spike = LossSpike(step=30, value=12.0, normal=2.0, sigma=9.0)
    tags = fold(run_start(), spike, alarm("loss"))
    assert tags["ormas.loss"] == "spike at step 30: 12, normal 2"
    assert tags["ormas.alarm.loss"].startswith("exploding")


def test_loss_episodes_are_all_kept() -> None:
    """A spike that recovered and a later NaN are both there."""
    tags = fold(
        run_start(),
        LossSpike(step=30, value=12.0, normal=2.0, sigma=9.0),
        LossRecovered(step=40, value=2.1, normal=2.0, since_step=30),
        NonfiniteLoss(step=50, value=math.nan),
    )
    assert tags["ormas.loss"] == (
        "spike at step 30: 12, normal 2 (recovered at step 40); nonfinite at step 50: nan"
    )
    assert tags["ormas.alarms"] == "2"


def test_run_that_does_not_learn() -> None:
    """A collapsed loss scale has its own tag."""
    event = NotLearning(
        step=3, layer="fc1", skipped=25, scale_before=65536.0, scale=0.002, since_step=3
    )
    assert fold(run_start(), event)["ormas.not_learning"] == (
        "stuck at step 3: 25 updates skipped, scale 65536 -> 0.002, overflow in fc1"
    )


def test_record_head_and_verdict() -> None:
    """The head of the last anchor is there in full, and the verdict of the end."""
    anchor = Anchor(step=100, head="ab" * 32, lines=9, metrics_head="", metrics_rows=1)
    tags = fold(run_start(), run_end(Status.WARNINGS), anchor)
    assert tags["ormas.record.head"] == "ab" * 32
    assert tags["ormas.status"] == "warnings"
