"""The events that are about the record itself."""

from dataclasses import dataclass
from typing import ClassVar

from ormas_core.event_base import BaseEvent
from ormas_core.terms import SavedFile, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed(BaseEvent):
    """A training goes on where an earlier process left it; the record goes on at its end.

    Attributes:
        attempt: calls of `step()` before this one, as in a measurement.
        restored: whether baselines and open alarms are those of the checkpoint; they are new
            otherwise.
        head: hash of the record line before this segment, zeros if it is the first one here.
        lines: record lines before this segment.
        metrics_rows: metrics rows before this segment.
        reached: updates that the checks before this segment know to have been made, or begun; None
            if this is the first segment here.
        repeated: how many of them are made again.
        ended: whether the segment before this one has its end.
        checkpoint_head: the chain head when the state was saved; None if no state was restored, or
            if it is that of another record.
        checkpoint_lines: record lines when the state was saved; None likewise.
        checkpoint_rows: metrics rows when the state was saved; None likewise.
        torn_record_bytes: length of a torn last line of the record that was cut off.
        torn_metrics_bytes: length of a torn last metrics row that was cut off.
        detail: why nothing was restored.
    """

    kind: ClassVar[str] = "run_resumed"
    attempt: int
    restored: bool
    head: str
    lines: int
    metrics_rows: int
    reached: int | None
    repeated: int
    ended: bool
    checkpoint_head: str | None = None
    checkpoint_lines: int | None = None
    checkpoint_rows: int | None = None
    torn_record_bytes: int = 0
    torn_metrics_bytes: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordGap(BaseEvent):
    """Some events were not recorded for want of room; those after this one are.

    Attributes:
        error: what the operating system said.
        events: events that are missing from the record right before this line.
        measurements: measurements that are missing from the metrics.
    """

    kind: ClassVar[str] = "record_gap"
    severity: ClassVar[Severity] = Severity.WARNING
    error: str
    events: int
    measurements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(BaseEvent):
    """A model that was saved, as it was when it was named to the monitor.

    Attributes:
        path: the file or folder as it was named.
        files: its files.
    """

    kind: ClassVar[str] = "checkpoint_saved"
    path: str
    files: tuple[SavedFile, ...]
