"""The codec: every event survives the way to JSON and back, and nothing else is accepted."""

import dataclasses
import json
import math
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import event_samples
import event_strategies
import numpy as np
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from ormas_core.config import MonitorConfig
from ormas_core.errors import RecordFormatError
from ormas_core.events import EVENT_TYPES, RunStart
from ormas_core.record import chain, codec, decode, encode
from ormas_core.record.codec import ADDED
from ormas_core.record.reader import parse_line
from ormas_core.run_events import SinkError

KINDS = sorted(EVENT_TYPES)
FRAME = {"seq", "event", "step", "time_ns", "severity", "prev", "hash"}
MEMBERS = {
    "run_start": "run_id name framework model optimizer layers parameters trainable world_size "
    "segment schema versions config",
    "manifest": "mechanisms",
    "measurement": "attempt stage scale skipped_in_a_row loss loss_elements layers norms nonfinite "
    "outputs output_peaks gradient_type experts channels cost_ns loss_replaced evaluating "
    "drifting untouched clip_norm clip_factor",
    "alarm": "layer diagnosis value normal sigma stage detail",
    "alarm_cleared": "layer diagnosis value normal since_step",
    "gradient_slope": "trend signal factor first last layers first_value last_value gradient_type "
    "layers_left beyond",
    "experts_starving": "container experts starving rare checks",
    "expert_usage": "container experts starving rare checks",
    "loss_spike": "value normal sigma",
    "loss_recovered": "value normal since_step",
    "clip_starvation": "layer value factor clip_norm rest",
    "nonfinite_state": "layers",
    "eval_mode": "modules",
    "switched_to_eval": "modules before",
    "statistics_at_odds": "drifting untouched",
    "stop_requested": "reasons ranks",
    "nonfinite_loss": "value replaced",
    "nonfinite_gradient": "layer layers after before output_finite loss",
    "skipped_step": "layer scale in_a_row",
    "certificate": "layer units cls kind optimizer conditions still initial trace graph engine",
    "certificate_refused": "layer units reason",
    "certificate_revoked": "layer units cls reason",
    "channels": "layer level n certified flat decayed silent initial",
    "channels_cleared": "layer n since_step",
    "repair": "layer units cause changed delta relative refused",
    "not_learning": "layer skipped scale_before scale since_step",
    "no_gradients": "absent layers",
    "loss_reduced": "elements",
    "sink_error": "sink error",
    "monitor_error": "error",
    "anchor": "head lines metrics_head metrics_rows metrics_bytes",
    "run_resumed": "attempt restored head lines metrics_rows reached repeated ended "
    "checkpoint_head checkpoint_lines checkpoint_rows torn_record_bytes torn_metrics_bytes detail",
    "record_gap": "error events measurements",
    "checkpoint_saved": "path files",
    "run_end": "steps checks counts status error",
}
SEVERITIES = {
    "action": {"repair"},
    "critical": {
        "nonfinite_loss",
        "nonfinite_gradient",
        "nonfinite_state",
        "not_learning",
        "stop_requested",
    },
    "proof": {"certificate"},
    "warning": {
        "alarm",
        "certificate_revoked",
        "clip_starvation",
        "experts_starving",
        "gradient_slope",
        "loss_spike",
        "monitor_error",
        "no_gradients",
        "record_gap",
        "sink_error",
        "statistics_at_odds",
        "switched_to_eval",
    },
}


def _sealed(members: Mapping[str, Any]) -> bytes:
    line, _ = chain.seal({**members, "seq": 0, "prev": chain.GENESIS})
    return line


def _refuse(constant: str) -> float:
    raise AssertionError(f"{constant} is not JSON")


