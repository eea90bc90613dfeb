"""`ormas-monitor check`: what it prints, where, and with which exit code."""

import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_models import conv_net, saved
from sarif_pydantic import Sarif

from ormas_core import CATALOGUE, check_checkpoint, checkpoint_html, checkpoint_sarif
from ormas_core.cli import check as command
from ormas_core.cli.main import main

HOSTILE = '</td><script>alert(1)</script>\x1b[2J\u202e"\n'


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """A healthy file."""
    return saved(tmp_path / "clean.safetensors", conv_net())


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """A file with a NaN in a tensor whose name is an attack on whoever shows it."""
    state = conv_net()
    state[f"{HOSTILE}.weight"] = torch.full((4, 4), float("nan"))
    return saved(tmp_path / "bad.safetensors", state)


def test_a_clean_file_passes_and_the_last_line_says_why(
    clean: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 0."""
    assert main(["check", str(clean), "--fail-on", "warning"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1] == "exit 0: no finding at or above warning"
    assert shown.err == ""


def test_a_finding_at_the_gate_fails(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 1, and names from the file cannot draw on the terminal."""
    assert main(["check", str(bad)]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("exit 1: 1 finding at or above critical, the first: ")
    assert "16 NaN of 16 elements (100.00%)" in out
    assert not set("\x1b\u202e") & set(out)
    assert "\\x1b[2J\\u202e" in out
    assert main(["check", str(bad), "--fail-on", "never"]) == 0


def test_nothing_to_check_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path that is not there, and a file that is something else."""
    assert main(["check", str(tmp_path / "nowhere")]) == 2
    (tmp_path / "page").write_text("<!DOCTYPE html><html></html>")
    assert main(["check", str(tmp_path / "page"), "--fail-on", "never"]) == 2
    assert capsys.readouterr().out.splitlines()[-1].startswith("exit 2: no tensor of ")


def test_json_is_all_there_is_on_stdout(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object, with the findings, the exit code and the reason."""
    assert main(["check", str(bad), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["exit"] == 1
    assert found["counts"] == {"critical": 1, "warning": 0, "info": 0}
    (one,) = found["findings"]
    assert one["code"] == "nonfinite"
    assert one["tensors"] == [f"{HOSTILE}.weight"]


def _rebuild_aloud() -> torch.Tensor:
    sys.stdout.write("it runs")
    return torch.ones(2)


class _Talks:
    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_aloud, ()


def test_what_trusted_code_prints_is_not_in_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It goes where messages go."""
    torch.save({"w": _Talks()}, tmp_path / "w.pt")
    main(["check", str(tmp_path / "w.pt"), "--trust", "--json"])
    shown = capsys.readouterr()
    assert json.loads(shown.out)["read"] == 1
    assert "it runs" in shown.err


def test_sarif_has_what_the_standard_requires(
    bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The required members of SARIF 2.1.0, levels of its list, rules that are referred to."""
    assert main(["check", str(bad), "--sarif"]) == 1
    log = json.loads(capsys.readouterr().out)
    read = Sarif.model_validate(log)  # another reader of the format: types, closed lists
    assert read.model_dump(mode="json", by_alias=True, exclude_unset=True) == log
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"]
    ids = [rule["id"] for rule in driver["rules"]]
    assert set(ids) <= set(CATALOGUE)
    assert len(set(ids)) == len(ids)
    assert [type(one["executionSuccessful"]) for one in run["invocations"]] == [bool]
    for result in run["results"]:
        assert result["message"]["text"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert ids[result["ruleIndex"]] == result["ruleId"]
        (place,) = result["locations"]
        uri = place["physicalLocation"]["artifactLocation"]["uri"]
        assert re.fullmatch(r"[\w.:/%~-]+", uri)
        assert uri.endswith("bad.safetensors")
        assert place["physicalLocation"]["region"]["startLine"] >= 1


def test_sarif_of_a_relative_path_is_relative(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As code-scanning pages need it, and percent-encoded."""
    monkeypatch.chdir(clean.parent)
    Path("a model").mkdir()
    saved(Path("a model") / "x.safetensors", {"w.weight": torch.zeros(4, 4)})
    result = check_checkpoint("a model")
    (one,) = checkpoint_sarif(result, 0, "")["runs"][0]["results"]
    location = one["locations"][0]["physicalLocation"]["artifactLocation"]
    assert location == {"uri": "a%20model/x.safetensors"}


def test_sarif_leads_to_the_file_that_is_wrong(tmp_path: Path) -> None:
    """A shard that is no weights is a place of its own, not the folder; one full stop is enough."""
    saved(tmp_path / "model-00001-of-00002.safetensors", conv_net())
    (tmp_path / "model-00002-of-00002.safetensors").write_text("<!DOCTYPE html><html></html>")
    places = dict.fromkeys(conv_net(), "model-00001-of-00002.safetensors")
    places["lost"] = "model-00002-of-00002.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (one,) = checkpoint_sarif(check_checkpoint(tmp_path), 0, "")["runs"][0]["results"]
    location = one["locations"][0]["physicalLocation"]["artifactLocation"]
    assert location["uri"].endswith("/model-00002-of-00002.safetensors")
    assert ".." not in one["message"]["text"]


class Page(HTMLParser):
    """Notes the tags and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_needs_nothing_else_and_runs_nothing(bad: Path, tmp_path: Path) -> None:
    """No script, no link, no image, no address; names from the file are text."""
    assert main(["check", str(bad), "--out", str(tmp_path / "report.html")]) == 1
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert not page.tags & {"script", "link", "img", "iframe", "object", "a", "form", "base"}
    assert not page.attributes & {"src", "href", "onclick", "style"}
    assert "url(" not in text
    assert "@import" not in text
    assert "</td><script>alert(1)</script>" in page.text
    assert not set("\x1b\u202e") & set(text)
    assert "Exit code 1" in page.text


def test_a_clean_page_says_none(clean: Path) -> None:
    """And names what was checked."""
    result = check_checkpoint(clean)
    page = Page()
    page.feed(checkpoint_html(result, *result.verdict()))
    assert "None." in page.text
    assert str(clean) in page.text


def test_a_page_that_cannot_be_written_loses_no_finding(
    bad: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are printed first; the failure is exit 2."""
    assert main(["check", str(bad), "--out", str(tmp_path / "no" / "report.html")]) == 2
    shown = capsys.readouterr()
    assert "nonfinite" in shown.out
    assert "report.html" in shown.err


def test_the_bar_is_for_terminals_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn after a while only, on standard error, and wiped."""
    clock = iter([0.0, 0.1, 1.0, 1.01, 2.0])
    stream = io.StringIO()
    monkeypatch.setattr(command.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(sys, "stderr", stream)
    bar = command._Bar()
    for done in (1, 50, 51, 100):
        bar.show(done, 100)
    bar.clear()
    drawn = stream.getvalue().split("\r")
    assert [part[-4:].strip() for part in drawn if part.endswith("%")] == ["50%", "100%"]
    assert drawn[-2].strip() == drawn[-1] == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar_is_drawn_for_terminals_alone(
    terminal: bool, clean: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log of a job has none, and what is on standard output is JSON in both."""
    monkeypatch.setattr(command, "_PATIENCE_S", 0)
    monkeypatch.setattr(command, "_EVERY_S", 0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    assert main(["check", str(clean), "--json"]) == 0
    shown = capsys.readouterr()
    assert ("100%" in shown.err) is terminal
    assert json.loads(shown.out)["exit"] == 0


@pytest.mark.parametrize("option", [[], ["--json"], ["--sarif"]])
def test_a_check_of_safetensors_works_without_torch(clean: Path, option: list[str]) -> None:
    """It is not imported, and neither is any framework."""
    code = (
        "import sys\nfrom ormas_core.cli.main import main\n"
        f"code = main(['check', {str(clean)!r}, *{option!r}])\n"
        "heavy = {'torch', 'transformers', 'jinja2', 'cryptography'} & set(sys.modules)\n"
        "sys.exit(code if not heavy else f'{heavy} imported')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_folder_without_batch_norms_is_checked_without_torch(tmp_path: Path) -> None:
    """Its config.json is read; no model is built of it."""
    saved(tmp_path / "model.safetensors", {"model.norm.weight": torch.ones(16)})
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    code = (
        "import sys\nfrom ormas_core import check_checkpoint\n"
        f"check_checkpoint({str(tmp_path)!r})\n"
        "sys.exit(len({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_empty_path_is_not_the_present_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """A variable of a job that was never set must not pass the gate."""
    for given in (["check", ""], ["check", "x", "--against", ""]):
        with pytest.raises(SystemExit) as end:
            main(given)
        assert end.value.code == 2
        assert "it is empty; name a file or a folder" in capsys.readouterr().err


def test_a_page_is_not_written_over_the_weights(
    clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option that was mixed up costs no model; an older page is replaced."""
    before = clean.read_bytes()
    assert main(["check", str(clean), "--out", str(clean)]) == 2
    assert "exists and is no HTML page: not overwritten" in capsys.readouterr().err
    assert clean.read_bytes() == before
    page = tmp_path / "page.html"
    for _ in range(2):
        assert main(["check", str(clean), "--out", str(page)]) == 0


def test_a_page_that_cannot_be_written_costs_no_finding(
    bad: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are printed, and then the error says what could not be written, and why."""
    assert main(["check", str(bad), "--json", "--out", str(tmp_path / "no" / "page.html")]) == 2
    shown = capsys.readouterr()
    assert json.loads(shown.out)["counts"]["critical"] == 1
    assert "No such file or directory. The findings above hold." in shown.err
