"""Keys and values are legal for MLflow whatever a layer is called, and say what happened."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_length_limit, _validate_tag, _validate_tag_name

from ormas_core import (
    TROUBLE,
    Alarm,
    AlarmCleared,
    Anchor,
    Diagnosis,
    Event,
    ExpertShare,
    ExpertsStarving,
    GradientSlope,
    LossRecovered,
    LossSpike,
    NonfiniteCount,
    NonfiniteGradient,
    NonfiniteLoss,
    NotLearning,
    RunEnd,
    Signal,
    Stage,
    Status,
    Trend,
)
from ormas_core.testing import measurement, run_start
from ormas_mlflow.metrics import RunMetrics
from ormas_mlflow.tags import RunTags, alarm_key, with_earlier

ANY_NAME = st.text(st.characters(), max_size=400)


def alarm(layer: str = "fc1", step: int = 60, diagnosis: Diagnosis = Diagnosis.EXPLODING) -> Alarm:
    """An alarm with the numbers of an exploding layer."""
    return Alarm(
        step=step,
        layer=layer,
        diagnosis=diagnosis,
        value=136_000.0,
        normal=0.132,
        sigma=30.0,
        stage=Stage.UNSCALED,
    )


def cleared(layer: str = "fc1", step: int = 90, since: int = 60) -> AlarmCleared:
    """The end of `alarm`."""
    return AlarmCleared(
        step=step,
        layer=layer,
        diagnosis=Diagnosis.EXPLODING,
        value=0.1,
        normal=0.132,
        since_step=since,
    )


def slope(first: str = "layers.39", last: str = "layers.1") -> GradientSlope:
    """Growth by ten from layer to layer."""
    return GradientSlope(
        step=0,
        trend=Trend.GROWING,
        signal=Signal.OUTPUTS,
        factor=10.0,
        first=first,
        last=last,
        layers=39,
        first_value=1.0,
        last_value=1e38,
        gradient_type="float32",
        layers_left=0.5,
        beyond=None,
    )


def starving(container: str = "moe", *experts: str) -> ExpertsStarving:
    """Experts that never had a row."""
    return ExpertsStarving(
        step=150,
        container=container,
        experts=8,
        starving=tuple(
            ExpertShare(expert=name, share=0.0, seen=0.0, since_step=None) for name in experts
        ),
        rare=(),
        checks=4,
    )


def nonfinite(layer: str, *others: str, step: int = 12) -> NonfiniteGradient:
    """Three NaN in `layer`, and consequences."""
    return NonfiniteGradient(
        step=step,
        layer=layer,
        layers=tuple(NonfiniteCount(layer=name, nan=3, inf=1) for name in (layer, *others)),
        after=None,
        before=None,
        output_finite=True,
        loss=0.5,
    )


def run_end(status: Status = Status.PROBLEM) -> RunEnd:
    """The end of a run."""
    return RunEnd(step=100, steps=100, checks=10, counts={}, status=status)


def fold(*events: Event, board: RunTags | None = None) -> dict[str, str]:
    """Return the tags after `events`."""
    board = board or RunTags()
    tags: dict[str, str] = {}
    for event in events:
        tags.update(board.update(event))
    return tags


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


def anchor_tags(board: RunTags, *lines: int) -> dict[str, str]:
    """Return the tags that anchors at these lines set."""
    tags: dict[str, str] = {}
    for line in lines:
        event = Anchor(step=1, head=f"{line:064x}", lines=line, metrics_head="", metrics_rows=1)
        tags |= board.update(event)
    return {key: value for key, value in tags.items() if key.startswith("ormas.record.anchors.")}


def test_every_anchor_is_kept_fifty_to_a_tag() -> None:
    """As `LINES:HEAD`, so that the first one that differs can be named; no tag is too long."""
    board = RunTags()
    fold(run_start(), board=board)
    first = anchor_tags(board, *range(2, 52))
    (text,) = first.values()
    assert text.split() == [f"{line}:{line:064x}" for line in range(2, 52)]
    assert len(text) < 5000
    assert anchor_tags(board, 10**14) == {
        f"ormas.record.anchors.00000000.{10**14}": f"{10**14}:{10**14:064x}"
    }
    assert list(first) == ["ormas.record.anchors.00000000.2"]


def test_a_process_that_resumes_a_record_keeps_the_anchors_before_it() -> None:
    """Its tags begin at a later line, so none is written over; nor is one of another record."""
    boards = [RunTags(), RunTags(), RunTags()]
    other = replace(run_start(), run_id="f" * 32)
    for board, start in zip(boards, (run_start(), run_start(segment=1), other), strict=True):
        fold(start, board=board)
    keys = [
        *anchor_tags(boards[0], 2, 5),
        *anchor_tags(boards[1], 9, 12),
        *anchor_tags(boards[2], 2, 5),
    ]
    assert len(set(keys)) == 3
    fold(run_start(segment=1), board=boards[0])
    assert list(anchor_tags(boards[0], 15)) == ["ormas.record.anchors.00000000.2"]


def test_run_without_an_end_is_interrupted() -> None:
    """Closing a run whose end never came says what the record will say."""
    board = RunTags()
    fold(run_start(), board=board)
    assert board.unfinished() == {"ormas.status": "interrupted"}


def test_segments_add_up_and_are_told_apart() -> None:
    """A second fit keeps the alarms of the first, says its own number, and the worst verdict."""
    board = RunTags()
    fold(run_start(), alarm(), run_end(Status.PROBLEM), board=board)
    again = fold(run_start(segment=1), board=board)
    assert (again["ormas.status"], again["ormas.alarms"]) == ("running", "1")
    tags = fold(alarm(step=5), run_end(Status.HEALTHY), board=board)
    assert tags["ormas.alarm.fc1"] == (
        "exploding at step 60: 1.36e+05, normal 0.132; "
        "exploding at step 5 of segment 1: 1.36e+05, normal 0.132"
    )
    assert tags["ormas.alarms"] == "2"
    assert tags["ormas.status"] == "problem"


def test_endless_episodes_stay_short() -> None:
    """The first and the latest episodes are shown, and the number of the others."""
    events = [event for step in range(0, 1000, 10) for event in (alarm(step=step), cleared())]
    text = fold(run_start(), *events)["ormas.alarm.fc1"]
    assert text.startswith("exploding at step 0:")
    assert "; 92 more; exploding at step 960:" in text
    assert text.count("exploding") == 8


@given(
    st.lists(
        st.one_of(
            st.builds(alarm, layer=ANY_NAME),
            st.builds(nonfinite, ANY_NAME, ANY_NAME),
            st.builds(slope, ANY_NAME, ANY_NAME),
            st.builds(starving, ANY_NAME, ANY_NAME),
            st.builds(
                NotLearning,
                step=st.just(1),
                layer=ANY_NAME,
                skipped=st.integers(0),
                scale_before=st.floats(),
                scale=st.floats(),
                since_step=st.just(0),
            ),
            st.builds(NonfiniteLoss, step=st.integers(0), value=st.floats()),
        ),
        max_size=30,
    )
)
def test_every_tag_is_legal_and_the_count_is_right(events: list[Event]) -> None:
    """Whatever is reported: keys and values are legal, values short, and the count is exact."""
    tags = fold(run_start(), *events)
    tags = with_earlier(tags, dict.fromkeys(tags, "x" * 8000))
    for key, value in tags.items():
        _validate_tag(key, value)
        assert len(value) < 5000
        assert value.isprintable()
        value.encode()
    assert tags["ormas.alarms"] == str(sum(isinstance(event, TROUBLE) for event in events))


def test_a_slope_and_starving_experts_have_their_tags() -> None:
    """One of the run, one under the container's name; both count as alarms."""
    tags = fold(run_start(), slope(), starving("moe.experts", "6", "7"))
    assert tags["ormas.gradient_slope"] == (
        "growing at step 0: x10 per layer from layers.39 to layers.1, 39 layers"
    )
    assert tags["ormas.alarm.moe.experts"] == (
        "starving at step 150: 2 of 8 experts without tokens, 6, 7"
    )
    assert tags["ormas.alarms"] == "2"
    again = with_earlier(tags, {"ormas.gradient_slope": "vanishing at step 3"})
    assert again["ormas.gradient_slope"].startswith("vanishing at step 3 | growing")


