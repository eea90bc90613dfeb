"""The run record: typed events as hash-chained lines, written, read and verified."""

from ormas_core.record.codec import decode, encode
from ormas_core.record.models import model_files
from ormas_core.record.reader import (
    METRICS_FILE,
    RECORD_FILE,
    Line,
    read_metrics,
    read_record,
    read_run,
)
from ormas_core.record.verify import Check, Outcome, Verification, verify_record
from ormas_core.record.writer import RecordWriter

__all__ = [
    "METRICS_FILE",
    "RECORD_FILE",
    "Check",
    "Line",
    "Outcome",
    "RecordWriter",
    "Verification",
    "decode",
    "encode",
    "model_files",
    "read_metrics",
    "read_record",
    "read_run",
    "verify_record",
]
