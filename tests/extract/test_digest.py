"""Digests keep what was done, in order and within the budget, whatever the commands printed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.tools import cost
from valve_plugin.extract.digest import BYTES_PER_TOKEN, clip, digest, digests, printable
from valve_plugin.records import Attempt

ATTEMPT = Attempt(
    id="a", task_id="t", ordinal=0, source="evolve", outcome="unresolved", reason="2 of 3 tests fail", patch="-a\n+b\n"
)


def trajectory(*turns, **more):
    """A trajectory in mini's format: turns are (thought, command, output, exit status)."""
    messages = [{"role": "system", "content": "SYSTEM BLOCK"}, {"role": "user", "content": "the issue"}]
    for thought, command, output, status in turns:
        messages += [
            {"role": "assistant", "content": thought, "extra": {"actions": [{"command": command}], "cost": 1}},
            {"role": "tool", "content": "rendered", "extra": {"raw_output": output, "returncode": status}},
        ]
    messages.append({"role": "exit", "content": "", "extra": {"exit_status": "Submitted"}})
    return json.dumps({"info": {}, "messages": messages, "trajectory_format": "mini-swe-agent-1.1", **more}).encode()


def size(text):
    return len(text.encode("utf-8", "replace"))


def test_a_short_attempt_is_kept_whole():
    text = digest(trajectory(("look", "ls", "a.py", 0), ("edit", "sed -i s/a/b/ a.py", "", 0)), ATTEMPT)
    assert "Step 1\nlook\n$ ls\n[exit status 0]\na.py\n" in text
    assert "Step 2\nedit\n$ sed -i s/a/b/ a.py\n" in text
    assert text.endswith("Final patch:\n-a\n+b\n\nFinal result: unresolved: 2 of 3 tests fail\n")
    assert "SYSTEM BLOCK" not in text
    assert "the issue" not in text


def test_what_a_failing_attempt_lacks_is_told_where_it_made_no_edit_of_its_own():
    """Half a repair: its one line is written by the passing attempt, too."""
    half, whole = "sed -i '5s/x = f()/x = None/' a.py", "python - <<'EOF'\nx = None; x = f()\nEOF"
    shown = digests(
        [trajectory(("", half, "", 0)), trajectory(("", whole, "", 0))],
        [
            replace(ATTEMPT, patch="@@ -1 +1 @@\n-    x = f()\n+    x = None\n"),
            replace(
                ATTEMPT,
                outcome="resolved",
                patch="@@ -1,2 +1,2 @@\n-    x = None\n+    x = f()\n-    x = f()\n+    x = None\n",
            ),
        ],
        tokens=4_000,
    )
    assert "made every edit of this one, and attempt 2 also wrote:\n+ x = f()\n" in shown[0]
    assert "also wrote" not in shown[1]


def test_first_and_last_steps_outlive_the_middle():
    turns = [(f"t{i}", f"command-{i} " + "y" * 500, "x" * 900, 0) for i in range(200)]
    text = digest(trajectory(*turns), ATTEMPT, tokens=2_000)
    assert "$ command-0 " in text
    assert "$ command-199 " in text
    assert "$ command-100 " not in text
    assert "steps left out ...]" in text
    assert size(text) <= 2_000 * BYTES_PER_TOKEN


def test_fifty_megabytes_of_output_take_no_time_to_speak_of():
    raw = trajectory(("t", "cat big", "line of text\n" * 4_000_000, 0))
    assert size(digest(raw, ATTEMPT)) < 6_000 * BYTES_PER_TOKEN
    assert cost(lambda: digest(raw, ATTEMPT)) < 500


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\xfe\x00binary" * 100,
        b'{"messages": "no list"}',
        b'{"messages": [1, null, {"role": "assistant"}, {"role": "tool", "content": [{"text": "part"}, 3]}]}',
        b'{"messages": [{"role": "assistant", "content": null, "extra": {"actions": [{}, 1]}}]}',
        b'{"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "bash"}}]}]}',
        '{"messages": [{"role": "assistant", "content": "höhö ‮ \\u0000"}]}'.encode("utf-16"),
        b"[" * 100_000,
    ],
)
def test_whatever_the_file_holds_there_is_a_digest(raw):
    text = digest(raw, ATTEMPT)
    assert text.endswith("Final result: unresolved: 2 of 3 tests fail\n")
    assert "\x00" not in text


def test_escape_sequences_binary_and_endless_lines_go():
    assert printable("\x1b[31mred\x1b[0m", 100) == "red"
    assert printable("\x00\x01\x02" * 50, 100) == "[binary, 150 characters]"
    assert len(printable("z" * 10_000, 2_000)) < 450


@given(st.text(max_size=3_000), st.integers(0, 500))
def test_clip_keeps_the_limit_and_both_ends(text, limit):
    short = clip(text, limit)
    assert len(short) <= max(limit, len(f"[{len(text)} characters]"))
    if len(text) <= limit:
        assert short == text


steps = st.tuples(st.text(max_size=300), st.text(max_size=300), st.text(max_size=3_000), st.integers(0, 255))


@given(st.lists(steps, max_size=12), st.text(max_size=5_000), st.text(max_size=3_000))
def test_the_budget_holds(turns, patch, reason):
    attempt = Attempt(id="a", task_id="t", ordinal=0, source="evolve", outcome="resolved", reason=reason, patch=patch)
    assert size(digest(trajectory(*turns), attempt, tokens=2_000)) <= 2_000 * BYTES_PER_TOKEN
