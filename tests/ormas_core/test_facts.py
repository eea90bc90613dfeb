"""Facts: the verdict on a run, derived in one place, live and from the record alike."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import event_samples
import pytest
from alarm_streams import WARMUP, losses, norms, overflow
from hypothesis import given
from hypothesis import strategies as st

from ormas_core.alarms import AlarmEngine
from ormas_core.config import MonitorConfig
from ormas_core.events import (
    EVENT_TYPES,
    Alarm,
    AlarmCleared,
    Anchor,
    Event,
    LossRecovered,
    LossSpike,
    Manifest,
    Measurement,
    MonitorError,
    RunEnd,
    SinkError,
)
from ormas_core.facts import TROUBLE, FactsFold, RunFacts, run_facts
from ormas_core.record import RecordWriter, read_record, read_run
from ormas_core.terms import Mechanism, MechanismState, Status
from ormas_core.testing import FakeClock, measurement, run_start

STEADY = norms(*[1.0] * WARMUP)
ACTIVE = Mechanism(name="gradient_norms", state=MechanismState.ACTIVE, layers=("head",))


def run(
    measurements: Iterable[Measurement],
    *,
    others: Iterable[Event] = (),
    mechanisms: Sequence[Mechanism] = (ACTIVE,),
    error: str | None = None,
    segment: int = 0,
) -> list[Event]:
    """Return the events of one segment, as a monitor makes them, its own verdict at the end."""
    fold, engine, clock = FactsFold(), AlarmEngine(MonitorConfig()), FakeClock()
    events: list[Event] = [run_start(("well", "head"), segment=segment)]
    events.append(Manifest(step=0, mechanisms=tuple(mechanisms)))
    for found in measurements:
        events += [found, *engine.update(found)]
    events += others
    for event in events:
        fold.add(event)
    events.append(
        RunEnd(
            step=fold.steps + 1,
            steps=fold.steps + 1,
            checks=fold.checks,
            counts=fold.totals(),
            status=fold.verdict(error=error),
            error=error,
        )
    )
    shift = segment * 10**12
    return [replace(event, time_ns=clock() + shift) for event in events]


def status(
    measurements: Iterable[Measurement],
    *,
    others: Iterable[Event] = (),
    mechanisms: Sequence[Mechanism] = (ACTIVE,),
    error: str | None = None,
) -> Status:
    """Return the verdict on a run of one segment."""
    events = run(measurements, others=others, mechanisms=mechanisms, error=error)
    return run_facts(events).status


def test_a_run_in_which_nothing_stood_out_is_healthy() -> None:
    """Every check saw gradients, nothing was said, nothing is unobserved."""
    facts = run_facts(run(STEADY))
    assert facts.status is Status.HEALTHY
    assert (facts.steps, facts.checks, facts.blind_checks) == (WARMUP, WARMUP, 0)
    assert (facts.alarms, facts.open_layers, facts.gaps, facts.error) == ((), {}, (), None)


def test_a_cleared_alarm_leaves_warnings() -> None:
    """What happened is not forgotten, and it is over."""
    events = run([*STEADY, *norms(0.0, 1.0, start=WARMUP)])
    facts = run_facts(events)
    assert facts.status is Status.WARNINGS
    assert [type(alarm) for alarm in facts.alarms] == [Alarm]
    assert facts.open_layers == {}


def test_each_alarm_knows_where_its_episode_ended() -> None:
    """By its place among the alarms; open ones and those of a killed segment have no end."""
    layers = [*STEADY, *norms(1e6, 0.0, 1.0, 1e6, start=WARMUP)]
    assert run_facts(run(layers)).cleared == {0: WARMUP + 1, 1: WARMUP + 2}
    spikes = losses(*[1.0] * WARMUP, 9.0, 1.0, 9.0, 9.0)
    assert run_facts(run(spikes)).cleared == {0: WARMUP + 1}
    both = [
        measurement(step, {"well": norm, "head": norm}, loss=loss)
        for step, (norm, loss) in enumerate([*[(1.0, 1.0)] * WARMUP, (1e6, 9.0), (1.0, 1.0)])
    ]
    found = run_facts([*run(layers)[:-1], *run(both)])
    assert [type(alarm) for alarm in found.alarms] == [Alarm] * 5 + [LossSpike]
    assert found.cleared == {
        0: WARMUP + 1,
        1: WARMUP + 2,
        **dict.fromkeys((3, 4, 5), WARMUP + 1),
    }
    stray = [e for e in run(layers) if isinstance(e, AlarmCleared | LossRecovered)]
    assert run_facts([run_start(), *stray]).cleared == {}


def test_an_open_alarm_is_a_problem() -> None:
    """A layer that is broken at the end of the run is named, with its alarm."""
    facts = run_facts(run([*STEADY, *norms(1e6, 1.0, 0.0, 0.0, start=WARMUP)]))
    assert facts.status is Status.PROBLEM
    assert list(facts.open_layers) == ["head"]
    assert facts.open_layers["head"] == facts.alarms[-1]
    assert [alarm.step for alarm in facts.alarms] == [WARMUP, WARMUP + 2]


def test_a_loss_spike_is_a_problem_while_it_is_open() -> None:
    """Recovered it is a warning."""
    warm = losses(*[1.0] * WARMUP)
    spike = losses(9.0, start=WARMUP)
    assert status([*warm, *spike]) is Status.PROBLEM
    assert status([*warm, *spike, *losses(1.0, start=WARMUP + 1)]) is Status.WARNINGS


@pytest.mark.parametrize(
    "critical",
    [
        losses(float("nan")),
        [overflow(0, ["head"])],
        [overflow(0, scale=1e-9, skipped=25)],
    ],
)
def test_anything_critical_is_a_problem(critical: list[Measurement]) -> None:
    """Even when it is over: the weights may hold what happened."""
    facts = run_facts(run([*STEADY, *critical, *losses(1.0, 1.0)]))
    assert facts.status is Status.PROBLEM
    assert len(facts.alarms) == 1


def test_skipped_steps_of_a_scaler_are_no_trouble() -> None:
    """A scaler that finds its scale is healthy."""
    stream = [overflow(0, ["head"], scale=65536.0 / 2.0**n, skipped=n) for n in range(3)]
    assert status([*stream, *norms(1.0)]) is Status.HEALTHY


@pytest.mark.parametrize(
    "measurements",
    [[], [measurement(step, {"head": None}) for step in range(3)], [measurement(0, {"head": 0.0})]],
)
def test_a_run_that_saw_no_gradient_was_not_monitored(measurements: list[Measurement]) -> None:
    """Whatever else is known, nothing is known of the model."""
    facts = run_facts(run(measurements))
    assert facts.status is Status.NOT_MONITORED
    assert facts.checks == facts.blind_checks == len(measurements)


def test_a_run_without_checks_was_not_monitored_even_with_errors_of_the_monitor() -> None:
    """The monitor's own failure is no finding about the training."""
    assert status([], others=[MonitorError(step=0, error="x")]) is Status.NOT_MONITORED


