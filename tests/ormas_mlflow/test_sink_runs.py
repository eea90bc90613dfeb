"""Which run the sink takes, in a real SQLite store, and that it leaves every other one alone."""

import os
import shutil
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient
from mlflow_support import alarm, all_runs, feed, ormas_tags, run_end, sql_store, user_run

from ormas_core import NonfiniteLoss, Status
from ormas_core.testing import run_start
from ormas_mlflow import MLflowSink

pytestmark = sql_store


@pytest.mark.parametrize(
    ("status", "expected"), [(Status.PROBLEM, "FINISHED"), (Status.INTERRUPTED, "FAILED")]
)
def test_owned_run_is_terminated(store: str, status: Status, expected: str) -> None:
    """A run that the sink opened ends with the training, as failed where that was interrupted."""
    sink = MLflowSink(tracking_uri=store, experiment="owned")
    sink.write(run_start())
    sink.write(run_end(status))
    sink.close()
    assert sink.run_id is not None
    info = MlflowClient(tracking_uri=store).get_run(sink.run_id).info
    assert info.status == expected
    assert info.end_time is not None


def test_run_that_never_ended_is_failed(store: str) -> None:
    """Closed without an end, the run reads interrupted, as the record does."""
    sink = MLflowSink(tracking_uri=store, experiment="owned")
    sink.write(run_start())
    sink.close()
    assert sink.run_id is not None
    run = MlflowClient(tracking_uri=store).get_run(sink.run_id)
    assert (run.info.status, run.data.tags["ormas.status"]) == ("FAILED", "interrupted")


def test_second_fit_goes_on_in_the_owned_run(store: str) -> None:
    """A further segment reopens the same run, adds to it, and ends it again."""
    sink = MLflowSink(tracking_uri=store, experiment="segments")
    feed(sink, alarm(step=3))
    first = sink.run_id
    before = all_runs(store).keys()
    feed(sink, alarm(step=5), segment=1)
    assert sink.run_id == first
    assert all_runs(store).keys() == before
    assert ormas_tags(store, first)["ormas.alarms"] == "2"
    assert "step 3: " in ormas_tags(store, first)["ormas.alarm.fc1"]
    assert "step 5 of segment 1: " in ormas_tags(store, first)["ormas.alarm.fc1"]
    assert all_runs(store)[first or ""].info.status == "FINISHED"


def test_segment_may_start_before_the_last_one_was_closed(store: str) -> None:
    """A loop that is restarted without an end still uses one run, and its events stay in order."""
    sink = MLflowSink(tracking_uri=store, experiment="segments")
    before = all_runs(store).keys()
    sink.write(run_start())
    sink.write(alarm())
    feed(sink, segment=1)
    assert len(all_runs(store).keys() - before) == 1
    tags = ormas_tags(store, sink.run_id)
    assert tags["ormas.alarms"] == "1"
    assert tags["ormas.status"] == "interrupted"  # the first segment's verdict is the worse one


def test_another_trial_on_the_same_sink_is_another_run(store: str) -> None:
    """A new record on a reused sink, as in a parameter search, starts from nothing."""
    sink = MLflowSink(tracking_uri=store, experiment="trials")
    feed(sink, alarm())
    first = sink.run_id
    feed(sink)
    assert sink.run_id != first
    assert ormas_tags(store, sink.run_id)["ormas.alarms"] == "0"


def test_active_run_is_used_and_left_alone(store: str) -> None:
    """Tags go to the user's run, which stays active, running and named as it was."""
    mlflow.set_tracking_uri(store)
    mlflow.set_experiment("user")
    sink = MLflowSink()
    with mlflow.start_run(run_name="mine") as run:
        before = all_runs(store).keys()
        feed(sink, alarm())
        assert mlflow.active_run() is not None
        assert mlflow.active_run().info.run_id == run.info.run_id  # type: ignore[union-attr]
        kept = MlflowClient().get_run(run.info.run_id).info
        assert (kept.status, kept.run_name, kept.end_time) == ("RUNNING", "mine", None)
    assert sink.run_id == run.info.run_id
    assert all_runs(store).keys() == before
    assert ormas_tags(store, run.info.run_id)["ormas.alarms"] == "1"
    assert mlflow.get_tracking_uri() == store


