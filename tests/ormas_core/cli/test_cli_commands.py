"""The command line: verify, summary, help."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ormas_core import RecordWriter, RunEnd, Status
from ormas_core.cli.main import COMMANDS, main
from ormas_core.record import CHECKS
from ormas_core.testing import measurement, run_start


def write_run(folder: Path, *, ended: bool = True) -> None:
    """Write a small record, closed or as a crash leaves it."""
    writer = RecordWriter(folder)
    writer.write(run_start())
    for step in range(3):
        writer.write(measurement(step, {"layer": 1.0}, loss=0.5))
    if ended:
        writer.write(RunEnd(step=3, steps=3, checks=3, counts={}, status=Status.HEALTHY))
        writer.write(writer.anchor(3))
    writer.close()


def test_verify_passes_a_whole_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every question is listed with its answer, in order, and the head last."""
    write_run(tmp_path / "run")
    assert main(["verify", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [tuple(line.split(": ")[0].split(maxsplit=1)) for line in lines[:-1]] == [
        ("PASS", "chain"),
        ("PASS", "completeness"),
        ("PASS", "metrics"),
        ("PASS", "schema"),
        ("SKIPPED", "certificates"),
        ("ABSENT", "seal"),
        ("ABSENT", "signature"),
        ("ABSENT", "model files"),
        ("SKIPPED", "witness"),
        ("SKIPPED", "canonical"),
    ]
    assert lines[-1].startswith("head ")


def test_keygen_sign_and_verify_go_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record that is signed for a model passes --strict with the key and that model."""
    run, key, model = str(tmp_path / "run"), str(tmp_path / "key"), tmp_path / "model.bin"
    write_run(tmp_path / "run")
    model.write_bytes(b"weights")
    assert main(["verify", run, "--strict"]) == 1
    assert main(["keygen", key]) == 0
    assert main(["keygen", key]) == 2
    assert "never overwritten" in capsys.readouterr().err
    assert main(["sign", run, "--key", key, "--model", str(model)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "sealed    3 files; the run is healthy"
    asked = ["verify", run, "--key", f"{key}.pub", "--model", str(model), "--strict"]
    assert main(asked) == 0
    assert main(["verify", run, "--strict"]) == 1
    model.write_bytes(b"another")
    assert main(asked) == 1
    assert main(["sign", run, "--key", key]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main(["sign", str(tmp_path), "--key", key]) == 2
    assert main(["verify", run, "--key", str(tmp_path / "nowhere")]) == 2
    assert main(["verify", run, "--witness", str(tmp_path / "nowhere")]) == 2


def test_a_file_that_changes_meanwhile_is_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A void result is no verdict."""
    from ormas_core.record import inspection

    write_run(tmp_path / "run")
    whole = inspection._examine

    def meanwhile(*arguments: object) -> None:
        with (tmp_path / "run" / "record.jsonl").open("ab") as file:
            file.write(b"x")
        whole(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(inspection, "_examine", meanwhile)
    assert main(["verify", str(tmp_path / "run")]) == 2
    assert "the result is void" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["record.jsonl", "metrics.jsonl"])
def test_verify_refuses_a_changed_byte(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1, and the failing line is named."""
    write_run(tmp_path / "run")
    path = tmp_path / "run" / name
    path.write_bytes(path.read_bytes().replace(b'"step":0', b'"step":9', 1))
    assert main(["verify", str(tmp_path / "run")]) == 1
    out = capsys.readouterr().out
    assert "FAIL" in out
    assert f"{name}, line 1" in out


def test_an_interrupted_record_is_fine_unless_strict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Completeness is absent: exit 0, and 1 with --strict."""
    write_run(tmp_path / "run", ended=False)
    assert main(["verify", str(tmp_path / "run")]) == 0
    assert "INTERRUPTED" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "run"), "--strict"]) == 1


def test_verify_json_is_only_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output parses, and says what the exit code says."""
    write_run(tmp_path / "run")
    assert main(["verify", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert [check["name"] for check in found["checks"]] == list(CHECKS)
    assert {check["outcome"] for check in found["checks"]} == {"pass", "absent", "skipped"}
    assert set(found) == {"folder", "checks", "head", "lines", "ok"}


@pytest.mark.parametrize("command", ["verify", "summary"])
def test_no_record_is_exit_2_with_the_path(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing inspected is not a pass, and the message names the file."""
    assert main([command, str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err


def test_a_record_without_a_start_is_not_summarised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty file is exit 2: nothing was inspected."""
    (tmp_path / "record.jsonl").touch()
    assert main(["summary", str(tmp_path)]) == 2
    assert "no start of a run" in capsys.readouterr().err


def test_usage_errors_are_exit_2() -> None:
    """A missing command ends with argparse's own code."""
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2


def test_summary_shows_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The recorded status is shown, and a crash reads INTERRUPTED."""
    write_run(tmp_path / "whole")
    write_run(tmp_path / "crashed", ended=False)
    assert main(["summary", str(tmp_path / "whole")]) == 0
    assert "HEALTHY" in capsys.readouterr().out
    assert main(["summary", str(tmp_path / "crashed")]) == 0
    assert "INTERRUPTED" in capsys.readouterr().out


def test_help_imports_no_framework() -> None:
    """`ormas-monitor --help` answers without torch, and so does `verify` on a record."""
    code = (
        "import sys, contextlib, io\n"
        "from ormas_core.cli.main import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "    main(['--help'])\n"
        "main(['verify', '/nonexistent'])\n"
        "heavy = {'torch', 'numpy', 'lightning', 'transformers', 'mlflow'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The overview names each command with its one line."""
    with pytest.raises(SystemExit):
        main(["--help"])
    out = " ".join(capsys.readouterr().out.split())
    for name, module in COMMANDS.items():
        assert f"{name} {module.HELP}" in out
