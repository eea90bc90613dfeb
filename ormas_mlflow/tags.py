"""From events to the tags a person filters on. Values in, values out; nothing of MLflow here."""

import hashlib
import re
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ormas_core import (
    TROUBLE,
    Alarm,
    AlarmCleared,
    Anchor,
    ClipStarvation,
    Diagnosis,
    Event,
    ExpertsStarving,
    FactsFold,
    GradientSlope,
    LossRecovered,
    LossSpike,
    NonfiniteGradient,
    NonfiniteLoss,
    NonfiniteState,
    NotLearning,
    RunEnd,
    RunStart,
    StatisticsAtOdds,
    SwitchedToEval,
)

STATUS: Final = "ormas.status"
ALARMS: Final = "ormas.alarms"
LAYER_ALARM: Final = "ormas.alarm."
LOSS: Final = "ormas.loss"
NOT_LEARNING: Final = "ormas.not_learning"
GRADIENT_SLOPE: Final = "ormas.gradient_slope"
RECORD_HEAD: Final = "ormas.record.head"
RECORD_ANCHORS: Final = "ormas.record.anchors."
RUN_ID: Final = "ormas.run_id"
METRICS_DROPPED: Final = "ormas.metrics_dropped"

_KEY_LIMIT: Final = 250
_ROOM: Final = _KEY_LIMIT - len(LAYER_ALARM)
# Slash and colon are legal for MLflow, but a slash makes a key a path, of which some are refused,
# and a colon is refused on Windows.
_UNSAFE: Final = re.compile(r"[^\w.\- ]")
_DIGEST: Final = 10
_DIGEST_END: Final = re.compile(r"-[0-9a-f]{10}\Z")

# Servers refuse tag values from 5,000 characters on, newer ones from 8,000. Ten texts at most make
# one value: the first and the latest episodes, or those of an earlier record and of this one.
_TEXT_LIMIT: Final = 300
_EARLIER_LIMIT: Final = 1500
_SHOWN: Final = 4

# An entry has 66 to 80 characters.
_ANCHORS_PER_TAG: Final = 50
_RUN_DIGITS: Final = 8


