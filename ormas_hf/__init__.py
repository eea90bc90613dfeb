"""The monitor as a callback of the transformers Trainer."""

from ormas_core import missing_extra

try:
    import accelerate  # noqa: F401 - only to name the extra when it is missing
    import transformers  # noqa: F401 - likewise
except ImportError as error:
    raise missing_extra(error.name or "transformers", "hf") from error

from ormas_hf.callback import HFMonitorCallback

__all__ = ["HFMonitorCallback"]