def _number(digits: str) -> int | float:
    # RFC 8785 writes the float 1e20 as digits; only integers in the safe range are integers.
    return int(digits) if abs(int(digits)) <= event_strategies.SAFE else float(digits)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_decoding_returns_the_event_that_was_encoded(kind: str, data: st.DataObject) -> None:
    """`decode(encode(event)) == event` by way of the bytes, for every event of every kind."""
    event = data.draw(event_strategies.events(kind))
    found = parse_line(_sealed(encode(event)).rstrip(b"\n")).event
    assert event_strategies.same(event, found)
    assert event_strategies.has_declared_types(found, EVENT_TYPES[kind])


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_every_line_is_strict_and_canonical_json(kind: str, data: st.DataObject) -> None:
    """A line is one strict JSON object, and without its hash it is canonical by RFC 8785."""
    line = _sealed(encode(data.draw(event_strategies.events(kind))))
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    members = json.loads(line, parse_constant=_refuse, parse_int=_number)
    digest = members.pop("hash")
    body = line.removesuffix(b',"hash":"' + digest.encode() + b'"}\n') + b"}"
    assert rfc8785.dumps(members) == body


@pytest.mark.parametrize("kind", KINDS)
def test_the_members_of_a_line_are_a_contract(kind: str) -> None:
    """Users' scripts read these names; a rename is a break of the record format."""
    members = json.loads(_sealed(encode(event_samples.sample_events()[kind])))
    assert set(members) == FRAME | {"lane"} | set(MEMBERS[kind].split())
    assert members["event"] == kind
    expected = [level for level, kinds in SEVERITIES.items() if kind in kinds] or ["info"]
    assert [members["severity"]] == expected


def test_the_patterns_are_in_the_config_of_run_start() -> None:
    """`run_start.config.layers` holds the patterns as they were given, and null without any."""
    start = event_samples.sample_events()["run_start"]
    assert encode(start)["config"]["layers"] == ["encoder.*", "head"]
    everything = dataclasses.replace(start, config=MonitorConfig())
    assert encode(everything)["config"]["layers"] is None


@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        (math.nan, "NaN"),
        (np.float32("nan"), "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (-0.0, "-0.0"),
        (0.0, 0.0),
        (np.float64(1.5), 1.5),
        (1e-320, 1e-320),
    ],
)
def test_floats_that_json_cannot_spell_are_strings(value: float, spelled: float | str) -> None:
    """NaN, infinities and -0.0 are strings, every other float is a number."""
    loss = encode(dataclasses.replace(event_samples.sample_events()["nonfinite_loss"], value=value))
    assert loss["value"] == spelled
    assert type(loss["value"]) is type(spelled)


@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        (2**53 - 1, 2**53 - 1),
        (2**53, "9007199254740992"),
        (-(2**53) + 1, -(2**53) + 1),
        (-(2**53), "-9007199254740992"),
        (np.int64(5), 5),
    ],
)
def test_integers_beyond_the_safe_range_are_strings(value: int, spelled: int | str) -> None:
    """RFC 8785 refuses integers beyond 2**53 - 1, so those are decimal strings."""
    members = encode(dataclasses.replace(event_samples.sample_events()["anchor"], lines=value))
    assert members["lines"] == spelled
    assert type(members["lines"]) is type(spelled)


def test_times_are_always_decimal_strings() -> None:
    """`time_ns` is a string even where it is small, so that its JSON type never changes."""
    assert encode(SinkError(step=0, time_ns=7, sink="s", error="e"))["time_ns"] == "7"


@given(before=st.text(max_size=3), lone=st.integers(0xD800, 0xDFFF))
def test_lone_surrogates_are_written_escaped(before: str, lone: int) -> None:
    r"""A file name with undecodable bytes becomes readable text such as `\udc80`."""
    error = SinkError(step=0, sink="s", error=f"{before}{chr(lone)}!")
    found = parse_line(_sealed(encode(error)).rstrip(b"\n")).event
    assert isinstance(found, SinkError)
    assert found.error == f"{before}\\u{lone:04x}!"


