"""What must be true of a run on several ranks, in one place."""

import hashlib
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypedDict, TypeVar

from torch import nn

from ormas_core import (
    Alarm,
    Diagnosis,
    Event,
    MemorySink,
    Monitor,
    RunEnd,
    RunStart,
    read_record,
    run_facts,
    verify_record,
)

STEPS: Final = 24
EXPLOSION_AT: Final = 14
LAYER: Final = "fc2"
EXPLODING_RANK: Final = 1
"""Only its own gradient explodes: rank 0 sees that only if it reads the reduced gradients."""

_E = TypeVar("_E", bound=Event)


@dataclass(frozen=True)
class Truth:
    """What was found, for further questions.

    Attributes:
        run: the run folder.
        events: its record.
        mlflow_run: the only run of the MLflow store, where there is one.
    """

    run: Path
    events: list[Event]
    mlflow_run: Any = None

    def every(self, kind: type[_E]) -> list[_E]:
        """Return the events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]


class Report(TypedDict):
    """What one rank hands over at its end.

    Attributes:
        steps: optimizer updates that its own loop made.
        checks: checks that its own monitor made.
        heard: events that its sinks were given.
        weights: digest of the model at the end.
    """

    rank: int
    steps: int
    checks: int
    heard: int
    weights: str


def report(rank: int, steps: int, monitor: Monitor, sink: MemorySink, model: nn.Module) -> Report:
    """Return what a rank has to say."""
    return Report(
        rank=rank,
        steps=steps,
        checks=monitor.facts.checks,
        heard=len(sink.events),
        weights=digest(model),
    )


def digest(model: nn.Module) -> str:
    """Return a hash of every bit of the model's state."""
    found = hashlib.sha256()
    for name, value in model.state_dict().items():
        found.update(name.encode())
        found.update(value.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def assert_one_truth(
    folder: Path,
    reports: Sequence[Report],
    *,
    layer: str = LAYER,
    step: int = EXPLOSION_AT,
    steps: int = STEPS,
    others: Collection[str] = (),
    tracking_uri: str | None = None,
) -> Truth:
    """Assert one record, the right layer named, every rank finished, one MLflow run.

    Args:
        folder: everything the ranks could write to.
        reports: what the ranks handed over.
        layer: the layer that was broken.
        step: when it was.
        steps: optimizer updates that each rank must have made.
        others: files that must be there besides the record's own, relative to `folder`.
        tracking_uri: the MLflow store to look into, if there is one.
    """
    run = _assert_one_record(folder, others)
    verification = verify_record(run)
    assert verification.complete, [check.sentence for check in verification.checks]
    truth = Truth(run, [line.event for line in read_record(run)])
    assert [start.world_size for start in truth.every(RunStart)] == [len(reports)]
    ends = [(end.steps, end.checks, end.error) for end in truth.every(RunEnd)]
    assert ends == [(steps, steps, None)], "steps, checks, and no error"
    _assert_named(truth.every(Alarm), layer, step)
    _assert_ranks(reports, steps)
    if tracking_uri is None:
        return truth
    return replace(truth, mlflow_run=_assert_one_mlflow_run(tracking_uri, truth, layer))


def _assert_one_record(folder: Path, others: Collection[str]) -> Path:
    records = sorted(folder.rglob("record.jsonl"))
    assert len(records) == 1, f"one record is expected, there are {len(records)}: {records}"
    run = records[0].parent
    own = {str((run / name).relative_to(folder)) for name in ("record.jsonl", "metrics.jsonl")}
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == own | set(others), "files that nobody should have written, or that are missing"
    return run


def _assert_named(alarms: Sequence[Alarm], layer: str, step: int) -> None:
    assert alarms, "nothing alarmed"
    first = alarms[0]
    found = (first.layer, first.diagnosis, first.step)
    assert found == (layer, Diagnosis.EXPLODING, step), f"the first alarm is {found}"
    assert first.value > 1e4 * first.normal


def _assert_ranks(reports: Sequence[Report], steps: int) -> None:
    assert [report["rank"] for report in reports] == list(range(len(reports))), "ranks"
    assert [report["steps"] for report in reports] == [steps] * len(reports), "steps made"
    assert [report["checks"] for report in reports] == [steps] * len(reports), "checks made"
    heard = [report["heard"] for report in reports]
    assert heard[0] > steps, "the sinks of rank 0 heard nothing"
    assert not any(heard[1:]), f"other ranks also wrote: their sinks heard {heard[1:]} events"
    assert len({report["weights"] for report in reports}) == 1, "the replicas differ"


def _assert_one_mlflow_run(tracking_uri: str, truth: Truth, layer: str) -> Any:
    from mlflow.entities import ViewType

    client = _mlflow_client(tracking_uri)
    experiments = [
        experiment.experiment_id for experiment in client.search_experiments(view_type=ViewType.ALL)
    ]
    runs = client.search_runs(experiments, run_view_type=ViewType.ALL)
    assert len(runs) == 1, f"one MLflow run is expected, there are {len(runs)}"
    (run,) = runs
    tags = run.data.tags
    assert run.info.status == "FINISHED", run.info.status
    assert tags.get("ormas.status") == run_facts(truth.events).status, tags
    assert tags.get("ormas.record.head") == verify_record(truth.run).head, tags
    assert tags.get(f"ormas.alarm.{layer}", "").startswith("exploding at step"), tags
    return run


def make_store(folder: Path) -> str:
    """Make the store that `MLflowSink.embedded` uses and return its URI.

    Processes that make it all at once disturb each other, which could hide that two of them send.
    """
    uri = f"sqlite:///{folder}/mlflow.db"
    _mlflow_client(uri).create_experiment("ormas", (folder / "mlartifacts").as_uri())
    return uri


def _mlflow_client(tracking_uri: str) -> Any:
    from mlflow import MlflowClient

    with warnings.catch_warnings():
        # Of mlflow's own tables, when it opens the first SQL store of a process.
        warnings.filterwarnings("ignore", "The ``noload`` loader strategy", DeprecationWarning)
        return MlflowClient(tracking_uri=tracking_uri)
