"""Two runs side by side: integrity first, then what differs."""

import dataclasses
from pathlib import Path

import alarm_streams
import event_samples
import pytest

from ormas_core.cli.main import main
from ormas_core.config import MonitorConfig
from ormas_core.diff import TOPICS, Difference, diff_runs
from ormas_core.events import Event
from ormas_core.facts import LossFacts, loss_facts
from ormas_core.record import RECORD_FILE, RecordWriter
from ormas_core.testing import FakeClock, measurement, run_start


def write(folder: Path, *events: Event, **changes: object) -> None:
    """Write a finished run with these events."""
    writer, clock = RecordWriter(folder), FakeClock()
    start = dataclasses.replace(run_start(("body", "head")), **changes)  # type: ignore[arg-type]
    for event in (start, *events, event_samples.run_end()):
        writer.write(dataclasses.replace(event, time_ns=clock()))
    writer.write(writer.anchor(1))
    writer.close()


def alarm(layer: str, step: int) -> Event:
    found = event_samples.sample_events()["alarm"]
    return dataclasses.replace(found, layer=layer, step=step)  # type: ignore[call-arg]


def topics(differences: tuple[Difference, ...]) -> dict[tuple[str, str], tuple[str, str]]:
    return {(d.topic, d.what): (d.first, d.second) for d in differences}


def test_a_run_does_not_differ_from_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the command says so."""
    write(tmp_path / "a", measurement(0, {"head": 1.0}, loss=0.5))
    found = diff_runs(tmp_path / "a", tmp_path / "a")
    assert found.sound
    assert found.differences == ()
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "a")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "No difference."


def test_everything_that_differs_is_named(tmp_path: Path) -> None:
    """Settings, model, alarms of each layer, other events by kind, losses and the verdict."""
    samples = event_samples.sample_events()
    write(
        tmp_path / "a", measurement(0, {"head": 1.0}, loss=0.5), alarm("head", 3), alarm("head", 9)
    )
    write(
        tmp_path / "b",
        measurement(0, {"head": 1.0}, loss=0.25),
        measurement(1, {"head": 1.0}, loss=2.0),
        alarm("body", 4),
        samples["loss_reduced"],
        model="Other",
        layers=("head",),
        versions={"torch": "2.13"},
        config=MonitorConfig(sigma=3.0),
    )
    found = topics(diff_runs(tmp_path / "a", tmp_path / "b").differences)
    assert found == {
        ("config", "sigma"): ("2.5", "3.0"),
        ("model", "class"): ("Model", "Other"),
        ("model", "version of torch"): ("none", "2.13"),
        ("model", "layer body"): ("watched", "none"),
        ("alarms", "head: exploding"): ("2, first at step 3", "none"),
        ("alarms", "body: exploding"): ("none", "1, first at step 4"),
        ("events", "loss_reduced"): ("none", "1"),
        ("loss", "first"): ("0.5", "0.25"),
        ("loss", "last"): ("0.5", "2"),
        ("loss", "least"): ("0.5", "0.25"),
        ("loss", "checks with a loss"): ("1", "2"),
    }
    assert {topic for topic, _ in found} <= set(TOPICS)


def test_any_other_kind_of_event_is_counted(tmp_path: Path) -> None:
    """Certificates too, whatever their kinds are called: nothing is listed by hand."""
    samples = event_samples.sample_events()
    frame = {"run_start", "run_resumed", "run_end", "manifest", "anchor", "measurement", "alarm"}
    # A made-up certificate does not pass its check, and then nothing is compared.
    kinds = [kind for kind in samples if kind not in {*frame, "certificate"}]
    write(tmp_path / "a")
    write(tmp_path / "b", *(samples[kind] for kind in kinds))
    found = topics(diff_runs(tmp_path / "a", tmp_path / "b").differences)
    assert {what for topic, what in found if topic == "events"} == set(kinds)


def test_integrity_comes_first_and_alone_where_it_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a broken record says is not compared; exit 1."""
    write(tmp_path / "a")
    write(tmp_path / "b", alarm("head", 3), config=MonitorConfig(sigma=3.0))
    path = tmp_path / "b" / RECORD_FILE
    path.write_bytes(path.read_bytes().replace(b'"steps":1', b'"steps":2'))
    found = diff_runs(tmp_path / "a", tmp_path / "b")
    assert not found.sound
    assert {difference.topic for difference in found.differences} == {"integrity"}
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    out = capsys.readouterr().out
    assert f"B  {tmp_path / 'b'}: not sound" in out
    assert "   FAIL chain: record.jsonl, line 3: its bytes hash to" in out
    assert out.endswith("What a broken record says is not compared.\n")


def test_an_interrupted_run_is_compared_and_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is sound as far as it goes."""
    event_samples.write_run(tmp_path / "a")
    event_samples.write_run(tmp_path / "b", finished=False)
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    out = capsys.readouterr().out
    assert f"A  {tmp_path / 'a'}: complete\nB  {tmp_path / 'b'}: not complete\n" in out
    assert "  completeness: pass -> absent" in out
    assert "  status: healthy -> interrupted" in out


def test_a_folder_without_a_record_is_exit_2(tmp_path: Path) -> None:
    """There is nothing to compare with."""
    write(tmp_path / "a")
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "nothing")]) == 2


def test_losses_that_are_not_finite_are_left_out() -> None:
    """A NaN would be the first, the last and the least of all."""
    nan, inf = float("nan"), float("inf")
    rows = alarm_streams.losses(None, nan, 3.0, 1.0, inf, 2.0, None)
    assert loss_facts(rows) == LossFacts(3, 3.0, 2.0, 1.0)
    assert loss_facts([]).count == 0
