"""The tables and lists of the documents are those of the code."""

import argparse
import dataclasses
import re
from pathlib import Path

import pytest

from ormas_core import ConfigError, MonitorConfig, Status
from ormas_core.cli.main import COMMANDS
from ormas_core.events import EVENT_TYPES
from ormas_core.options import DEFAULTS, MonitorOptions
from ormas_core.terms import MechanismState

DOCS = Path(__file__).parents[2] / "docs"


def read(page: str) -> str:
    """Return the text of a page without its code blocks."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.sub(r"^```.*\n(?:.*\n)*?```$", "", text, flags=re.MULTILINE)


def rows(page: str) -> list[list[str]]:
    """Return the cells of the table rows of a page whose first cell is code."""
    lines = [line for line in read(page).splitlines() if line.startswith("| `")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def sections(page: str, prefix: str) -> dict[str, str]:
    """Return the text under each heading that starts with `prefix`, by the rest of the heading."""
    parts = re.split(r"^#+ ", read(page), flags=re.MULTILINE)
    found = [part.partition("\n") for part in parts if part.startswith(prefix)]
    return {head.removeprefix(prefix).strip("`"): text for head, _, text in found}


def test_settings_are_the_config() -> None:
    """Every field once, in order, with its default and its least value."""
    table = rows("reference/config.md")
    fields = {field.name: field.default for field in dataclasses.fields(MonitorConfig)}
    assert [(row[0], row[1]) for row in table] == [(n, repr(d)) for n, d in fields.items()]
    for name, default, least, *_ in table:
        if not least:
            continue
        kind = float if fields[name] is None else type(fields[name])
        assert fields[name] is None or kind(default) >= kind(least)
        MonitorConfig(**{name: kind(least)})
        with pytest.raises(ConfigError):
            MonitorConfig(**{name: kind(least) - kind(1)})


def test_options_are_all_explained() -> None:
    """Those of `Monitor` that are no settings have a table of their own."""
    section = sections("reference/config.md", "Options of ")["Monitor` that are no settings"]
    named = re.findall(r"^\| (\w+) \|", section, re.MULTILINE)[1:]
    settings = {field.name for field in dataclasses.fields(MonitorConfig)}
    assert sorted(named) == sorted(MonitorOptions.__annotations__.keys() - settings)


def test_thresholds_of_the_alarms_are_the_defaults() -> None:
    """The page about alarms repeats them."""
    table = rows("concepts/alarms.md")
    assert table
    for name, default, *_ in table:
        assert repr(getattr(DEFAULTS, name)) == default


def test_events_are_the_vocabulary() -> None:
    """Every kind once, with its severity and all its fields in order."""
    found = sections("concepts/events.md", "`")
    assert sorted(found) == sorted(EVENT_TYPES)
    for kind, text in found.items():
        cls = EVENT_TYPES[kind]
        assert f"Severity: {cls.severity}." in text, kind
        named = re.findall(r"^- `(\w+)`", text, re.MULTILINE)
        own = [field.name for field in dataclasses.fields(cls)]
        assert named == [name for name in own if name not in {"step", "time_ns", "lane"}], kind


@pytest.mark.parametrize("names", [Status, MechanismState], ids=["status", "mechanism"])
def test_states_are_all_explained(names: type[Status | MechanismState]) -> None:
    """Each status of a run and each state of a mechanism has its row, once."""
    first = [row[0] for row in rows("concepts/events.md")]
    assert sorted(name for name in first if name in set(names)) == sorted(names)


def test_commands_are_the_command_line() -> None:
    """Every command has its section with all its options; exit codes are 0, 1 and 2."""
    found = sections("reference/cli.md", "ormas-monitor ")
    assert list(found) == list(COMMANDS)
    for name, module in COMMANDS.items():
        parser = argparse.ArgumentParser(add_help=False)
        module.add_arguments(parser)
        own = {
            option
            for action in parser._actions
            for option in action.option_strings or [action.dest.upper()]
        }
        assert set(re.findall(r"^- `([\w-]+)`", found[name], re.MULTILINE)) == own, name
    assert [row[0] for row in rows("reference/cli.md") if row[0].isdigit()] == ["0", "1", "2"]


def test_tags_are_those_of_the_sink() -> None:
    """The MLflow guide has every tag and every metric, and no other."""
    from ormas_mlflow import metrics, tags

    known = {
        value
        for module in (metrics, tags)
        for value in vars(module).values()
        if isinstance(value, str) and value.startswith("ormas.")
    }
    named = {row[0].split("<")[0] for row in rows("guides/mlflow.md")}
    assert named == known
