"""Settings for the tests on several processes."""

import os

# Before MLflow is imported, which reads it then.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