@pytest.mark.parametrize(
    ("others", "mechanisms", "blind"),
    [
        ((), (ACTIVE,), 1),
        ((MonitorError(step=3, error="x"),), (ACTIVE,), 0),
        ((), (ACTIVE, replace(ACTIVE, state=MechanismState.UNOBSERVABLE)), 0),
        ((), (ACTIVE, Mechanism(name="alarms", state=MechanismState.UNOBSERVABLE)), 0),
    ],
)
def test_a_run_that_was_seen_in_part_is_partly_monitored(
    others: Sequence[Event], mechanisms: Sequence[Mechanism], blind: int
) -> None:
    """Checks without gradients, a monitor that stopped, layers not read, too few checks."""
    blinds = [measurement(WARMUP + i, {"well": None, "head": 0.0}) for i in range(blind)]
    found = status([*STEADY, *blinds], others=others, mechanisms=mechanisms)
    assert found is Status.PARTLY_MONITORED


@pytest.mark.parametrize("state", MechanismState)
def test_only_unread_gradients_keep_a_run_from_healthy(state: MechanismState) -> None:
    """Other gaps, such as a loss that was not given, are listed and leave the verdict alone."""
    lines = (ACTIVE, Mechanism(name="loss", state=state, reason="why"))
    facts = run_facts(run(STEADY, mechanisms=lines))
    assert facts.status is Status.HEALTHY
    silent = state in (MechanismState.ACTIVE, MechanismState.UNUSED)
    assert facts.gaps == (() if silent else (lines[1],))


