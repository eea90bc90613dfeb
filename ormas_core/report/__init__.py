"""What a person reads of a run and of a checkpoint."""

from ormas_core.report.checkpoint_json import checkpoint_data, checkpoint_sarif
from ormas_core.report.checkpoint_page import checkpoint_html
from ormas_core.report.checkpoint_text import checkpoint_lines
from ormas_core.report.text import summary

__all__ = [
    "checkpoint_data",
    "checkpoint_html",
    "checkpoint_lines",
    "checkpoint_sarif",
    "summary",
]
