"""The monitor as a Lightning callback."""

from ormas_core import missing_extra

try:
    import lightning.pytorch  # noqa: F401 - only to name the extra when it is missing
except ImportError as error:
    raise missing_extra("lightning", "lightning") from error

from ormas_lightning.callback import LightningMonitorCallback

__all__ = ["LightningMonitorCallback"]