def test_lone_surrogates_in_keys_are_written_escaped() -> None:
    """Keys of mappings are text like any other."""
    start = event_samples.sample_events()["run_start"]
    odd = dataclasses.replace(start, versions={"\udc80": "1"})
    found = parse_line(_sealed(encode(odd)).rstrip(b"\n")).event
    assert isinstance(found, RunStart)
    assert found.versions == {"\\udc80": "1"}


def _wrong_values(tp: Any) -> Iterator[Any]:
    """Yield JSON values that are no `tp`."""
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (arg for arg in args if arg is not types.NoneType)
        yield from (value for value in _wrong_values(inner) if value is not None)
        return
    yield None
    if origin is tuple:
        yield from ({}, "text", 3, *([value] for value in _wrong_values(args[0])))
    elif origin is Mapping:
        yield from ([], "text", 3, *({"key": value} for value in _wrong_values(args[1])))
    elif dataclasses.is_dataclass(tp):
        whole = encode_value(tp)
        yield from ([], "text", {}, {**whole, "extra": 1})
        for field in dataclasses.fields(tp):
            if field.name not in ADDED.get(tp.__name__, ()):
                yield {name: value for name, value in whole.items() if name != field.name}
    elif issubclass(tp, Enum):
        yield from ("nonsense", 3, [], {})
    elif tp is str:
        yield from (3, 1.5, True, [], {})
    elif tp is int:
        yield from (1.5, 1.0, True, "", "-", "--1", "1.0", "1e3", "٣", "9" * 41, [], {})
    elif tp is float:
        yield from (True, "1.5", "nan", "inf", "", 10**400, [], {})
    else:
        assert tp is bool
        yield from (0, 1, "true", [], {})


def encode_value(tp: Any) -> dict[str, Any]:
    """Return the JSON members of a sample of a dataclass that is part of an event."""
    start = encode(event_samples.sample_events()["run_start"])
    if tp is MonitorConfig:
        return dict(start["config"])
    return dict(codec._encoder(tp)(event_samples.sample(tp)))


def members_of(kind: str) -> dict[str, str]:
    """Return field -> member of an event: the same name but where that is taken."""
    fields = dataclasses.fields(EVENT_TYPES[kind])
    return {field.name: field.metadata.get("member", field.name) for field in fields}


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_of_the_wrong_type_is_refused_by_name(kind: str) -> None:
    """Whatever is no value of the declared type raises, naming the kind and the member."""
    members = encode(event_samples.sample_events()[kind])
    hints = typing.get_type_hints(EVENT_TYPES[kind])
    for field, member in members_of(kind).items():
        for value in _wrong_values(hints[field]):
            with pytest.raises(RecordFormatError, match=rf"^{kind}\.{member}"):
                decode({**members, member: value})


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("alarm", {"event": "x"}, "unknown event kind 'x'"),
        ("alarm", {"severity": "info"}, "alarm: severity is 'info', not warning"),
        ("alarm", {"layer": 3}, "alarm.layer: expected str, found int"),
        ("alarm", {"value": "x"}, "alarm.value: expected a number, found 'x'"),
        ("alarm", {"value": 10**400}, "alarm.value: number out of range"),
        ("alarm", {"stage": "raw"}, "alarm.stage: 'raw' is no Stage"),
        ("alarm", {"b": 1, "a": 2}, "alarm: unexpected members ['a', 'b']"),
        (
            "measurement",
            {"norms": [0, "x"]},
            "measurement.norms[1]: expected a number, found 'x'",
        ),
        ("run_end", {"counts": {"a": "x"}}, "run_end.counts.a: expected int, found str"),
        ("manifest", {"mechanisms": [{}]}, "manifest.mechanisms[0]: member 'name' is missing"),
    ],
)
def test_a_refusal_says_where_and_what(kind: str, change: dict[str, Any], message: str) -> None:
    """The path to the member, what was expected, what was found."""
    with pytest.raises(RecordFormatError) as caught:
        decode({**encode(event_samples.sample_events()[kind]), **change})
    assert str(caught.value) == message


