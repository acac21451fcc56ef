"""The screen is a pure function of folded events: golden screens at a fixed width, and nothing that breaks the fold."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from valve_plugin.cli.attach import Tail
from valve_plugin.cli.view import View, eta, fold, folded, screen

GOLDEN = Path(__file__).with_name("golden")
START = {
    "repo": "acme/calc", "note": "SIMULATION", "workers": 2, "of": 90, "max_mixed": 100, "mixed": 0, "version": 0,
    "accepts": 0, "rho": "0.02", "start_passes": None, "panel_passes": None, "panel_rollouts": 60,
    "limits": {"usd": 5.0, "rollouts": 500, "hours": 2.0},
}  # fmt: skip


def rollout(outcome, **more):
    return {"source": "panel", "outcome": outcome, "cost_usd": 0.01, "seconds": 36.0, **more}


def attempt(outcome):
    return {"source": "evolve", "outcome": outcome, "cost_usd": 0.02, "seconds": 60.0}


def story():
    """A run from its start to its second gate, as (name, data, seconds since it started)."""
    events = [("run_started", START, 0), ("task_started", {"task_id": "t1", "position": 1, "of": 90}, 1)]
    events += [("attempt_finished", attempt(o), 20 * n) for n, o in enumerate(["resolved", "unresolved", "resolved"])]
    events += [("task_finished", {"task_id": "acme__calc.t1", "passed": 2, "attempts": 3}, 60)]
    events += [("extracted", {"source": "extract", "cost_usd": 0.1, "seconds": 9.0}, 70)]
    items = ["principle: check_the_sign", "skill: grep_it [bold]not markup[/bold]"]
    events += [("proposed", {"items": items, "withheld": 1, "reason": ""}, 71)]
    events += [("baseline_started", {"rollouts": 60}, 72)]
    events += [
        ("rollout_finished", rollout("resolved" if n % 3 else "unresolved", done=n + 1, of=60), 100) for n in range(60)
    ]
    events += [("baseline", {"passes": 40, "rollouts": 60}, 500)]
    gate = {"query": 1, "rollouts": 57, "needed": 2, "current_passes": 40, "reused_passes": 3}
    events += [("gate_started", gate, 501)]
    events += [("rollout_finished", rollout("resolved", done=n + 1, of=57, replayed=n < 5), 600) for n in range(20)]
    return [(name, data, float(at)) for name, data, at in events]


def ending():
    verdict = {
        "net": (4, 4),
        "repeated": False,
        "decision": "accept",
        "current_passes": 40,
        "needed": 2,
        "candidate_passes": 44,
        "version": 1,
    }
    return [
        ("verdict", {**verdict, "rollouts": 57, "of": 60}, 900.0),
        ("task_started", {"task_id": "t2", "position": 2, "of": 90}, 901.0),
        ("run_ended", {"how": "the budget of $5.00 is used up"}, 950.0),
    ]


def drawn(view, now, width=80):
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(screen(view, now))
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("name", "events", "now"),
    [("start", story()[:2], 5.0), ("baseline", story()[:40], 100.0), ("gate", story(), 600.0),
     ("ended", story() + ending(), 950.0)],
)  # fmt: skip
def test_golden_screens(name, events, now):
    golden = GOLDEN / f"screen-{name}.txt"
    text = drawn(folded(events), now)
    if not golden.exists():
        golden.write_text(text, "utf-8")
        pytest.fail(f"{golden.name} is new: look at it and run again")
    assert text == golden.read_text("utf-8")


def test_the_gate_says_what_is_needed_and_still_possible():
    view = folded(story())
    assert (view.judging.wanted, view.judging.reused + view.judging.passed, view.judging.possible) == (42, 23, 60)
    lost = fold(view, "rollout_finished", rollout("unresolved", done=21, of=57))
    assert lost.judging.possible == 59
    assert view.cap == 16, "floor((1 - 40/60) / 0.02), exactly"


def test_what_was_replayed_was_not_paid_for():
    spent = folded(story()).spent
    assert spent["gate"].rollouts == 60 + 15
    assert spent["extractor"].usd == pytest.approx(0.1)
    assert folded(story()).total.rollouts == 3 + 75


def test_time_left():
    view = View(started=0.0, position=10, of=90, tasks_done=10, max_mixed=100, mixed=2)
    assert eta(view, 100.0) == 800.0
    assert eta(view._replace(max_mixed=4), 100.0) == 100.0, "two more mixed tasks, one in five is"
    assert eta(View(), 100.0) is None


VALUES = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
NAMES = [*sorted({name for name, _, _ in story() + ending()}), "taken", "stale", "unknown"]
KEYS = sorted({key for _, data, _ in story() + ending() for key in data})


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6))))
def test_events_of_any_shape_break_nothing(events):
    view = folded((name, data, 0.0) for name, data in events)
    assert isinstance(view, View)


@given(st.integers(0, 100), st.integers(60, 200))
def test_any_moment_fits_any_width(moment, width):
    text = drawn(folded(story()[:moment]), 700.0, width)
    assert all(len(line) <= width for line in text.splitlines())


@given(st.integers(0, 200), st.integers(0, 200))
def test_half_a_line_waits_for_its_other_half(tmp_path_factory, first, second):
    path = tmp_path_factory.mktemp("tail") / "events.jsonl"
    lines = [json.dumps({"at": n, "name": "events", "data": {"event": "e", "data": {"n": n}}}) for n in range(4)]
    data = ("\n".join(lines) + "\n").encode()
    tail, seen = Tail(path), []
    for end in sorted({min(first, len(data)), min(first + second, len(data)), len(data)}):
        path.write_bytes(data[:end]) if not path.exists() else path.open("r+b").write(data[:end])
        seen += [event.data["n"] for event in tail.new()]
    assert seen == [0, 1, 2, 3]
    path.unlink()
    path.write_bytes(data.replace(b'"at": 0', b'"at": 9'))
    assert len(list(tail.new())) == 4, "another run began another file"
