"""Tags over a long run, several processes and segments stay short, legal and true."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_tag
from tag_support import ANY_NAME, alarm, cleared, fold, nonfinite, run_end, slope, starving

from ormas_core import (
    TROUBLE,
    Anchor,
    Event,
    NonfiniteLoss,
    NotLearning,
    Status,
)
from ormas_core.testing import measurement, run_start
from ormas_mlflow.metrics import RunMetrics
from ormas_mlflow.tags import RunTags, with_earlier


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
