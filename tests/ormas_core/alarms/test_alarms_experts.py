"""Which experts get no rows, and which get few."""

import random
from collections.abc import Sequence

import pytest
from alarm_streams import WARMUP, ThroughJson, feed

from ormas_core.across import ExpertsStarving, ExpertUsage
from ormas_core.alarms import AlarmEngine
from ormas_core.alarms.experts import ExpertRule
from ormas_core.config import MonitorConfig
from ormas_core.events import Alarm, Event, Measurement
from ormas_core.terms import ExpertRows, Stage
from ormas_core.testing import check_rule


def routed(step: int, rows: Sequence[int], norms: Sequence[float | None] = ()) -> Measurement:
    """Return a check of experts; without a row there is no gradient, unless told otherwise."""
    found = list(norms) or [1.0 if n else None for n in rows]
    return Measurement(
        step=step,
        attempt=step,
        stage=Stage.UNSCALED,
        layers=("head", *(f"moe.{i}.w1" for i in range(len(rows)))),
        norms=(1.0, *found),
        experts=(
            ExpertRows(
                container="moe", experts=tuple(map(str, range(len(rows)))), rows=tuple(rows)
            ),
        ),
    )


def said(stream: Sequence[Sequence[int]], config: MonitorConfig | None = None) -> list[Event]:
    """Return what the rule says to a stream of rows."""
    checks = [routed(step, rows) for step, rows in enumerate(stream)]
    return feed(ExpertRule(config or MonitorConfig()), checks)


def names(shares: Sequence[object]) -> list[str]:
    """Return the names of experts."""
    return [getattr(share, "expert", "") for share in shares]


def test_an_expert_that_never_gets_a_row_starves_after_patience() -> None:
    """Four checks by default, with its share and that it was never seen."""
    (found,) = said([[400, 400, 400, 0]] * 20)
    assert isinstance(found, ExpertsStarving)
    assert (found.step, found.container, found.experts) == (3, "moe", 4)
    assert names(found.starving) == ["3"]
    assert (found.starving[0].share, found.starving[0].since_step) == (0.0, None)
    (late,) = said([[400, 400, 400, 0]] * 20, MonitorConfig(patience=7))
    assert late.step == 6


def test_few_rows_prove_nothing() -> None:
    """Equal shares must have given the expert 100 rows in the gap."""
    (found,) = said([[10, 10, 10, 0]] * 30)
    assert (found.kind, found.step) == ("experts_starving", 13)
    assert said([[10, 10, 10, 0]] * 13) == []


def test_a_rare_expert_is_not_starving() -> None:
    """Seen in every tenth check: its gaps are explained by its own past, and the share is given."""
    stream = [[500, 500, 500, 15 if step % 10 == 0 else 0] for step in range(200)]
    found = said(stream)
    assert {event.kind for event in found} == {"expert_usage"}
    assert isinstance(found[0], ExpertUsage)
    assert names(found[0].rare) == ["3"]
    assert found[0].starving == ()


def test_an_expert_that_is_seen_at_random_is_not_starving() -> None:
    """In one of eight checks, over many seeds: the first gaps may be long."""
    starved = 0
    for seed in range(20):
        chance = random.Random(seed)  # noqa: S311 - a test's stream
        stream = [[500, 500, 500, 40 if chance.random() < 0.125 else 0] for _ in range(150)]
        stream[0] = [500, 500, 500, 40]
        starved += any(isinstance(event, ExpertsStarving) for event in said(stream))
    assert starved <= 1


def test_an_expert_that_stops_starves_and_may_come_back() -> None:
    """Said when it stops, with the step of its last row; its return is information."""
    stream = [[300, 300]] * 10 + [[600, 0]] * 10 + [[300, 300]] * 30
    found = said(stream)
    assert [event.kind for event in found if isinstance(event, ExpertsStarving)] == [
        "experts_starving"
    ]
    assert isinstance(found[0], ExpertsStarving)
    assert (found[0].step, found[0].starving[0].since_step) == (17, 9)
    last = found[-1]
    assert isinstance(last, ExpertUsage)
    assert (last.starving, last.rare) == ((), ())


def test_a_gap_that_was_said_is_learnt() -> None:
    """The next one must be three times as long."""
    stream = [[300, 300]] * 60 + [[600, 0]] * 6 + [[300, 300]] * 60 + [[600, 0]] * 30
    starving = [event for event in said(stream) if isinstance(event, ExpertsStarving)]
    assert [event.step for event in starving] == [63, 143]


def test_another_starving_expert_is_said_and_a_recovery_among_them_is_information() -> None:
    """One event per container and change of level."""
    stream = [[200, 200, 200, 0]] * 10 + [[300, 300, 0, 0]] * 20 + [[300, 200, 0, 100]] * 3
    kinds = [(e.kind, names(getattr(e, "starving", ()))) for e in said(stream)]
    assert kinds[:2] == [("experts_starving", ["3"]), ("experts_starving", ["2", "3"])]
    assert kinds[2] == ("expert_usage", ["2"])


def test_balanced_experts_are_not_spoken_of() -> None:
    """Neither are mildly uneven ones, and a check without a row says nothing."""
    assert said([[90, 110, 150, 50]] * 50 + [[0, 0, 0, 0]] * 50) == []


def test_a_gradient_without_rows_means_that_another_process_had_them() -> None:
    """Gradients are those of all processes, rows those of this one."""
    checks = [routed(step, [400, 0], [1.0, 0.5]) for step in range(30)]
    kinds = {event.kind for event in feed(ExpertRule(MonitorConfig()), checks)}
    assert kinds == {"expert_usage"}


@pytest.mark.parametrize("absent", [None, 0.0])
def test_an_expert_without_tokens_is_no_layer_without_gradient(absent: float | None) -> None:
    """A short gap after a full warm-up alarms nowhere; with tokens and no gradient it does."""
    warm = [routed(step, [300, 300]) for step in range(WARMUP)]
    gap = [routed(WARMUP + step, [600, 0], [1.0, absent]) for step in range(3)]
    assert feed(AlarmEngine(MonitorConfig()), [*warm, *gap]) == []
    cut = routed(WARMUP, [300, 300], [1.0, absent])
    (alarm,) = feed(AlarmEngine(MonitorConfig()), [*warm, cut])
    assert isinstance(alarm, Alarm)
    assert alarm.layer == "moe.1.w1"


def test_a_saved_rule_goes_on_alike() -> None:
    """At any point, also through JSON."""
    stream = [[200, 200, 0]] * 6 + [[200, 0, 5]] * 12 + [[200, 200, 200]] * 6
    checks = [routed(step, rows) for step, rows in enumerate(stream)]
    assert check_rule(lambda config: ThroughJson(ExpertRule, config), checks)
