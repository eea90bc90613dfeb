"""One layer takes the whole norm that clipping leaves: the others starve for that step."""

import math
from collections.abc import Iterator

from ormas_core.across import ClipStarvation
from ormas_core.alarms.rule import State
from ormas_core.config import MonitorConfig
from ormas_core.events import Event, Measurement


class ClippingRule:
    """Said where clipping leaves a tiny part of every gradient, and that part is one layer's.

    Both must be at most `clip_factor_min`: the clip factor, and what all other layers together
    keep of the norm that is clipped to. A factor that is tiny because all layers are large alike
    starves nobody, whatever its size. One check is enough, and no warm-up is needed.
    """

    def __init__(self, config: MonitorConfig) -> None:
        self._limit = config.clip_factor_min
        self._open: str | None = None

    def update(self, measurement: Measurement, /) -> Iterator[Event]:
        """Judge the clipping that follows this check."""
        found = self._starving(measurement)
        if found is not None and found.layer != self._open:
            yield found
        self._open = found.layer if found is not None else None

    def _starving(self, measurement: Measurement) -> ClipStarvation | None:
        factor, clip_norm = measurement.clip_factor, measurement.clip_norm
        if factor is None or clip_norm is None or factor > self._limit:
            return None
        norms = {
            layer: norm
            for layer, norm in zip(measurement.layers, measurement.norms, strict=True)
            if norm is not None
        }
        if len(norms) < 2:  # noqa: PLR2004 - there must be another layer
            return None
        top = max(norms, key=norms.__getitem__)
        rest = factor * math.hypot(*(norm for layer, norm in norms.items() if layer != top))
        if not rest <= self._limit * clip_norm:
            return None
        return ClipStarvation(
            step=measurement.step,
            layer=top,
            value=norms[top],
            factor=factor,
            clip_norm=clip_norm,
            rest=rest,
        )

    def state_dict(self) -> State:
        """Return the open episode."""
        return {"open": self._open}

    def load_state_dict(self, state: State, /) -> None:
        """Continue from a state that `state_dict` returned."""
        self._open = state["open"]
