"""Strangers' bytes: what is no plain, small, unambiguous JSON is refused, and cheaply."""

import pytest

from ormas_core.errors import RecordFormatError
from ormas_core.record.strict import MAX_LINE, MAX_VALUES, load_object


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"7", "not a JSON object"),
        (b"", "not valid JSON"),
        (b'{"a":NaN}', "not valid JSON: bare NaN"),
        (b'{"a":-Infinity}', "not valid JSON: bare -Infinity"),
        (b'{"a":1e999}', "1e999 is beyond the numbers"),
        (b'{"a":1,"a":1}', "a member name occurs twice"),
        (b'{"b":{"a":1,"\\u0061":1}}', "a member name occurs twice"),
        (b'{"a":"\xff"}', "not valid JSON"),
        (b'\xef\xbb\xbf{"a":1}', "not valid JSON"),
        ('{"a":1}'.encode("utf-16"), "not valid JSON"),
        (b'{"a":"\x00"}', "not valid JSON"),
        (b'{"a":"\\ud800"}', "not valid JSON"),
        (b'{"a":' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"a":' + b"[" * 100_000 + b"}", "nested too deeply"),
        (b'{"a":' + b"[" * 1_000_000, "1000001 values, more than"),
        (b'{"a":[' + b"0," * MAX_VALUES + b"0]}", "values, more than"),
        (b'{"a":"' + b"x" * MAX_LINE + b'"}', "bytes, more than"),
    ],
    ids=lambda value: repr(value[:12]) if isinstance(value, bytes) else "",
)
def test_what_is_refused(data: bytes, says: str) -> None:
    """With one error, and a short sentence that says why."""
    with pytest.raises(RecordFormatError, match=says) as caught:
        load_object(data)
    assert len(str(caught.value)) < 300


def test_what_is_taken() -> None:
    """Plain objects, escapes and all of Unicode."""
    text = '{"a":[1,-0.5e-3,null,true],"\U0001f525":"\\ud83d\\udd25"}'
    assert load_object(text.encode()) == {
        "a": [1, -0.5e-3, None, True],
        "\U0001f525": "\U0001f525",
    }