@pytest.mark.parametrize("digits", ["9" * 40, "-" + "9" * 40, "0", "17"])
def test_integers_may_be_decimal_strings_of_up_to_40_digits(digits: str) -> None:
    """More than any 128-bit integer has; Python's own limit is never met."""
    members = encode(event_samples.sample_events()["anchor"])
    found = decode({**members, "lines": digits})
    assert getattr(found, "lines", None) == int(digits)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_member_is_refused_by_name(kind: str) -> None:
    """Every member is required: there are no silent defaults on the way back."""
    members = encode(event_samples.sample_events()[kind])
    for field, member in members_of(kind).items():
        if field in ("lane", *ADDED.get(EVENT_TYPES[kind].__name__, ())):
            continue
        partial = {name: value for name, value in members.items() if name != member}
        with pytest.raises(RecordFormatError, match=rf"'{member}' is missing"):
            decode(partial)


@pytest.mark.parametrize("kind", KINDS)
def test_the_lane_is_a_member_only_where_there_is_one(kind: str) -> None:
    """A run with one optimizer is recorded as it always was, to the byte."""
    event = dataclasses.replace(event_samples.sample_events()[kind], lane="")
    assert "lane" not in encode(event)
    assert decode(encode(event)) == event


def test_members_that_version_1_did_not_have_are_their_defaults() -> None:
    """Those of the one table, and no others, may be absent: an old record is read as it was."""
    assert ADDED == {
        "Anchor": ("metrics_bytes",),
        "Measurement": (
            "output_peaks",
            "gradient_type",
            "experts",
            "loss_replaced",
            "evaluating",
            "drifting",
            "untouched",
            "clip_norm",
            "clip_factor",
        ),
        "NonfiniteLoss": ("replaced",),
        "MonitorConfig": (
            "lock_stale",
            "lr_max",
            "certify_optimizers",
            "seed",
            "slope_min_layers",
            "slope_min_decades",
            "clip_factor_min",
            "stop_on",
        ),
    }
    anchor = encode(event_samples.sample_events()["anchor"])
    start = encode(event_samples.sample_events()["run_start"])
    del anchor["metrics_bytes"]
    for name in ADDED["MonitorConfig"]:
        del start["config"][name]
    assert getattr(decode(anchor), "metrics_bytes", 0) is None
    assert getattr(decode(start), "config", None) == MonitorConfig(
        layers=("encoder.*", "head"), check_every=7, sigma=3.25
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_unexpected_member_is_refused_by_name(kind: str) -> None:
    """A member that the format does not have could be read as meaning something."""
    members = encode(event_samples.sample_events()[kind])
    with pytest.raises(RecordFormatError, match=r"unexpected members.*'approved'"):
        decode({**members, "approved": True})


@pytest.mark.parametrize("kind", [None, 3, "", "certificat", "Alarm", ["alarm"]])
def test_an_unknown_kind_is_refused(kind: Any) -> None:
    """Only kinds of this version of the format are read."""
    members = encode(event_samples.sample_events()["alarm"])
    with pytest.raises(RecordFormatError, match="unknown event kind"):
        decode({**members, "event": kind})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("severity", [None, "nonsense", "INFO"])
def test_a_wrong_severity_is_refused(kind: str, severity: Any) -> None:
    """Severity follows from the kind, so a line cannot claim another one."""
    members = encode(event_samples.sample_events()[kind])
    other = "info" if members["severity"] != "info" else "critical"
    for wrong in (severity, other):
        with pytest.raises(RecordFormatError, match="severity"):
            decode({**members, "severity": wrong})


@pytest.mark.parametrize("change", [{"check_every": 0}, {"layers": []}, {"sigma": "Infinity"}])
def test_a_config_that_cannot_be_is_refused_as_a_record_error(change: dict[str, Any]) -> None:
    """A reader has one error to catch, whichever validation a line fails."""
    members = encode(event_samples.sample_events()["run_start"])
    with pytest.raises(RecordFormatError, match=next(iter(change))):
        decode({**members, "config": {**members["config"], **change}})