def test_innermost_active_run_is_used(store: str) -> None:
    """With nested runs, tags go to the one that was active at the start, and to no other."""
    mlflow.set_tracking_uri(store)
    mlflow.set_experiment("user")
    with mlflow.start_run() as outer, mlflow.start_run(nested=True) as inner:
        sink = MLflowSink()
        sink.write(run_start())
        with mlflow.start_run(nested=True) as later:
            sink.write(alarm())
            sink.write(run_end())
            sink.close()
    assert ormas_tags(store, inner.info.run_id)["ormas.alarms"] == "1"
    assert ormas_tags(store, outer.info.run_id) == ormas_tags(store, later.info.run_id) == {}


def test_tags_land_after_the_framework_has_ended_the_run(store: str) -> None:
    """A run that is ended in the middle still gets every tag, and no other run is opened."""
    mlflow.set_tracking_uri(store)
    mlflow.set_experiment("user")
    sink = MLflowSink()
    with mlflow.start_run() as run:
        before = all_runs(store).keys()
        sink.write(run_start())
    sink.write(alarm())
    sink.write(NonfiniteLoss(step=70, value=float("inf")))
    sink.write(run_end(Status.PROBLEM))
    sink.close()
    tags = ormas_tags(store, run.info.run_id)
    assert (tags["ormas.status"], tags["ormas.alarms"]) == ("problem", "2")
    assert all_runs(store).keys() == before
    assert MlflowClient().get_run(run.info.run_id).info.status == "FINISHED"


def test_second_fit_without_an_active_run_stays_with_the_first(store: str) -> None:
    """A framework that opens its run only once does not make the sink open another."""
    mlflow.set_tracking_uri(store)
    mlflow.set_experiment("user")
    sink = MLflowSink()
    with mlflow.start_run() as run:
        feed(sink, alarm(step=3))
    before = all_runs(store).keys()
    feed(sink, alarm(step=5), segment=1)
    assert all_runs(store).keys() == before
    assert sink.run_id == run.info.run_id
    assert ormas_tags(store, run.info.run_id)["ormas.alarms"] == "2"
    with mlflow.start_run() as other:
        feed(sink, segment=2)
    assert ormas_tags(store, other.info.run_id)["ormas.alarms"] == "0"


def test_runs_of_another_store_do_not_count(
    store: str, new_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An explicit store is never sent the id of a run that lives elsewhere."""
    (tmp_path / "own").mkdir()
    shutil.copy(new_database, tmp_path / "own")
    own = MLflowSink.embedded(tmp_path / "own")
    mlflow.set_tracking_uri(store)
    mlflow.set_experiment("user")
    with mlflow.start_run() as run:
        feed(own)
    assert own.run_id != run.info.run_id
    assert ormas_tags(store, run.info.run_id) == {}
    monkeypatch.setenv("MLFLOW_RUN_ID", run.info.run_id)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    feed(own)
    assert own.run_id != run.info.run_id


def test_run_named_by_the_environment_is_used(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`MLFLOW_RUN_ID` names the run where nothing closer does; it is not terminated."""
    run_id = user_run(store)
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    before = all_runs(store).keys()
    feed(MLflowSink(tracking_uri=store))
    assert all_runs(store).keys() == before
    assert ormas_tags(store, run_id)["ormas.status"] == "healthy"
    assert all_runs(store)[run_id].info.status == "RUNNING"
    assert os.environ["MLFLOW_RUN_ID"] == run_id


def test_given_run_wins_and_settings_may_change(store: str) -> None:
    """Attaching again to a run adds to its alarms; nothing in it is write-once."""
    run_id = user_run(store)
    mlflow.set_tracking_uri(store)
    mlflow.set_experiment("user")
    with mlflow.start_run() as other:
        feed(MLflowSink(run_id=run_id), alarm(step=3))
        feed(MLflowSink(run_id=run_id), alarm(step=5), alarm("fc2"))
    tags = ormas_tags(store, run_id)
    assert tags["ormas.alarms"] == "3"
    assert tags["ormas.alarm.fc1"] == (
        "exploding at step 3: 100, normal 1 | exploding at step 5: 100, normal 1"
    )
    assert ormas_tags(store, other.info.run_id) == {}
    assert MlflowClient().get_run(run_id).data.params == {}
