"""Versions of the package and of what it writes."""

from typing import Final

VERSION: Final = "0.1.0"
RECORD_SCHEMA: Final = 2
