"""Events that are turned into tags, and the tags they give. No test here."""

from hypothesis import strategies as st

from ormas_core import (
    Alarm,
    AlarmCleared,
    Diagnosis,
    Event,
    ExpertShare,
    ExpertsStarving,
    GradientSlope,
    NonfiniteCount,
    NonfiniteGradient,
    RunEnd,
    Signal,
    Stage,
    Status,
    Trend,
)
from ormas_mlflow.tags import RunTags

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
