"""The screen is a pure function of folded events: golden screens at a fixed width, and nothing that breaks the fold."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from valve_plugin.cli import attach as attached
from valve_plugin.cli.attach import Tail
from valve_plugin.cli.lines import line
from valve_plugin.cli.progress import Progress, _how
from valve_plugin.cli.screen import screen
from valve_plugin.cli.view import View, eta, fold, folded

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
    events += [("extracting", {"task_id": "acme__calc.t1", "attempts": 3}, 61)]
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


WAIT = (
    "waiting",
    {"said": "the provider does not answer (503: overloaded)", "try": 3, "of": 10, "seconds": 8.0},
    600.0,
)


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


def drawn(view, now, width=80, height=25):
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None, legacy_windows=False)
    console.print(screen(view, now))
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("name", "events", "now"),
    [("start", story()[:2], 5.0), ("extracting", story()[:7], 65.0), ("baseline", story()[:41], 100.0),
     ("gate", story(), 600.0), ("ended", story() + ending(), 950.0)],
)  # fmt: skip
def test_golden_screens(name, events, now):
    _as_golden(f"screen-{name}.txt", drawn(folded(events), now))


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_golden_screens_while_the_provider_is_down(width):
    _as_golden(f"screen-waiting-{width}.txt", drawn(folded([*story(), WAIT]), 603.0, width))


LONG = (WAIT[0], {**WAIT[1], "said": f"the provider does not answer (503: {'overloaded, ' * 12}try later)"}, 600.0)


@pytest.mark.parametrize("height", [5, 24])
def test_golden_narrow_screens_keep_what_they_promise(height):
    text = drawn(folded([*story(), LONG]), 603.0, 20, height)
    _as_golden(f"screen-waiting-20x{height}.txt", text)
    assert len(text.splitlines()) < height
    assert "SIMULATION" in text.splitlines()[0]
    inside = " ".join(line[2:-2].strip() for line in text.splitlines()[1:-1])
    assert "waiting try 3 of 10, next in 5 s" in inside


@given(st.integers(9, 200), st.integers(4, 60))
def test_a_simulation_says_so_in_one_piece(width, height):
    first = drawn(folded([*story(), LONG]), 603.0, width, height).splitlines()[0]
    assert ("SIMULATION" if width >= 16 else "SIM") in first


def test_piped_lines_of_a_followed_or_finished_run_say_it_is_a_simulation(capsys):
    attached._rows(folded(story() + ending()), 950.0)
    assert capsys.readouterr().out.startswith("note      SIMULATION\n")


@pytest.mark.parametrize(("error", "how"), [(KeyboardInterrupt("to go on"), "interrupted"), (None, "the run is done"),
                                            (ValueError("x\ny"), "x y"), (ValueError(), "ValueError")])  # fmt: skip
def test_how_a_run_ended(error, how):
    assert _how(error) == how


def test_a_gate_that_was_decided_before_any_rollout_says_so():
    verdict = {"decision": "reject", "current_passes": 8, "needed": 1, "net": (-8, 0), "repeated": False, "of": 8}
    assert line("verdict", {**verdict, "rollouts": 0}).endswith("out of reach by what is known; no rollout was needed")
    assert line("verdict", {**verdict, "rollouts": 2}).endswith("out of reach after 2 of 8 rollouts")
    over = line("verdict", {**verdict, "net": (-7, -7), "rollouts": 8})
    assert over == "rejected  1 pass, 9 needed, after 8 of 8 rollouts"


def _as_golden(name, text):
    golden = GOLDEN / name
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


def test_a_wait_ends_when_something_comes_through():
    view = fold(folded(story()), *WAIT)
    assert view.waiting.until == 608.0
    assert fold(view, "rollout_finished", rollout("errored", done=21, of=57)).waiting
    assert fold(view, "rollout_finished", rollout("unresolved", done=21, of=57)).waiting is None


@pytest.mark.parametrize("usd", [0.0, 0.1])
def test_a_cost_that_nobody_counted_is_unknown(usd):
    view = fold(View(started=1.0), "attempt_finished", {**attempt("resolved"), "cost_usd": usd})
    text = " ".join(drawn(view, 2.0).split())
    assert ("cost unknown, 1 rollout" in text) == (not usd)
    assert ("solver 1 rollout (cost unknown)" in text) == (not usd)
    mixed = fold(view, "extracted", {"source": "extract", "cost_usd": 0.0, "seconds": 1.0})
    assert ("at least $0.10, 1 rollout" in drawn(mixed, 2.0)) == bool(usd)


def test_fresh_rollouts_of_the_same_bank_are_measurement():
    view = fold(View(started=1.0), "aa_started", {"number": 1, "of": 3, "rollouts": 8})
    view = fold(view, "rollout_finished", rollout("resolved", done=1, of=8))
    assert set(view.spent) == {"measurement"}


VALUES = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
NAMES = [*sorted({name for name, _, _ in story() + ending()}), "taken", "stale", "unknown"]
KEYS = sorted({key for _, data, _ in story() + ending() for key in data})


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6))))
def test_events_of_any_shape_break_nothing(events):
    view = folded((name, data, 0.0) for name, data in events)
    assert isinstance(view, View)


@given(st.integers(1, 100), st.integers(24, 200), st.integers(12, 60))
def test_any_moment_fits_any_size(moment, width, height):
    """However narrow or low: a simulation says so, and what was spent is there."""
    lines = drawn(folded([*story()[:moment], WAIT]), 700.0, width, height).splitlines()
    assert all(len(line) <= width for line in lines)
    assert len(lines) < height or width < 40
    assert any("SIMULATION" in line for line in lines[:2])
    spent = next(n for n, line in enumerate(lines) if "spent" in line)
    assert spent < height - 1 or width < 40


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


def test_without_a_screen_each_task_says_where_the_stream_is(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("gated    ")
    progress.valve_event("task_started", {"task_id": "t", "position": 2, "of": 4})
    progress.valve_event("task_finished", {"task_id": "t", "passed": 1, "attempts": 3})
    first = capsys.readouterr().err
    assert re.fullmatch(r"gated    task      t: 1 of 3 passed, mixed  \[2/4, 0:0\d left\]\n", first)
