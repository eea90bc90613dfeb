"""The summary: verdict, alarms and gaps, and no comfort where nothing was seen."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ormas_core.events import Alarm, AlarmCleared, Event, Manifest, RunEnd
from ormas_core.facts import FactsFold, run_facts
from ormas_core.messages import describe
from ormas_core.report import summary
from ormas_core.terms import Diagnosis, Mechanism, MechanismState, Stage, Status
from ormas_core.testing import measurement, run_start

SEEN = measurement(4, {"head": 1.0})
BLIND = measurement(5, {"head": None})
ALARM = Alarm(
    step=40,
    layer="head",
    diagnosis=Diagnosis.EXPLODING,
    value=1e5,
    normal=1.0,
    sigma=9.0,
    stage=Stage.UNSCALED,
)
LINES = (
    Mechanism(name="gradient_norms", state=MechanismState.ACTIVE, layers=("head",)),
    Mechanism(name="loss", state=MechanismState.OFF, reason="no loss was given"),
    Mechanism(
        name="gradient_norms",
        state=MechanismState.UNOBSERVABLE,
        reason="sharded",
        layers=("stem", "body"),
    ),
)


def end(events: Iterable[Event], error: str | None = None) -> RunEnd:
    """Return the end a monitor would write."""
    fold = FactsFold()
    for event in events:
        fold.add(event)
    return RunEnd(
        step=9,
        steps=9,
        checks=fold.checks,
        counts=fold.totals(),
        status=fold.verdict(error=error),
        error=error,
    )


def ended(*events: Event, error: str | None = None) -> list[Event]:
    """Return a run with its start and its end."""
    found: list[Event] = [run_start(("head", "stem", "body")), *events]
    return [*found, end(found, error)]


def text(*events: Event) -> str:
    """Return the summary of these events."""
    return summary(run_facts(events))


def test_the_summary_of_a_healthy_run() -> None:
    """Word for word."""
    start = replace(run_start(("head", "stem")), name="demo", parameters=12345, trainable=1000)
    events = [start, Manifest(step=0, mechanisms=LINES[:1]), SEEN]
    assert text(*events, end(events)) == (
        "# demo: HEALTHY\n"
        "\n"
        "Model, 2 watched layers, 1,000 of 12,345 parameters trainable; torch, 1 process(es).\n"
        "9 optimizer steps, 1 checks, 1 segment(s).\n"
        "\n"
        "## Alarms\n"
        "\n"
        "None.\n"
        "\n"
        "## Not observed, or only in part\n"
        "\n"
        "Nothing is known to be missing.\n"
    )


def test_alarms_and_gaps_are_listed_with_their_sentences() -> None:
    """Each alarm with its step, the open layers, each gap with its reason and layers."""
    other = replace(ALARM, layer="stem", step=50)
    third = replace(ALARM, layer="body", step=50)
    cleared = AlarmCleared(
        step=60, layer="stem", diagnosis=ALARM.diagnosis, value=1.0, normal=1.0, since_step=50
    )
    trouble = (ALARM, other, third, cleared)
    found = text(*ended(Manifest(step=0, mechanisms=LINES), SEEN, *trouble))
    assert found.startswith("# Training run: PROBLEM\n")
    assert (
        f"- step 40: {describe(ALARM)}\n"
        f"- step 50: {describe(other)} Cleared at step 60.\n"
        f"- step 50: {describe(third)}\n"
    ) in found
    assert "\n\nStill open at the end: head, body.\n\n## Not observed" in found
    assert "- loss off: no loss was given\n" in found
    assert "- gradient_norms unobservable: sharded (stem, body)\n" in found
    assert "gradient_norms active" not in found
    assert "None" not in found
    assert "Nothing is known to be missing" not in found


def test_the_exception_that_ended_the_run_is_named() -> None:
    """By its type."""
    found = text(*ended(SEEN, error="ZeroDivisionError"))
    assert found.startswith("# Training run: INTERRUPTED\n")
    assert " 1 segment(s). It ended with ZeroDivisionError.\n" in found


@pytest.mark.parametrize(
    ("events", "verdict"),
    [
        ([], "UNKNOWN"),
        (ended(), "NOT MONITORED"),
        (ended(BLIND, BLIND), "NOT MONITORED"),
        ([run_start()], "INTERRUPTED"),
        ([run_start(), BLIND, BLIND], "INTERRUPTED"),
        (ended(error="ValueError"), "INTERRUPTED"),
        (ended(BLIND, error="ValueError"), "INTERRUPTED"),
        # From the record alone, where the measurements are not:
        ([e for e in ended(BLIND, error="ValueError") if e is not BLIND], "INTERRUPTED"),
    ],
)
def test_a_run_that_saw_nothing_is_given_no_comfort(events: list[Event], verdict: str) -> None:
    """Neither the word healthy nor a bare "None." where no check saw a gradient."""
    found = text(*events)
    assert found.startswith(f"# Training run: {verdict}\n")
    assert "None could be seen: no check saw gradients.\n" in found
    assert "None.\n" not in found
    assert "healthy" not in found.lower()


@given(
    st.lists(st.sampled_from([BLIND, Manifest(step=0, mechanisms=LINES), run_start()]), max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_no_run_without_gradients_reads_healthy(
    middle: list[Event], started: bool, finished: bool
) -> None:
    """Whatever was started, ended or listed, in one segment or several."""
    events = [*([run_start()] if started else []), *middle]
    if finished:
        events.append(end(events))
    found = text(*events)
    assert "None.\n" not in found
    assert "healthy" not in found.lower()


def test_a_live_run_before_its_first_check_is_not_comforted() -> None:
    """`mon.facts` can be asked at any time."""
    fold = FactsFold()
    fold.add(run_start())
    found = summary(fold.facts(finished=False))
    assert found.startswith("# Training run: RUNNING\n")
    assert "None could be seen" in found
    fold.add(SEEN)
    assert "None.\n" in summary(fold.facts(finished=False))


def test_a_name_cannot_fake_lines_of_the_report() -> None:
    """Control characters, line breaks above all, are shown escaped."""
    start = replace(run_start(), name="x: HEALTHY\n\n## Alarms\n\nNone.\x1b[2K", model="Mödel\r")
    found = text(start)
    assert found.splitlines()[0] == (r"# x: HEALTHY\n\n## Alarms\n\nNone.\x1b[2K: INTERRUPTED")
    assert "Mödel\\r, 1 watched layers" in found
    assert found.count("## Alarms\n") == 1
    assert all(char.isprintable() or char == "\n" for char in found)


@pytest.mark.parametrize("status", Status)
def test_every_verdict_is_the_first_line(status: Status) -> None:
    """In capitals, words apart."""
    facts = replace(run_facts(ended(SEEN)), status=status)
    first = summary(facts).splitlines()[0]
    assert first == f"# Training run: {status.value.upper().replace('_', ' ')}"
