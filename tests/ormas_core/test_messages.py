"""Every event as a sentence: complete, with the layer and the numbers in it."""

from dataclasses import replace
from typing import Any

import event_samples
import event_strategies
import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_samples import MESSAGES

from ormas_core.events import (
    EVENT_TYPES,
    Event,
)
from ormas_core.messages import describe


@pytest.mark.parametrize(("event", "message"), MESSAGES)
def test_the_sentence_of_an_event(event: Event, message: str) -> None:
    """Word for word: people search their logs for these."""
    assert describe(event) == message


def test_every_kind_of_event_has_a_sentence_above() -> None:
    """A new kind of event needs its sentence, and a line in the table."""
    assert {event.kind for event, _ in MESSAGES} == set(EVENT_TYPES)


@pytest.mark.parametrize("kind", sorted(EVENT_TYPES))
@given(data=st.data())
def test_no_event_is_too_odd_to_be_described(kind: str, data: st.DataObject) -> None:
    """Whatever numbers and names an event holds, and a record may hold any."""
    assert describe(data.draw(event_strategies.events(kind))).strip()


@pytest.mark.parametrize(
    "event", [event for event in event_samples.sample_events().values() if hasattr(event, "layer")]
)
def test_a_sentence_names_the_layer_it_is_about(event: Any) -> None:
    """Every event that is about one layer says which."""
    assert "encoder.layer.7" in describe(replace(event, layer="encoder.layer.7"))
