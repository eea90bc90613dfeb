"""Training health for PyTorch: names the layer that broke and leaves a record to trust.

Public names resolve on first use, so that importing the package does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ormas_core.across import ClipStarvation as ClipStarvation
    from ormas_core.across import ExpertsStarving as ExpertsStarving
    from ormas_core.across import ExpertUsage as ExpertUsage
    from ormas_core.across import GradientSlope as GradientSlope
    from ormas_core.alarms import AlarmEngine as AlarmEngine
    from ormas_core.alarms import Rule as Rule
    from ormas_core.audit import verify_run as verify_run
    from ormas_core.certificate_events import Certificate as Certificate
    from ormas_core.certificate_events import CertificateRefused as CertificateRefused
    from ormas_core.certificate_events import CertificateRevoked as CertificateRevoked
    from ormas_core.certificate_events import Channels as Channels
    from ormas_core.certificate_events import ChannelsCleared as ChannelsCleared
    from ormas_core.certificate_events import Repair as Repair
    from ormas_core.certification import Certificates as Certificates
    from ormas_core.certification import certify as certify
    from ormas_core.checkpoint_check import CheckResult as CheckResult
    from ormas_core.checkpoint_check import check_checkpoint as check_checkpoint
    from ormas_core.checkpoints import CATALOGUE as CATALOGUE
    from ormas_core.checkpoints import Finding as Finding
    from ormas_core.claims import CertificateClass as CertificateClass
    from ormas_core.claims import Claim as Claim
    from ormas_core.claims import Refusal as Refusal
    from ormas_core.claims import UnitKind as UnitKind
    from ormas_core.config import MonitorConfig as MonitorConfig
    from ormas_core.diff import Difference as Difference
    from ormas_core.diff import RunDiff as RunDiff
    from ormas_core.diff import diff_runs as diff_runs
    from ormas_core.errors import CertifyError as CertifyError
    from ormas_core.errors import CheckpointError as CheckpointError
    from ormas_core.errors import ConfigError as ConfigError
    from ormas_core.errors import KeyFileError as KeyFileError
    from ormas_core.errors import LayerPatternError as LayerPatternError
    from ormas_core.errors import MissingExtraError as MissingExtraError
    from ormas_core.errors import OrmasError as OrmasError
    from ormas_core.errors import RecordChangedError as RecordChangedError
    from ormas_core.errors import RecordExistsError as RecordExistsError
    from ormas_core.errors import RecordFormatError as RecordFormatError
    from ormas_core.errors import RecordLockedError as RecordLockedError
    from ormas_core.errors import UnknownOptionError as UnknownOptionError
    from ormas_core.errors import missing_extra as missing_extra
    from ormas_core.events import Alarm as Alarm
    from ormas_core.events import AlarmCleared as AlarmCleared
    from ormas_core.events import Anchor as Anchor
    from ormas_core.events import Event as Event
    from ormas_core.events import LossRecovered as LossRecovered
    from ormas_core.events import LossReduced as LossReduced
    from ormas_core.events import LossSpike as LossSpike
    from ormas_core.events import Manifest as Manifest
    from ormas_core.events import Measurement as Measurement
    from ormas_core.events import NoGradients as NoGradients
    from ormas_core.events import NonfiniteGradient as NonfiniteGradient
    from ormas_core.events import NonfiniteLoss as NonfiniteLoss
    from ormas_core.events import NotLearning as NotLearning
    from ormas_core.events import RunEnd as RunEnd
    from ormas_core.events import RunStart as RunStart
    from ormas_core.events import SkippedStep as SkippedStep
    from ormas_core.facts import TROUBLE as TROUBLE
    from ormas_core.facts import FactsFold as FactsFold
    from ormas_core.facts import RunFacts as RunFacts
    from ormas_core.facts import Trouble as Trouble
    from ormas_core.facts import run_facts as run_facts
    from ormas_core.hooks import runs_compiled as runs_compiled
    from ormas_core.hooks import watch_calls as watch_calls
    from ormas_core.host import Host as Host
    from ormas_core.messages import describe as describe
    from ormas_core.model_events import EvalMode as EvalMode
    from ormas_core.model_events import NonfiniteState as NonfiniteState
    from ormas_core.model_events import StatisticsAtOdds as StatisticsAtOdds
    from ormas_core.model_events import SwitchedToEval as SwitchedToEval
    from ormas_core.monitor import Monitor as Monitor
    from ormas_core.options import DEFAULT_OUT as DEFAULT_OUT
    from ormas_core.options import MonitorOptions as MonitorOptions
    from ormas_core.options import check_options as check_options
    from ormas_core.record import ANCHORS_TAG as ANCHORS_TAG
    from ormas_core.record import RecordWriter as RecordWriter
    from ormas_core.record import Verification as Verification
    from ormas_core.record import make_keys as make_keys
    from ormas_core.record import model_files as model_files
    from ormas_core.record import parse_heads as parse_heads
    from ormas_core.record import read_heads as read_heads
    from ormas_core.record import read_metrics as read_metrics
    from ormas_core.record import read_record as read_record
    from ormas_core.record import read_run as read_run
    from ormas_core.record import sign_record as sign_record
    from ormas_core.record import verify_record as verify_record
    from ormas_core.record_events import CheckpointSaved as CheckpointSaved
    from ormas_core.record_events import RecordGap as RecordGap
    from ormas_core.record_events import RunResumed as RunResumed
    from ormas_core.replay import Replay as Replay
    from ormas_core.replay import parse_changes as parse_changes
    from ormas_core.replay import replay_run as replay_run
    from ormas_core.report import checkpoint_data as checkpoint_data
    from ormas_core.report import checkpoint_html as checkpoint_html
    from ormas_core.report import checkpoint_lines as checkpoint_lines
    from ormas_core.report import checkpoint_sarif as checkpoint_sarif
    from ormas_core.report import summary as summary
    from ormas_core.run_events import MonitorError as MonitorError
    from ormas_core.run_events import SinkError as SinkError
    from ormas_core.run_events import StopRequested as StopRequested
    from ormas_core.sinks import LoggingSink as LoggingSink
    from ormas_core.sinks import MemorySink as MemorySink
    from ormas_core.sinks import Sink as Sink
    from ormas_core.terms import ChannelLevel as ChannelLevel
    from ormas_core.terms import ChannelSummary as ChannelSummary
    from ormas_core.terms import Diagnosis as Diagnosis
    from ormas_core.terms import ExpertRows as ExpertRows
    from ormas_core.terms import ExpertShare as ExpertShare
    from ormas_core.terms import Mechanism as Mechanism
    from ormas_core.terms import MechanismState as MechanismState
    from ormas_core.terms import NonfiniteCount as NonfiniteCount
    from ormas_core.terms import OutputGradient as OutputGradient
    from ormas_core.terms import SavedFile as SavedFile
    from ormas_core.terms import Severity as Severity
    from ormas_core.terms import Signal as Signal
    from ormas_core.terms import Stage as Stage
    from ormas_core.terms import Status as Status
    from ormas_core.terms import Trend as Trend
    from ormas_core.version import VERSION as __version__  # noqa: N811 - the conventional name

_HOMES: Final = {
    "across": ("ClipStarvation", "ExpertUsage", "ExpertsStarving", "GradientSlope"),
    "alarms": ("AlarmEngine", "Rule"),
    "certificate_events": (
        "Certificate",
        "CertificateRefused",
        "CertificateRevoked",
        "Channels",
        "ChannelsCleared",
        "Repair",
    ),
    "certification": ("Certificates", "certify"),
    "checkpoint_check": ("CheckResult", "check_checkpoint"),
    "checkpoints": ("CATALOGUE", "Finding"),
    "claims": ("CertificateClass", "Claim", "Refusal", "UnitKind"),
    "audit": ("verify_run",),
    "config": ("MonitorConfig",),
    "errors": (
        "CertifyError",
        "CheckpointError",
        "ConfigError",
        "KeyFileError",
        "LayerPatternError",
        "MissingExtraError",
        "OrmasError",
        "RecordChangedError",
        "RecordExistsError",
        "RecordFormatError",
        "RecordLockedError",
        "UnknownOptionError",
        "missing_extra",
    ),
    "diff": ("Difference", "RunDiff", "diff_runs"),
    "events": (
        "Alarm",
        "AlarmCleared",
        "Anchor",
        "Event",
        "LossRecovered",
        "LossReduced",
        "LossSpike",
        "Manifest",
        "Measurement",
        "NoGradients",
        "NonfiniteGradient",
        "NonfiniteLoss",
        "NotLearning",
        "RunEnd",
        "RunStart",
        "SkippedStep",
    ),
    "facts": ("TROUBLE", "FactsFold", "RunFacts", "Trouble", "run_facts"),
    "hooks": ("runs_compiled", "watch_calls"),
    "host": ("Host",),
    "messages": ("describe",),
    "model_events": ("EvalMode", "NonfiniteState", "StatisticsAtOdds", "SwitchedToEval"),
    "monitor": ("Monitor",),
    "options": ("DEFAULT_OUT", "MonitorOptions", "check_options"),
    "record": (
        "ANCHORS_TAG",
        "RecordWriter",
        "Verification",
        "make_keys",
        "model_files",
        "parse_heads",
        "read_heads",
        "read_metrics",
        "read_record",
        "read_run",
        "sign_record",
        "verify_record",
    ),
    "record_events": ("CheckpointSaved", "RecordGap", "RunResumed"),
    "replay": ("Replay", "parse_changes", "replay_run"),
    "report": (
        "checkpoint_data",
        "checkpoint_html",
        "checkpoint_lines",
        "checkpoint_sarif",
        "summary",
    ),
    "run_events": ("MonitorError", "SinkError", "StopRequested"),
    "sinks": ("LoggingSink", "MemorySink", "Sink"),
    "terms": (
        "ChannelLevel",
        "ChannelSummary",
        "Diagnosis",
        "ExpertRows",
        "ExpertShare",
        "Mechanism",
        "MechanismState",
        "NonfiniteCount",
        "OutputGradient",
        "SavedFile",
        "Severity",
        "Signal",
        "Stage",
        "Status",
        "Trend",
    ),
}
_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [*_HOME_OF, "__version__"]  # noqa: PLE0604 - one table serves lookup and export


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("ormas_core.version").VERSION
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'ormas_core' has no attribute {name!r}")
    return getattr(importlib.import_module(f"ormas_core.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
