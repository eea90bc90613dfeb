"""The run record: typed events as hash-chained lines, written, read, verified and sealed."""

from ormas_core.record.codec import decode, encode
from ormas_core.record.envelope import make_keys
from ormas_core.record.inspection import Examiner
from ormas_core.record.models import model_files
from ormas_core.record.reader import (
    METRICS_FILE,
    RECORD_FILE,
    SEAL_FILE,
    Line,
    read_metrics,
    read_record,
    read_run,
)
from ormas_core.record.sign import sign_record
from ormas_core.record.statement import PAYLOAD_TYPE, PREDICATE_TYPE, Seal, SealedModel
from ormas_core.record.verify import CHECKS, Check, Outcome, Request, Verification, verify_record
from ormas_core.record.witness import ANCHORS_TAG, parse_heads, read_heads
from ormas_core.record.writer import RecordWriter

__all__ = [
    "ANCHORS_TAG",
    "CHECKS",
    "METRICS_FILE",
    "PAYLOAD_TYPE",
    "PREDICATE_TYPE",
    "RECORD_FILE",
    "SEAL_FILE",
    "Check",
    "Examiner",
    "Line",
    "Outcome",
    "RecordWriter",
    "Request",
    "Seal",
    "SealedModel",
    "Verification",
    "decode",
    "encode",
    "make_keys",
    "model_files",
    "parse_heads",
    "read_heads",
    "read_metrics",
    "read_record",
    "read_run",
    "sign_record",
    "verify_record",
]
