"""Streams of measurements for rules: a helper to feed them, and hypothesis strategies."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hypothesis import strategies as st

from ormas_core.alarms import Rule, State
from ormas_core.config import MonitorConfig
from ormas_core.events import Event, Measurement
from ormas_core.terms import ExpertRows, NonfiniteCount, OutputGradient, Stage
from ormas_core.testing import measurement

LAYERS = ("head", "body", "stem")
WARMUP = MonitorConfig().warmup


def feed(rule: Any, measurements: Iterable[Measurement]) -> list[Event]:
    """Return all that `rule` (or the engine) says."""
    return [event for m in measurements for event in rule.update(m)]


def norms(*values: float | None, start: int = 0, layer: str = "head") -> list[Measurement]:
    """Return one measurement per norm of `layer`, beside a layer that is always well."""
    return [
        measurement(start + step, {"well": 1.0, layer: value}) for step, value in enumerate(values)
    ]


def losses(*values: float | None, start: int = 0) -> list[Measurement]:
    """Return one measurement per loss, with gradients that are always well."""
    return [measurement(start + i, {"head": 1.0}, loss=loss) for i, loss in enumerate(values)]


def overflow(
    step: int,
    bad: Sequence[str] = (),
    *,
    scale: float | None = None,
    skipped: int = 0,
    loss: float | None = None,
    outputs: Sequence[tuple[str, bool]] = (),
    stage: Stage = Stage.UNSCALED,
) -> Measurement:
    """Return a measurement in which the layers `bad` have one NaN and two Inf each."""
    return Measurement(
        step=step,
        attempt=step + skipped,
        stage=stage,
        scale=scale,
        skipped_in_a_row=skipped,
        loss=loss,
        layers=LAYERS,
        norms=tuple(math.nan if layer in bad else 1.0 for layer in LAYERS),
        nonfinite=tuple(NonfiniteCount(layer=layer, nan=1, inf=2) for layer in bad),
        outputs=tuple(OutputGradient(module=name, finite=ok) for name, ok in outputs),
    )


NORMS = st.sampled_from(
    [1.0, 1.0, 1.0, 1.2, 0.8, 0.02, 60.0, 1e-6, 1e6, 5e-324, 1e308, 0.0, 0.0, None]
)
PEAKS = st.sampled_from([1.0, 1e-3, 1e30, 5e-324, 0.0, math.nan, math.inf, None])
ROWS = st.sampled_from([0, 0, 1, 400])
LOSSES = st.sampled_from([1.0, 1.0, 1.1, 0.9, 1.7, 40.0, 1e-4, -2.0, 0.0, None])


def finite_steps() -> st.SearchStrategy[tuple[Any, ...]]:
    """Return a strategy for the varying part of a measurement without NaN and infinities."""
    return st.tuples(st.tuples(NORMS, NORMS), LOSSES)


# Made once: hypothesis looks at every strategy that it meets for the first time.
_BAD = st.lists(st.sampled_from(LAYERS), unique=True, max_size=3)
_EXPERTS = st.builds(
    ExpertRows,
    container=st.just("moe"),
    experts=st.just(("0", "1", "2")),
    rows=st.tuples(ROWS, ROWS, ROWS),
)
_DRAWN = {
    "stage": st.sampled_from(Stage),
    "scale": st.sampled_from([None, None, 65536.0, 1e-9]),
    "skipped_in_a_row": st.sampled_from([0, 0, 3, 24, 25, 80]),
    "loss": LOSSES | st.sampled_from([math.nan, math.inf]),
    "loss_elements": st.sampled_from([1, 1, 4]),
    "output_peaks": st.just(()) | st.tuples(PEAKS, PEAKS, PEAKS),
    "gradient_type": st.sampled_from(["", "float16", "float32"]),
    "experts": st.just(()) | st.tuples(_EXPERTS),
    "evaluating": st.sampled_from([(), (), ("body",), ("Net",)]),
    "drifting": st.sampled_from([(), ("body",), ("head", "body")]),
    "untouched": st.sampled_from([(), ("body",), LAYERS]),
    "clip_factor": st.sampled_from([None, 1.0, 0.5, 1e-3, 1e-6]),
}
"""What the steps of a stream have, each drawn apart."""


@st.composite
def streams(draw: st.DrawFn, max_size: int = 16) -> list[Measurement]:
    """Return measurements with everything that can happen, half of them after a warm-up."""
    found = []
    if draw(st.booleans()):
        found = [measurement(i, dict.fromkeys(LAYERS, 1.0), loss=1.0) for i in range(WARMUP)]
    for _ in range(draw(st.integers(0, max_size))):
        bad = draw(_BAD)
        outputs = [OutputGradient(module=layer, finite=layer not in bad) for layer in LAYERS]
        found.append(
            Measurement(
                step=len(found),
                attempt=len(found),
                layers=LAYERS,
                norms=tuple(math.nan if layer in bad else draw(NORMS) for layer in LAYERS),
                nonfinite=tuple(NonfiniteCount(layer=layer, nan=1, inf=0) for layer in bad),
                clip_norm=1.0,
                outputs=tuple(outputs) if bad else (),
                **{name: draw(strategy) for name, strategy in _DRAWN.items()},
            )
        )
    return found


class ThroughJson:
    """A rule whose state goes through JSON text when it is saved."""

    def __init__(self, make: Callable[[MonitorConfig], Rule], config: MonitorConfig) -> None:
        self._rule = make(config)

    def update(self, found: Measurement, /) -> Iterable[Event]:
        """Hand on."""
        return self._rule.update(found)

    def state_dict(self) -> State:
        """Return the state as JSON gives it back."""
        state: State = json.loads(json.dumps(self._rule.state_dict(), allow_nan=False))
        return state

    def load_state_dict(self, state: State, /) -> None:
        """Hand on."""
        self._rule.load_state_dict(state)
