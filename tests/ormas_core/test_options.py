"""The keyword options that `Monitor` and the adapters share."""

import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from ormas_core import Monitor
from ormas_core.config import MonitorConfig
from ormas_core.errors import ConfigError, OrmasError, UnknownOptionError
from ormas_core.options import DEFAULT_OUT, MonitorOptions, check_options, make_config
from ormas_core.sinks import MemorySink, Sink

REFUSED: list[tuple[str, Any]] = [
    ("out", ""),
    ("out", 3),
    ("out", None),
    ("layers", []),
    ("layers", 3),
    ("check_every", 0),
    ("check_every", True),
    ("check_every", 1.5),
    ("patience", 0),
    ("sigma", -1.0),
    ("sigma", float("nan")),
    ("sigma", "2.5"),
    ("warmup", 1),
    ("stop_on", ("nothing that is ever said",)),
    ("repair", "some"),
    ("repair", 0),
    ("repair", None),
    ("sinks", None),
    ("sinks", "mlflow"),
    ("sinks", b"x"),
    ("sinks", 3),
    ("sinks", MemorySink()),
    ("sinks", [MemorySink]),
    ("sinks", [MemorySink(), object()]),
    ("name", 3),
    ("name", b"run"),
    ("scaler", "auto"),
    ("scaler", True),
    ("overwrite", "no"),
    ("overwrite", None),
    ("verbose", 1),
    ("resume", "yes"),
    ("resume", None),
    ("config", {"sigma": 2.0}),
    ("config", 3),
]


def _ids(case: Any) -> str:
    return repr(case)[:30]


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=_ids)
def test_a_value_that_cannot_be_used_is_refused_by_name(name: str, value: Any) -> None:
    """Where the adapter is constructed, with the option's name in the message."""
    with pytest.raises(ConfigError, match=name) as caught:
        check_options(MonitorOptions(**{name: value}))  # type: ignore[misc]
    assert caught.value.subject == name


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=_ids)
def test_the_monitor_refuses_what_check_options_refuses(
    tmp_path: Path, name: str, value: Any
) -> None:
    """With the same words, and before anything is written."""
    with pytest.raises(OrmasError) as early:
        check_options(MonitorOptions(**{name: value}))  # type: ignore[misc]
    with pytest.raises(OrmasError) as late:
        Monitor(nn.Linear(2, 2), **{"out": tmp_path / "run", name: value})
    assert (type(late.value), str(late.value)) == (type(early.value), str(early.value))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("out", 3, "out must be the path of the run folder; got 3"),
        ("name", 3, "name must be a text or None; got 3"),
        ("overwrite", "no", "overwrite must be True or False; got 'no'"),
        ("scaler", "auto", "scaler must be a torch GradScaler or None; got 'auto'"),
        ("config", 3, "config must be a MonitorConfig; got int"),
        ("sinks", "x", "sinks must be a list of sinks; got 'x'"),
        ("sinks", [3], "each of sinks needs the methods write(event) and close(); got 3"),
        (
            "repair",
            "some",
            (
                "repair must be False, True (certified, flat and decayed channels) or 'all' "
                "(silent ones too); got 'some'"
            ),
        ),
    ],
)
def test_a_refusal_says_what_was_asked_and_what_was_given(
    name: str, value: Any, message: str
) -> None:
    """Word for word."""
    with pytest.raises(ConfigError) as caught:
        check_options(MonitorOptions(**{name: value}))  # type: ignore[misc]
    assert str(caught.value) == message


def test_resuming_and_overwriting_exclude_each_other(tmp_path: Path) -> None:
    """One of them would have to be ignored, and a record may be at stake."""
    options = MonitorOptions(out=tmp_path / "run", resume=True, overwrite=True)
    for refuse in (check_options, lambda given: Monitor(nn.Linear(2, 2), **given)):
        with pytest.raises(ConfigError, match="resume=True and overwrite=True") as caught:
            refuse(options)
        assert caught.value.subject == "resume"
    assert list(tmp_path.iterdir()) == []