def test_a_problem_counts_before_partly_monitored() -> None:
    """What was seen to be broken is broken, whatever was not seen."""
    blind = measurement(WARMUP + 1, {"well": None, "head": None})
    events = [*STEADY, *norms(0.0, start=WARMUP), blind]
    assert status(events) is Status.PROBLEM


def test_an_exception_interrupts_the_run() -> None:
    """Its type is kept."""
    facts = run_facts(run(STEADY, error="KeyboardInterrupt"))
    assert (facts.status, facts.error) == (Status.INTERRUPTED, "KeyboardInterrupt")


def test_a_record_without_an_end_is_interrupted() -> None:
    """Read back it is interrupted; while events still come it is running."""
    fold = FactsFold()
    for event in run(STEADY)[:-1]:
        fold.add(event)
    assert fold.facts(finished=True).status is Status.INTERRUPTED
    assert fold.facts(finished=False).status is Status.RUNNING
    assert fold.facts(finished=True).steps == WARMUP - 1


def test_nothing_at_all_is_unknown() -> None:
    """No event, no verdict: neither healthy nor running."""
    facts = run_facts([])
    assert facts == RunFacts(
        status=Status.UNKNOWN,
        start=None,
        segments=0,
        steps=0,
        checks=0,
        blind_checks=0,
        alarms=(),
        cleared={},
        open_layers={},
        stuck={},
        repaired=0,
        gaps=(),
        counts={},
        head=None,
        error=None,
        stopped=None,
    )
    assert FactsFold().facts(finished=False).status is Status.UNKNOWN


def test_a_failing_sink_says_nothing_about_the_training() -> None:
    """It is counted and does not change the verdict."""
    event = SinkError(step=0, sink="MLflowSink", error="no server")
    facts = run_facts(run(STEADY, others=[event, event]))
    assert facts.status is Status.HEALTHY
    assert facts.counts["sink_error"] == 2


VERDICTS = {
    Status.HEALTHY: run(STEADY),
    Status.WARNINGS: run([*STEADY, *norms(0.0, 1.0, start=WARMUP)]),
    Status.PARTLY_MONITORED: run([*STEADY, measurement(9, {"well": None, "head": None})]),
    Status.NOT_MONITORED: run([]),
    Status.INTERRUPTED: run(STEADY, error="ValueError"),
    Status.PROBLEM: run([*STEADY, *norms(0.0, start=WARMUP)]),
}


@pytest.mark.parametrize("first", VERDICTS)
@pytest.mark.parametrize("second", VERDICTS)
def test_several_segments_take_the_worst_verdict(first: Status, second: Status) -> None:
    """In whichever order they come; the table above runs from best to worst."""
    order = list(VERDICTS)
    facts = run_facts([*VERDICTS[first], *VERDICTS[second]])
    assert facts.status is max(first, second, key=order.index)
    assert facts.segments == 2
    assert facts.counts["run_start"] == 2


@pytest.mark.parametrize("error", [None, "OutOfMemoryError"])
def test_a_segment_given_up_before_its_first_step_has_no_verdict(error: str | None) -> None:
    """A batch size that did not fit says nothing about the run that then trained."""
    *start, end = run([], error=error)
    assert isinstance(end, RunEnd)
    for attempts, expected in ((0, Status.HEALTHY), (1, end.status)):
        tried = replace(end, counts={**end.counts, "attempts": attempts})
        assert run_facts([*start, tried, *VERDICTS[Status.HEALTHY]]).status is expected
        assert run_facts([*start, tried]).status is end.status
    assert run_facts([*start, *VERDICTS[Status.HEALTHY]]).status is Status.INTERRUPTED


def test_a_segment_without_an_end_stays_interrupted() -> None:
    """A run that was killed and then continued is not healthy for having ended well."""
    facts = run_facts([*VERDICTS[Status.HEALTHY][:-1], *VERDICTS[Status.HEALTHY]])
    assert facts.status is Status.INTERRUPTED


