"""Events: one record each, and the same as name and data, for plugins and for telemetry."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.codec import canonical, decode
from valve_plugin.events import EVENTS, Event, PluginEvent, RolloutCut, TaskStarted, Waiting, event_of
from valve_plugin.hookspecs import StepHooks

EXAMPLES = [
    TaskStarted(task_id="t", position=1, of=2),
    Waiting(said="why", tried=2, of=3, seconds=1.5),
    RolloutCut(task_id="t", ordinal=0, context_hash="c", cost_usd=0.5),
    PluginEvent(called="mine", content={"a": [1]}),
]


@pytest.mark.parametrize("event", EXAMPLES)
def test_an_event_comes_back_from_its_name_and_data(event: Event) -> None:
    data = decode(canonical(event.data), dict, where="x")
    assert event_of(event.name, data) == event
    assert event_of(event.name, data | {"of_a_later_version": 1}).data.items() >= event.data.items()


@given(st.sampled_from(sorted(EVENTS)), st.dictionaries(st.text(max_size=8), st.integers() | st.none(), max_size=4))
def test_data_of_another_shape_is_kept_as_it_is(name: str, data: dict[str, object]) -> None:
    event = event_of(name, data)
    assert event.name == name
    assert isinstance(event, EVENTS[name]) or event.data == data


def test_the_hook_lists_every_event() -> None:
    text = inspect.getdoc(StepHooks.valve_event) or ""
    assert [kind.__name__ for kind in EVENTS.values() if kind.__name__ not in text] == []
