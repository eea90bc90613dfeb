"""Settings for every test."""

import os

from hypothesis import settings

# Before any framework is imported: nothing is fetched and nothing is reported to anyone.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["DO_NOT_TRACK"] = "true"
# Tests run side by side; threads of their own would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Deterministic and untimed: the same examples on every machine, however slow it is.
settings.register_profile("ormas", derandomize=True, deadline=None, database=None, max_examples=50)
settings.load_profile("ormas")