def test_every_option_can_be_refused() -> None:
    """A new option needs a case above: there is none of which any value can be used."""
    assert {name for name, _ in REFUSED} == set(MonitorOptions.__annotations__)


def test_the_options_are_the_monitors_keywords() -> None:
    """All of them but model, optimizer and what only adapters pass, in the same order."""
    parameters = inspect.signature(Monitor).parameters
    names = [name for name in parameters if name not in ("model", "optimizer", "host", "clock")]
    assert list(typing.get_type_hints(MonitorOptions)) == names
    assert list(parameters)[:2] == ["model", "optimizer"]


def test_the_monitors_defaults_are_the_configs() -> None:
    """A shortcut at its default must mean that it was not given."""
    parameters = inspect.signature(Monitor).parameters
    for name in ("layers", "check_every", "patience", "sigma", "warmup", "stop_on"):
        assert parameters[name].default == getattr(MonitorConfig(), name)
    assert parameters["out"].default == DEFAULT_OUT


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    """The message lists every option."""
    with pytest.raises(UnknownOptionError, match="Unknown option 'chek_every'") as caught:
        check_options(MonitorOptions(chek_every=5))  # type: ignore[typeddict-unknown-key]
    assert caught.value.subject == "chek_every"
    names = ", ".join(MonitorOptions.__annotations__)
    assert str(caught.value) == f"Unknown option 'chek_every'. The options are: {names}."


def test_usable_options_come_back_as_a_copy() -> None:
    """The caller's mapping stays his, whatever happens to the copy."""
    given = MonitorOptions(
        out="run",
        layers=["a", "b"],
        check_every=5,
        name="x",
        config=MonitorConfig(sigma=3.0),
        repair=False,
        sinks=[MemorySink()],
    )
    before = dict(given)
    found = check_options(given)
    assert found is not given
    assert {**found, "sinks": list(found["sinks"])} == given == before


def test_sinks_from_a_generator_are_not_used_up() -> None:
    """An adapter uses its options once per segment."""

    def sinks() -> Iterator[Sink]:
        yield from (first, second)

    first, second = MemorySink(), MemorySink()
    found = check_options(MonitorOptions(sinks=sinks()))
    assert tuple(found["sinks"]) == tuple(found["sinks"]) == (first, second)


def test_shortcuts_count_before_the_config() -> None:
    """`Monitor(config=c, sigma=4.0)` means sigma 4.0 and everything else as in `c`."""
    config = MonitorConfig(sigma=3.0, warmup=5, anchor_every=7)
    assert make_config(config, {"sigma": 4.0, "layers": "head"}) == MonitorConfig(
        sigma=4.0, warmup=5, anchor_every=7, layers=("head",)
    )


def test_a_shortcut_at_its_default_leaves_the_config() -> None:
    """It cannot be told from one that was not given."""
    config = MonitorConfig(sigma=3.0, layers=("head",))
    assert make_config(config, {"sigma": 2.5, "layers": None, "warmup": 8}) == config


def test_without_a_config_the_defaults_count() -> None:
    """With the shortcuts given."""
    assert make_config(None, {}) == MonitorConfig()
    assert make_config(None, {"check_every": 5}) == MonitorConfig(check_every=5)


@pytest.mark.parametrize("config", [{"sigma": 3.0}, 3, MonitorConfig])
def test_a_config_of_another_type_is_refused(config: Any) -> None:
    """The message says what was given."""
    with pytest.raises(ConfigError, match="config must be a MonitorConfig; got") as caught:
        make_config(config, {})
    assert type(config).__name__ in str(caught.value)


@pytest.mark.parametrize("out", ["run", Path("run")])
def test_a_folder_may_be_text_or_a_path(out: str | Path) -> None:
    """Both are kept as they are."""
    assert check_options(MonitorOptions(out=out))["out"] == out