def test_alarms_of_an_earlier_record_stay_on_the_run() -> None:
    """A resumed run adds to what it finds: texts are joined, the count goes on."""
    earlier = {"ormas.alarms": "3", "ormas.alarm.fc1": "vanishing at step 2: 1, normal 2"}
    tags = with_earlier(fold(run_start(), alarm()), earlier)
    assert tags["ormas.alarms"] == "4"
    assert tags["ormas.alarm.fc1"] == (
        "vanishing at step 2: 1, normal 2 | exploding at step 60: 1.36e+05, normal 0.132"
    )
    assert tags["ormas.status"] == "running"


@pytest.mark.parametrize("foreign", ["", "many", "-1", "²"])
def test_foreign_count_is_not_trusted(foreign: str) -> None:
    """A count that somebody else wrote and that is no number counts as none."""
    assert with_earlier({"ormas.alarms": "2"}, {"ormas.alarms": foreign}) == {"ormas.alarms": "2"}


def test_metrics_of_a_check() -> None:
    """Loss, norm over the layers, and how many layers have a missing or zero gradient."""
    rows = RunMetrics().rows(measurement(7, {"a": 3.0, "b": 4.0, "c": None, "d": 0.0}, loss=2.5))
    assert {row.key: row.value for row in rows} == {
        "ormas.loss": 2.5,
        "ormas.gradient_norm": 5.0,
        "ormas.layers_without_gradient": 2.0,
    }
    assert {row.step for row in rows} == {7}


@given(
    st.lists(st.none() | st.floats(min_value=0.0) | st.just(math.nan), max_size=4),
    st.none() | st.floats(),
)
def test_nonfinite_values_are_never_sent(norms: list[float | None], loss: float | None) -> None:
    """Stores disagree on NaN and infinity, so no value that is sent is either."""
    named = {str(place): norm for place, norm in enumerate(norms)}
    assert all(
        math.isfinite(row.value) for row in RunMetrics().rows(measurement(0, named, loss=loss))
    )


def test_skipped_updates_do_not_pile_up_on_one_step() -> None:
    """A scaler that skips repeats the step; the attempt then takes its place."""
    metrics = RunMetrics()
    places = []
    for attempt, step in enumerate([0, 1, 2, 2, 2, 3, 4]):
        check = measurement(step, {"a": 1.0})
        rows = metrics.rows(type(check)(step=step, attempt=attempt, stage=check.stage, loss=1.0))
        places.append(rows[0].step)
    assert places == [0, 1, 2, 3, 4, 5, 6]
