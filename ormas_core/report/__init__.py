"""Reports for people, made from `RunFacts`."""

from ormas_core.report.text import summary

__all__ = ["summary"]