def alarm_key(layer: str) -> str:
    """Return the tag key for a layer: its name after a prefix, where MLflow takes it as it is.

    Any other name is cleaned and ends in a hash of the original, and so does a name that looks like
    that, so that no two layers share a key.
    """
    cleaned = _UNSAFE.sub("_", layer).strip()
    if cleaned == layer and 0 < len(layer) <= _ROOM and not _DIGEST_END.search(layer):
        return LAYER_ALARM + layer
    digest = hashlib.sha256(layer.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{LAYER_ALARM}{cleaned[: _ROOM - _DIGEST - 1]}-{digest}"


def with_earlier(tags: Mapping[str, str], earlier: Mapping[str, str]) -> dict[str, str]:
    """Return `tags` with what another record has left on the same run: its alarms still count.

    Args:
        tags: tags to be set, as `RunTags` returns them.
        earlier: the tags that were on the run before the first of these.
    """
    return {key: _joined(key, value, earlier.get(key, "")) for key, value in tags.items()}


class RunTags:
    """The tags of one run, from its events. Further segments of the run add to them."""

    def __init__(self) -> None:
        self._facts = FactsFold()
        self._segment = ""
        self._anchors = _Anchors("")
        self._histories: defaultdict[str, _History] = defaultdict(_History)
        self._open: dict[tuple[str, str], _Episode] = {}  # by lane and key

    def update(self, event: Event) -> dict[str, str]:
        """Take the next event and return the tags it changes."""
        self._facts.add(event)
        tags = self._changed(event)
        if isinstance(event, TROUBLE):
            tags[ALARMS] = str(len(self._facts.alarms))
        return tags

    def unfinished(self) -> dict[str, str]:
        """Return the tags for a run that is closed; they differ where no `RunEnd` has come."""
        return {STATUS: self._facts.facts(finished=True).status.value}

    def _changed(self, event: Event) -> dict[str, str]:
        match event:
            case RunStart():
                return self._begin(event)
            case Alarm():
                return self._note(alarm_key(event.layer), event, _alarm(event), stays_open=True)
            case NonfiniteGradient():
                return self._note(alarm_key(event.layer), event, _nonfinite(event))
            case AlarmCleared():
                return self._end(alarm_key(event.layer), event, "cleared")
            case LossSpike():
                found = "spike", f"{event.value:.4g}, normal {event.normal:.4g}"
                return self._note(LOSS, event, found, stays_open=True)
            case LossRecovered():
                return self._end(LOSS, event, "recovered")
            case NonfiniteLoss():
                return self._note(LOSS, event, ("nonfinite", f"{event.value}"))
            case NonfiniteState():
                count = event.layers[0]
                text = f"{count.nan} NaN and {count.inf} Inf before the first step"
                found = _named(count.layer, "nonfinite"), text
                return self._note(alarm_key(count.layer), event, found)
            case SwitchedToEval():
                found = _named(event.modules[0], "in evaluation mode"), ", ".join(event.modules)
                return self._note(alarm_key(event.modules[0]), event, found)
            case StatisticsAtOdds():
                name, *others = *event.drifting, *event.untouched
                found = _named(name, "statistics at odds"), ", ".join([name, *others])
                return self._note(alarm_key(name), event, found)
            case ClipStarvation():
                return self._note(alarm_key(event.layer), event, _clipped(event))
            case ExpertsStarving():
                return self._note(alarm_key(event.container), event, _starving(event))
            case GradientSlope():
                return self._note(GRADIENT_SLOPE, event, _slope(event))
            case NotLearning():
                return self._note(NOT_LEARNING, event, _not_learning(event))
            case Anchor():
                return {RECORD_HEAD: event.head, **self._anchors.add(event)}
            case RunEnd():
                return self.unfinished()
            case _:
                return {}

    def _begin(self, event: RunStart) -> dict[str, str]:
        self._segment = f" of segment {event.segment}" if event.segment else ""
        self._open.clear()
        if self._anchors.run_id != event.run_id:
            self._anchors = _Anchors(event.run_id)
        # The verdict of an earlier segment waits for the end of this one.
        return {
            STATUS: "running",
            ALARMS: str(len(self._facts.alarms)),
            RUN_ID: event.run_id,
        }

    def _note(
        self, key: str, event: Event, found: tuple[str, str], *, stays_open: bool = False
    ) -> dict[str, str]:
        """Add an episode; one that stays open ends with another event of its optimizer."""
        what, text = found
        lane = f" ({event.lane})" if event.lane else ""
        episode = _Episode(_shown(f"{what} at step {event.step}{self._segment}{lane}: {text}"))
        self._histories[key].add(episode)
        if stays_open:
            self._open[event.lane, key] = episode
        return {key: self._histories[key].text()}

    def _end(self, key: str, event: Event, how: str) -> dict[str, str]:
        episode = self._open.pop((event.lane, key), None)
        if episode is None:
            return {}
        episode.end = f" ({how} at step {event.step}{self._segment})"
        return {key: self._histories[key].text()}


class _Anchors:
    """Every anchor of a record as `LINES:HEAD`, fifty to a tag.

    The key ends in the number of lines of its first anchor. Lines only ever become more, so that a
    process that resumes the record never writes over a tag of the one before it.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._first = 0
        self._entries: list[str] = []

    def add(self, event: Anchor) -> dict[str, str]:
        """Return the tag that holds this anchor, with those before it."""
        if not self._entries or len(self._entries) == _ANCHORS_PER_TAG:
            self._first, self._entries = event.lines, []
        self._entries.append(f"{event.lines}:{event.head}")
        key = f"{RECORD_ANCHORS}{self.run_id[:_RUN_DIGITS]}.{self._first}"
        return {key: " ".join(self._entries)}


@dataclass(slots=True)
class _Episode:
    """One alarm and, later, how it ended."""

    text: str
    end: str = ""


@dataclass(slots=True)
class _History:
    """The first and the latest episodes under one key, and the number of all."""

    first: list[_Episode] = field(default_factory=list)
    latest: deque[_Episode] = field(default_factory=lambda: deque(maxlen=_SHOWN))
    count: int = 0

    def add(self, episode: _Episode) -> None:
        self.count += 1
        (self.first if self.count <= _SHOWN else self.latest).append(episode)

    def text(self) -> str:
        parts = [episode.text + episode.end for episode in self.first]
        left_out = self.count - len(self.first) - len(self.latest)
        if left_out:
            parts.append(f"{left_out} more")
        return "; ".join([*parts, *(episode.text + episode.end for episode in self.latest)])


def _alarm(event: Alarm) -> tuple[str, str]:
    value = f"{event.value:.3g}"
    if event.diagnosis is Diagnosis.NO_GRADIENT and event.detail:
        value += f" ({event.detail})"
    return _named(event.layer, event.diagnosis.value), f"{value}, normal {event.normal:.3g}"


def _nonfinite(event: NonfiniteGradient) -> tuple[str, str]:
    counts = {count.layer: count for count in event.layers}
    first = counts.get(event.layer)
    text = f"{first.nan} NaN and {first.inf} Inf" if first else "NaN or Inf"
    if event.loss is not None:
        text += f", loss {event.loss:.4g}"
    if len(counts) > 1:
        text += f", first of {len(counts)} layers"
    return _named(event.layer, "nonfinite"), text


def _starving(event: ExpertsStarving) -> tuple[str, str]:
    names = ", ".join(share.expert for share in event.starving)
    text = f"{len(event.starving)} of {event.experts} experts without tokens, {names}"
    return _named(event.container, "starving"), text


def _clipped(event: ClipStarvation) -> tuple[str, str]:
    text = f"norm {event.value:.3g}, all gradients x{event.factor:.2g}"
    return _named(event.layer, "takes the clipped norm"), text


def _slope(event: GradientSlope) -> tuple[str, str]:
    where = f"from {event.first} to {event.last}"
    return event.trend.value, f"x{event.factor:.2g} per layer {where}, {event.layers} layers"


def _not_learning(event: NotLearning) -> tuple[str, str]:
    text = f"{event.skipped} updates skipped, scale {event.scale_before:g} -> {event.scale:.1g}"
    if event.layer is not None:
        text += f", overflow in {event.layer}"
    return "stuck", text


def _named(layer: str, what: str) -> str:
    """Say the layer's own name where the key had to change it."""
    return what if alarm_key(layer) == LAYER_ALARM + layer else f"{layer[:_ROOM]}: {what}"


def _shown(text: str) -> str:
    """Return one line that every store can hold: databases refuse NUL and lone surrogates."""
    printable = "".join(char if char.isprintable() else "?" for char in text)
    return printable if len(printable) <= _TEXT_LIMIT else f"{printable[: _TEXT_LIMIT - 3]}..."


def _joined(key: str, value: str, earlier: str) -> str:
    if key == ALARMS:
        return str(int(value) + (int(earlier) if earlier.isdecimal() else 0))
    if earlier and (key in {LOSS, NOT_LEARNING, GRADIENT_SLOPE} or key.startswith(LAYER_ALARM)):
        return f"{earlier[:_EARLIER_LIMIT]} | {value}"
    return value
