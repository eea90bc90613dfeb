"""A real SQLite store and a real server, both local; nothing here reaches a network."""

import os

# Before MLflow is imported: it reads these when it is.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["DO_NOT_TRACK"] = "true"

import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient


@dataclass(frozen=True)
class Server:
    """A running `mlflow server`."""

    uri: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """Kill the server and its worker processes without a goodbye."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def start_server(folder: Path) -> Server:
    """Start a server on a free port and wait until it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
        *("--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/server.db"),
        *("--artifacts-destination", str(folder / "artifacts")),
    ]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},  # no helpers
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    server = Server(f"http://127.0.0.1:{port}", process)
    for _ in range(600):
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{server.uri}/health", timeout=5):  # noqa: S310 - our own
                return server
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    server.kill()
    pytest.fail(f"the MLflow server did not start:\n{(folder / 'server.log').read_text()}")


@pytest.fixture(scope="session")
def new_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the tables in it, to be copied: MLflow needs seconds to make them."""
    path = tmp_path_factory.mktemp("template") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, new_database: Path) -> Iterator[Server]:
    """A server for the tests of one module; a test that kills it comes last."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(new_database, folder / "server.db")
    running = start_server(folder)
    yield running
    running.kill()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, new_database: Path) -> str:
    """The URI of a SQLite store that the tests of a session share."""
    folder = tmp_path_factory.mktemp("store")
    shutil.copy(new_database, folder)
    uri = f"sqlite:///{folder}/mlflow.db"
    MlflowClient(tracking_uri=uri).create_experiment("user", f"{folder}/artifacts")
    return uri


@pytest.fixture(autouse=True)
def clean_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start each test in an empty folder, without a run or store in the surroundings."""
    home = tmp_path / "cwd"
    home.mkdir()
    monkeypatch.chdir(home)
    # The client would try a dead server for four minutes; the variables count for the process.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    mlflow.set_tracking_uri(None)  # type: ignore[arg-type] # the documented way to unset is none
    yield
    while mlflow.active_run() is not None:
        mlflow.end_run()
    mlflow.set_tracking_uri(None)  # type: ignore[arg-type] # likewise
