"""What a rollout's own process notes of its waits reaches who watches: once, whole, and without keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.codec import canonical
from valve_plugin.gate.panel import Line, Told, read
from valve_plugin.records import PanelOutcome
from valve_plugin.rollouts import waits
from valve_plugin.rollouts.faults import Fault
from valve_plugin.rollouts.waits import FILE, Passing, Wait, bare, heard, noting, said

WAITS = st.builds(
    Wait, said=st.text(max_size=20), tried=st.integers(1, 9), at_most=st.integers(1, 9), seconds=st.floats(0, 600)
)


@given(st.lists(WAITS, max_size=6), st.lists(st.integers(0, 400), max_size=6))
def test_each_wait_is_passed_on_once_however_the_file_grows(tmp_path_factory, noted, looks):
    folder = tmp_path_factory.mktemp("waits")
    note, pass_on, seen = noting(folder), Passing(folder), []
    for wait in noted:
        note(wait)
    data = (folder / FILE).read_bytes() if noted else b""
    with heard(seen.append):
        for end in [*sorted(min(look, len(data)) for look in looks), len(data)]:
            (folder / FILE).write_bytes(data[:end])
            pass_on()
    assert seen == noted


def test_what_is_no_wait_is_passed_over(tmp_path):
    (tmp_path / FILE).write_bytes(b"\xff\n{}\n" + canonical(Wait(said="x", tried=1, at_most=2, seconds=3)) + b"\n")
    seen = []
    with heard(seen.append):
        Passing(tmp_path)()
    assert [wait.said for wait in seen] == ["x"]


@pytest.mark.parametrize(
    ("error", "found", "expected"),
    [("litellm.InternalServerError: InternalServerError: OpenAIException - overloaded", Fault("server"),
      "the provider fails (overloaded)"),
     ("litellm.RateLimitError: slow\n down", Fault("rate", 40.0), "the provider asks to wait 40 s (slow down)"),
     ("slow down", Fault("rate", 0.0), "the provider asks to slow down (slow down)"),
     ("", Fault("connection"), "the provider cannot be reached (OSError)"),
     ("bad key sk-0123456789abcdef0123", Fault("server"), "sk-0"), ("x" * 999, Fault("server"), "x...)")],
)  # fmt: skip
def test_what_a_provider_is_said_to_have_said(error, found, expected):
    text = said(OSError(error) if error else OSError(), found, {"api_key": "sk-0123456789abcdef0123"})
    assert (expected in text) == (expected != "sk-0")
    assert len(text) < 250


def test_a_line_of_the_panel_run_is_an_outcome_or_what_happens_meanwhile():
    outcome = PanelOutcome(task_id="t", ordinal=0, outcome="resolved", context_hash="0" * 64)
    for line in (Line(outcome=outcome, telemetry={"seconds": 1}), Told("waiting", {"said": "x"})):
        assert read(canonical(line)) == line


def test_nobody_has_to_listen():
    waits.tell(Wait(said="x", tried=1, at_most=2, seconds=0.0))


def test_what_client_libraries_put_before_it_is_left_out_also_in_brackets():
    twice = "litellm.ServiceUnavailableError: ServiceUnavailableError: OpenAIException - overloaded"
    assert bare(f"ServiceUnavailableError: {twice}") == "overloaded"
    assert bare(f"it keeps failing (ServiceUnavailableError: {twice})") == "it keeps failing (overloaded)"
    assert bare("TimeoutError:") == "TimeoutError:", "something is said"
