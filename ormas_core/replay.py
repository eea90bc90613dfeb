"""Recorded measurements through the alarm rules again, with the same or with other settings."""

import copy
import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ormas_core.alarms import AlarmEngine, State
from ormas_core.config import MonitorConfig
from ormas_core.errors import ConfigError, RecordFormatError
from ormas_core.events import (
    Anchor,
    Event,
    Measurement,
    RunEnd,
    RunStart,
)
from ormas_core.record import encode, read_metrics, read_record
from ormas_core.record_events import RunResumed

RULE_EVENTS: Final = frozenset(
    {
        "no_gradients",
        "nonfinite_loss",
        "nonfinite_gradient",
        "skipped_step",
        "not_learning",
        "alarm",
        "alarm_cleared",
        "gradient_slope",
        "clip_starvation",
        "eval_mode",
        "switched_to_eval",
        "statistics_at_odds",
        "experts_starving",
        "expert_usage",
        "loss_spike",
        "loss_recovered",
        "loss_reduced",
    }
)
"""Kinds of event that the alarm rules make, and so a replay too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a replay gave.

    Attributes:
        changes: settings that differ from the recorded ones -> the recorded value and the new one.
        recorded: events of rules in the record, in order.
        replayed: events of rules that the replay made, in order; their times are 0.
        only_recorded: those of the record that the replay did not make.
        only_replayed: those of the replay that are not in the record.
        notes: what stands in the way of an exact replay.
    """

    changes: Mapping[str, tuple[Any, Any]]
    recorded: tuple[Event, ...]
    replayed: tuple[Event, ...]
    only_recorded: tuple[Event, ...]
    only_replayed: tuple[Event, ...]
    notes: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether both are the same events in the same order."""
        return [_key(e) for e in self.recorded] == [_key(e) for e in self.replayed]


def replay_run(folder: str | os.PathLike[str], changes: Mapping[str, Any] | None = None) -> Replay:
    """Give the measurements of a run to the alarm rules again.

    Args:
        folder: the run folder. It is not verified.
        changes: settings that differ from those of the run.

    Raises:
        FileNotFoundError: there is no record in `folder`.
        RecordFormatError: it cannot be read, or its measurements do not fit together.
        UnknownOptionError: a change names no setting.
        ConfigError: a change has a value that cannot be used.
    """
    path, changes = Path(folder), dict(changes or {})
    segments = _segments(path)
    if not segments:
        raise RecordFormatError(str(path), f"{path} holds no start of a run: nothing to replay.")
    first = segments[0].config
    new = first.replace(changes)
    recorded = tuple(event for segment in segments for event in segment.events)
    notes = [note for segment in segments for note in segment.notes]
    try:
        replayed = tuple(_rerun(path, segments, changes, notes))
    except (ValueError, OverflowError, ArithmeticError) as error:
        raise RecordFormatError(
            str(path), f"The measurements of {path} do not fit together: {error!s:.200}."
        ) from error
    return Replay(
        changes={
            name: (getattr(first, name), getattr(new, name))
            for name in changes
            if getattr(first, name) != getattr(new, name)
        },
        recorded=recorded,
        replayed=replayed,
        only_recorded=_missing(recorded, replayed),
        only_replayed=_missing(replayed, recorded),
        notes=tuple(notes),
    )


@dataclass(slots=True)
class _Segment:
    """What the record says of one start of the loop.

    Attributes:
        line: record lines before it.
        first_row: metrics rows before it; None where only times can tell.
        began_ns: time of its start.
        restore: segment and number of rows whose state it goes on from.
    """

    config: MonitorConfig
    line: int
    first_row: int | None
    began_ns: int
    restore: tuple[int, int] | None = None
    events: list[Event] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _segments(path: Path) -> list[_Segment]:
    segments: list[_Segment] = []
    rows: int | None = 0
    ended = False
    for line in read_record(path):
        match line.event:
            case RunStart() as start:
                segments.append(_Segment(start.config, line.seq, rows, start.time_ns))
                rows, ended = None, False
            case RunEnd():
                ended = True
            case Anchor() as anchor:
                rows = anchor.metrics_rows if ended else None
            case RunResumed() as resumed if segments:
                segments[-1].first_row = resumed.metrics_rows
                _restore(segments, resumed)
            case event if segments and event.kind in RULE_EVENTS:
                segments[-1].events.append(event)
            case _:
                pass
    return segments


def _restore(segments: Sequence[_Segment], resumed: RunResumed) -> None:
    if not resumed.restored:
        return
    lines, rows = resumed.checkpoint_lines, resumed.checkpoint_rows
    if lines is None or rows is None:
        segments[-1].notes.append(
            "it went on from a state of another record, which cannot be replayed: "
            "baselines are new here"
        )
        return
    earlier = [place for place, segment in enumerate(segments[:-1]) if segment.line < lines]
    if earlier:
        segments[-1].restore = (earlier[-1], rows)


def _rerun(
    path: Path, segments: Sequence[_Segment], changes: Mapping[str, Any], notes: list[str]
) -> Iterator[Event]:
    wanted = {segment.restore for segment in segments if segment.restore is not None}
    states: dict[tuple[int, int], State] = {}
    for place, found in _rows_by_segment(path, segments):
        segment = segments[place]
        engine = AlarmEngine(segment.config.replace(changes))
        if segment.restore in states:
            engine.load_state_dict(states[segment.restore])
        elif segment.restore is not None:
            notes.append(f"the state after row {segment.restore[1]} is not in the metrics")
        at = segment.first_row or 0
        for row, measurement in found:
            if (place, row) in wanted:
                states[place, row] = copy.deepcopy(engine.state_dict())
            yield from engine.update(measurement)
            at = row + 1
        if (place, at) in wanted:
            states[place, at] = engine.state_dict()


def _rows_by_segment(
    path: Path, segments: Sequence[_Segment]
) -> Iterator[tuple[int, Iterator[tuple[int, Measurement]]]]:
    """Yield each segment's place and its measurements, numbered from 0 through all segments."""
    rows = enumerate(read_metrics(path))
    waiting = next(rows, None)

    def own(following: _Segment | None) -> Iterator[tuple[int, Measurement]]:
        nonlocal waiting
        while waiting is not None and not _belongs(following, *waiting):
            yield waiting
            waiting = next(rows, None)

    for place in range(len(segments)):
        yield place, own(segments[place + 1] if place + 1 < len(segments) else None)


