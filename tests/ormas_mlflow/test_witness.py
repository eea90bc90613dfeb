"""`verify --witness mlflow:RUN_ID`: heads that went to a tracker while the run was going on."""

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow_support import sql_store, user_run
from torch import nn

from ormas_core import ANCHORS_TAG, ConfigError, Monitor, MonitorConfig, parse_heads, read_record
from ormas_core.cli.main import main
from ormas_core.record import RECORD_FILE, chain
from ormas_mlflow import MLflowSink, tags, witness_tags

pytestmark = sql_store


def train(folder: Path, uri: str, run_id: str, *, name: str = "first", checks: int = 6) -> None:
    """Train with a check and an anchor at each step, sending heads to an MLflow run."""
    net = nn.Linear(2, 1)
    config = MonitorConfig(check_every=1, anchor_every=1)
    sink = MLflowSink(tracking_uri=uri, run_id=run_id)
    monitor = Monitor(net, out=folder, config=config, sinks=[sink], name=name, verbose=False)
    for _ in range(checks):
        net.zero_grad()
        loss = net.weight.sum()
        loss.backward()
        monitor.step(loss)
    monitor.close()


def forge(folder: Path) -> None:
    """Write the whole record anew under the same identifier, with another verdict."""
    data, head = b"", chain.GENESIS
    for raw in (folder / RECORD_FILE).read_bytes().splitlines():
        members = json.loads(raw)
        del members["hash"]
        if members["event"] == "run_start":
            members["model"] = "Forged"
        if members["event"] == "anchor":
            members["head"] = head
        line, head = chain.seal({**members, "prev": head})
        data += line
    (folder / RECORD_FILE).write_bytes(data)


def verify(folder: Path, uri: str, run_id: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the exit code, and what the command says of the witness."""
    arguments = ["--witness", f"mlflow:{run_id}", "--tracking-uri", uri]
    code = main(["verify", str(folder), *arguments])
    lines = capsys.readouterr().out.splitlines()
    return [str(code), *(line for line in lines if " witness: " in line)]


@pytest.mark.parametrize("where", ["store", "server"])
def test_a_forged_record_differs_from_its_witness(
    where: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a database and through a real server: the true record passes, the forged one does not."""
    found = request.getfixturevalue(where)
    uri = found if isinstance(found, str) else found.uri
    client = MlflowClient(tracking_uri=uri)
    run_id = client.create_run(client.create_experiment(f"witness {where}")).info.run_id
    train(tmp_path / "run", uri, run_id)
    code, says = verify(tmp_path / "run", uri, run_id, capsys)
    anchors = [line.event for line in read_record(tmp_path / "run") if line.event.kind == "anchor"]
    assert code == "0"
    assert says.startswith(f"PASS      witness: All {len(anchors)} heads of the witness")
    forge(tmp_path / "run")
    assert main(["verify", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    code, says = verify(tmp_path / "run", uri, run_id, capsys)
    assert code == "1"
    first = anchors[0].lines
    assert says.startswith("FAIL      witness: The record is not the one that was witnessed: ")
    assert f"line {first} has the hash " in says


def test_heads_of_another_record_on_the_same_run_do_not_count(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two trainings in one MLflow run have heads of their own."""
    run_id = user_run(store)
    for name in ("a", "b"):
        train(tmp_path / name, store, run_id, name=name)
    for name in ("a", "b"):
        assert verify(tmp_path / name, store, run_id, capsys)[0] == "0"


def test_an_mlflow_run_without_heads_proves_nothing(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither does one of another training."""
    run_id, other = user_run(store), user_run(store)
    train(tmp_path / "run", store, run_id)
    assert verify(tmp_path / "run", store, other, capsys) == [
        "1",
        "FAIL      witness: The witness holds no head, so it proves nothing.",
    ]


def test_a_run_that_mlflow_does_not_have_is_exit_2(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing was compared, which is no verdict on the record."""
    train(tmp_path / "run", store, user_run(store))
    arguments = ["--witness", "mlflow:nothing", "--tracking-uri", store]
    assert main(["verify", str(tmp_path / "run"), *arguments]) == 2
    assert "MLflow gave no run 'nothing'" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="--tracking-uri"):
        witness_tags("nothing", "0" * 32, tracking_uri=store)


def test_sink_and_verifier_agree_on_the_tags() -> None:
    """One prefix; and what the sink writes is what the verifier parses."""
    assert tags.RECORD_ANCHORS == ANCHORS_TAG
    assert parse_heads([f"3:{'a' * 64} 7:{'b' * 64}"]) == {3: "a" * 64, 7: "b" * 64}