def test_a_new_segment_starts_with_nothing_open() -> None:
    """Episodes end with their segment, alarms and counts are kept, numbers are the last one's."""
    first = run([*STEADY, *norms(0.0, start=WARMUP)], others=[Anchor(**ANCHOR)])
    spiked = run([*losses(*[1.0] * WARMUP), *losses(9.0, start=WARMUP)])
    second = run(STEADY[:3], segment=2, mechanisms=())
    for earlier, kind in ((first, Alarm), (spiked, LossSpike)):
        facts = run_facts([*earlier, *second])
        assert facts.open_layers == {}
        assert [type(alarm) for alarm in facts.alarms] == [kind]
        assert (facts.steps, facts.checks, facts.blind_checks) == (3, 3, 0)
        assert facts.status is Status.PROBLEM
        fold = FactsFold()
        for event in [*earlier, *second[:-1]]:
            fold.add(event)
        assert fold.verdict(error=None) is Status.HEALTHY
        assert (fold.steps, fold.checks, fold.blind_checks) == (2, 3, 0)


def test_the_end_of_a_run_counts_events_and_blind_checks() -> None:
    """The names in `counts` are part of the record."""
    *_, end = run([*STEADY, measurement(9, {"well": None, "head": 0.0})])
    assert isinstance(end, RunEnd)
    assert end.counts == {
        "run_start": 1,
        "manifest": 1,
        "measurement": WARMUP + 1,
        "no_gradients": 1,
        "checks_without_gradients": 1,
    }


ANCHOR = {"step": 5, "head": "a" * 64, "lines": 4, "metrics_head": "b" * 64, "metrics_rows": 2}


def test_the_head_is_the_last_anchors() -> None:
    """None before there is one."""
    anchor = Anchor(**ANCHOR)
    later = replace(anchor, head="c" * 64)
    assert run_facts(run(STEADY, others=[anchor, later])).head == "c" * 64
    assert run_facts(run(STEADY)).head is None


@given(kinds=st.lists(st.sampled_from(sorted(EVENT_TYPES)), max_size=12))
def test_every_event_is_counted_by_kind(kinds: list[str]) -> None:
    """Whatever the order, and each trouble is among the alarms."""
    samples = event_samples.sample_events()
    facts = run_facts(samples[kind] for kind in kinds)
    assert facts.counts == {kind: kinds.count(kind) for kind in kinds}
    assert len(facts.alarms) == sum(issubclass(EVENT_TYPES[kind], TROUBLE) for kind in kinds)


def _write(folder: Path, events: Iterable[Event]) -> None:
    writer = RecordWriter(folder)
    for event in events:
        writer.write(event)
    writer.close()


@pytest.mark.parametrize("verdict", VERDICTS)
def test_facts_of_a_run_folder_equal_the_live_ones(tmp_path: Path, verdict: Status) -> None:
    """Nothing of the facts lives in the process only; without an end too."""
    for name, events in (("ended", VERDICTS[verdict]), ("killed", VERDICTS[verdict][:-1])):
        _write(tmp_path / name, events)
        live = run_facts(events)
        assert list(read_run(tmp_path / name)) == events
        assert run_facts(read_run(tmp_path / name)) == live


@pytest.mark.parametrize("verdict", VERDICTS)
def test_the_record_alone_gives_the_same_facts_of_an_ended_run(
    tmp_path: Path, verdict: Status
) -> None:
    """Without the metrics only the count of measurements is missing."""
    _write(tmp_path, VERDICTS[verdict])
    live = run_facts(VERDICTS[verdict])
    found = run_facts(line.event for line in read_record(tmp_path))
    counts = {kind: n for kind, n in live.counts.items() if kind != "measurement"}
    assert found == replace(live, counts=counts)


def test_segments_of_a_run_folder_are_read_in_order(tmp_path: Path) -> None:
    """Both files are merged by time, so that each measurement is in its segment."""
    events = [*run(STEADY), *run(STEADY[:2], segment=1)]
    _write(tmp_path, events)
    assert list(read_run(tmp_path)) == events
    (tmp_path / "metrics.jsonl").unlink()
    assert list(read_run(tmp_path)) == [e for e in events if not isinstance(e, Measurement)]