def _belongs(segment: _Segment | None, row: int, measurement: Measurement) -> bool:
    """Whether a row is of `segment` or of one after it."""
    if segment is None:
        return False
    if segment.first_row is not None:
        return row >= segment.first_row
    return measurement.time_ns >= segment.began_ns


def _missing(these: Sequence[Event], those: Sequence[Event]) -> tuple[Event, ...]:
    left = Counter(map(_key, those))
    found = []
    for event in these:
        key = _key(event)
        if left[key]:
            left[key] -= 1
        else:
            found.append(event)
    return tuple(found)


def _key(event: Event) -> str:
    return json.dumps(encode(dataclasses.replace(event, time_ns=0)), sort_keys=True)


def parse_changes(texts: Sequence[str]) -> dict[str, Any]:
    """Return settings from `NAME=VALUE` texts, each value of the type that the setting has.

    Raises:
        ConfigError: a text is no such pair, or its value cannot be read.
    """
    defaults, found = MonitorConfig(), {}
    for text in texts:
        name, equals, value = text.partition("=")
        kind = type(getattr(defaults, name, ""))
        if not (name and equals) or kind not in (int, float, str):
            raise ConfigError("--set", f"--set wants NAME=VALUE of a number; got {text!r}.")
        try:
            found[name] = kind(value)
        except ValueError:
            raise ConfigError(
                "--set", f"--set {name} wants {'a whole ' * (kind is int)}number; got {value!r}."
            ) from None
    return found
