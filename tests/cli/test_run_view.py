"""What is shown of a run is a pure function of its events, in any order and at any size of the terminal."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console
from typer.testing import CliRunner

from valve_plugin import events
from valve_plugin.bank.local import LocalStore
from valve_plugin.cli import app, progress
from valve_plugin.cli.run_view import View, draw, eta, fold, line, rows

RESOLVED, UNRESOLVED, ERRORED = "resolved", "unresolved", "errored"


def rollout(outcome, done=1, of=57, **more):
    return events.RolloutFinished(
        source="panel", outcome=outcome, cost_usd=0.01, seconds=36.0, done=done, of=of, **more
    )


def attempt(outcome, usd=0.02):
    return events.AttemptFinished(source="evolve", outcome=outcome, cost_usd=usd, seconds=60.0)


def story():
    """A run from its start to its second gate: events, each with the seconds since it started."""
    limits = {"usd": 5.0, "rollouts": 500, "hours": 2.0}
    run = events.RunStarted(repo="acme/calc", note="SIMULATION", workers=2, of=90, max_mixed=100, rho="0.02",
                     panel_rollouts=60, limits=limits)  # fmt: skip
    found = [(run, 0), (events.TaskStarted(task_id="t1", position=1, of=90), 1)]
    found += [(attempt(o), 20 * n) for n, o in enumerate([RESOLVED, UNRESOLVED, RESOLVED])]
    found += [(events.TaskFinished(task_id="acme__calc.t1", passed=2, attempts=3), 60)]
    found += [(events.ExtractionStarted(task_id="acme__calc.t1", attempts=3), 61)]
    found += [(events.ModelCalled(cost_usd=0.1, seconds=9.0), 70)]
    items = ("principle: check_the_sign", "skill: grep_it [bold]not markup[/bold]")
    found += [(events.ProposalRecorded(items=items, withheld=1), 71), (events.BaselineStarted(rollouts=60), 72)]
    found += [(rollout(RESOLVED if n % 3 else UNRESOLVED, n + 1, 60), 100) for n in range(60)]
    found += [(events.BaselineMeasured(version=0, passes=40, rollouts=60), 500)]
    found += [(events.GateStarted(query=1, rollouts=57, needed=2, current_passes=40, reused_passes=3), 501)]
    found += [(rollout(RESOLVED, n + 1, replayed=n < 5), 600) for n in range(20)]
    return [(event, float(at)) for event, at in found]


WAITING = events.Waiting(said="the provider does not answer (503: overloaded)", tried=3, of=10, seconds=8.0)
WAIT = (WAITING, 600.0)
VERDICT = events.VerdictReached(
    decision="accept", current_passes=40, needed=2, candidate_passes=44, version=1, net=(4, 4), rollouts=57, of=60
)
ENDING = [
    (VERDICT, 900.0),
    (events.TaskStarted(task_id="t2", position=2, of=90), 901.0),
    (events.RunEnded(how="the budget of $5.00 is used up"), 950.0),
]


def folded(recorded):
    view = View()
    for event, at in recorded:
        view = fold(view, event, at)
    return view


def drawn(view, now, width=80):
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(draw(view, now))
    return console.file.getvalue()


def test_the_figures_of_a_gate_and_of_the_end() -> None:
    gate, ended = dict(rows(folded(story()), 600.0)), dict(rows(folded(story() + ENDING), 950.0))
    assert gate["gate 1"] == "20 of 57   23 passed, 42 needed, 60 possible, odds 99 %   ######.........."
    assert gate["spent"] == "$0.91 of $5.00, 78 rollouts of 500, 10:00 of 2:00:00"
    assert gate["panel"] == "40 of 60 passed, 66.7 %"
    assert gate["left"] == "unknown yet   workers 2", "nobody knows what a gate takes before the first is through"
    later = dict(rows(folded([*story(), *ENDING[:2]]), 901.0))
    assert later["left"] == "22:00:00 at this pace   workers 2", "59 s of attempts and 841 s of what follows, 88 times"
    assert ended["accepts"] == "1   version 1"
    assert ended["ended"] == "the budget of $5.00 is used up"
    assert "skill: grep_it [bold]not markup[/bold]" in drawn(folded(story()), 600.0, 120)


def test_what_the_agents_do_is_counted_while_they_work(capsys, tmp_path, monkeypatch):
    view = fold(folded(story()), events.AgentsWorking(rollouts=2, steps=57, longest=31, of=50), 610.0)
    assert dict(rows(view, 610.0))["agents"] == "2 at work, 57 steps, the longest 31 of 50"
    assert "agents" not in dict(rows(fold(view, rollout(RESOLVED, 21), 611.0), 611.0)), "one has ended"
    shown = progress.Progress()
    news = events.AgentsWorking(rollouts=1, steps=3, longest=3, of=50)
    shown.valve_event(news)
    assert capsys.readouterr().err == "", "something was said just now"
    monkeypatch.setattr(progress, "_SILENCE_SECONDS", 0.0)
    shown.valve_event(news)
    assert "working   1 at work, 3 steps, the longest 3 of 50" in capsys.readouterr().err


def test_a_cluster_its_pace_and_what_is_wasted_are_shown() -> None:
    nodes = (
        events.NodeSeen(name="10.0.0.1 ab", cores=4, rollouts=3),
        events.NodeSeen(name="10.0.0.2 cd", cores=2, rollouts=1),
        events.NodeSeen(name="10.0.0.3 ef", cores=8, rollouts=0, problem="it has no sandbox"),
    )
    view = fold(folded(story()), events.ClusterSeen(nodes=nodes), 610.0)
    cut = events.RolloutCut(task_id="t", ordinal=0, context_hash="", cost_usd=0.5)
    view = fold(fold(view, cut, 615.0), events.RolloutUnused(outcome=RESOLVED, cost_usd=0.25), 620.0)
    shown = dict(rows(view, 630.0))
    assert shown["nodes"].startswith("2 of 3, 4 rollouts on 6 cores (10.0.0.1 ab 3, 10.0.0.2 cd 1)")
    assert shown["nodes"].endswith("; 10.0.0.3 ef: it has no sandbox")
    assert shown["wasted"] == "2 rollouts $0.75"
    assert dict(rows(fold(view, events.ClusterSeen(), 640.0), 640.0))["nodes"] == "no cluster answers"
    # In the ten minutes before: 60 of the baseline, 15 of the gate (5 were read back), 2 wasted, and a call at 70.
    assert view.pace(630.0) == pytest.approx((7.7, 6 * (0.6 + 0.15 + 0.75 + 0.1 + 0.02)), abs=0.11)
    assert re.fullmatch(r"7\.[678] rollouts a minute, \$9\.\d\d an hour", shown["pace"])
    assert "pace" not in dict(rows(folded(story() + ENDING), 950.0))


def test_a_run_on_another_machine_goes_on_while_its_record_grows(tmp_path: Path) -> None:
    local = LocalStore(tmp_path)
    event = events.RunStarted(pid=1, created=1.0, host="elsewhere", workers=2)
    local.write_telemetry(progress.EVENTS, {"event": event.name, "data": event.data})
    assert progress.Watched(local).alive
    os.utime(local.telemetry_path(progress.EVENTS), (0, 0))
    assert not progress.Watched(local).alive


def test_watching_before_the_first_run_has_begun_says_so(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["evolve", "--attach", "--bank", str(tmp_path / "bank")])
    assert (done.exit_code, "no run has begun" in done.output, "valve init" in done.output) == (2, True, False)


def test_an_accept_names_the_tasks_it_makes_worse():
    fallen = line(replace(VERDICT, worse=("t 2/2 -> 0/2", "u 3/3 -> 2/3")))
    assert "now version 1; worse: t 2/2 -> 0/2, u 3/3 -> 2/3 " in fallen
    assert "-c guard=2)" in fallen, "the most that would have rejected it"


def test_piped_lines_of_a_followed_or_finished_run_say_it_is_a_simulation(capsys):
    progress.say_rows(folded(story() + ENDING), 950.0)
    assert capsys.readouterr().out.startswith("note      SIMULATION\n")


@pytest.mark.parametrize(("error", "how"), [(KeyboardInterrupt("to go on"), "interrupted"), (None, "the run is done"),
                                            (ValueError("x\ny"), "x y"), (ValueError(), "ValueError")])  # fmt: skip
def test_how_a_run_ended(error, how):
    assert progress._ending(error) == how


def test_a_gate_that_was_decided_before_any_rollout_says_so():
    verdict = replace(VERDICT, decision="reject", current_passes=8, needed=1, net=(-8, 0), rollouts=0, of=8)
    assert line(verdict).endswith("no rollout was needed: too few panel tasks get other notes than before")
    assert line(replace(verdict, rollouts=2)).endswith("out of reach after 2 of 8 rollouts")
    over = line(replace(verdict, net=(-7, -7), rollouts=8))
    assert over == "rejected  1 pass, 9 needed, after 8 of 8 rollouts"


def test_what_was_replayed_was_not_paid_for():
    spent = folded(story()).spent
    assert spent["gate"].rollouts == 60 + 15
    assert spent["extractor"].usd == pytest.approx(0.1)
    assert folded(story()).total.rollouts == 3 + 75


def test_time_left():
    done = {"position": 10, "of": 90, "tasks_done": 10, "mixed": 2, "learned": 2, "attempting": 40.0, "learning": 60.0}
    view = View(run=events.RunStarted(max_mixed=100), **done)
    assert eta(view, 100.0) == pytest.approx(800.0)
    assert eta(view._replace(run=events.RunStarted(max_mixed=4)), 100.0) == pytest.approx(100.0), (
        "two more mixed, one in five"
    )
    assert eta(view._replace(learned=0), 100.0) is None
    assert eta(View(), 100.0) is None


@given(st.lists(st.booleans(), min_size=2, max_size=30), st.integers(1, 9), st.integers(0, 99), st.integers(1, 30))
def test_time_left_is_right_where_tasks_and_gates_take_the_same_time(mixed, attempts, gate, more):
    """Attempts take so many seconds at each task, a gate so many at a mixed one; the rest of the stream is alike."""
    assume(any(mixed))
    of, view, now = len(mixed) * (1 + more), fold(View(), events.RunStarted(of=len(mixed) * (1 + more)), 0.0), 5.0
    for number, is_mixed in enumerate(mixed, start=1):
        view = fold(view, events.TaskStarted(task_id="t", position=number, of=of), now)
        now += attempts
        view = fold(view, events.TaskFinished(task_id="t", passed=int(is_mixed), attempts=3), now)
        if is_mixed and sum(mixed[:number]) > 1:  # an earlier gate showed what this one will take
            rest = (of - number) * (attempts + gate * sum(mixed[:number]) / number)
            assert eta(view, now) == pytest.approx(gate + rest)
        now += gate * is_mixed
    view = fold(view, events.TaskStarted(task_id="t", position=len(mixed), of=of), now)
    assert eta(view, now) == pytest.approx(more * (attempts * len(mixed) + gate * sum(mixed)))


def test_a_wait_ends_when_something_comes_through():
    view = fold(folded(story()), *WAIT)
    assert view.waiting == (WAITING, 608.0)
    assert fold(view, rollout(ERRORED, 21)).waiting
    assert fold(view, rollout(UNRESOLVED, 21)).waiting is None


def test_a_cost_that_nobody_counted_is_unknown():
    shown = dict(rows(fold(View(started=1.0), attempt(RESOLVED, 0.0)), 2.0))
    assert (shown["spent"], shown["by role"]) == ("cost unknown, 1 rollout", "solver 1 rollout (cost unknown)")


def test_fresh_rollouts_of_the_same_bank_are_measurement():
    view = fold(View(started=1.0), events.RemeasureStarted(number=1, of=3, rollouts=8))
    view = fold(view, rollout(RESOLVED, 1, 8))
    assert set(view.spent) == {"measurement"}


@given(st.lists(st.tuples(st.sampled_from([event for event, _ in [*story(), *ENDING, WAIT]]), st.floats(0, 1e9))))
def test_events_in_any_order_break_nothing(recorded):
    view = folded(recorded)
    assert rows(view, 1e9)


@given(st.integers(1, 100), st.integers(24, 200))
def test_any_moment_fits_any_width(moment, width):
    """However narrow: a simulation says so in its first line, and what is spent and waited for comes first."""
    lines = drawn(folded([*story()[:moment], WAIT]), 603.0, width).splitlines()
    assert all(len(line) <= width for line in lines)
    assert "SIMULATION" in lines[0]
    assert "spent" in lines[2]
    assert "try 3" in lines[3]


@given(st.integers(0, 400), st.integers(0, 400))
def test_half_a_line_waits_for_its_other_half(tmp_path_factory, first, second):
    local = LocalStore(tmp_path_factory.mktemp("local"))
    path = local.telemetry_path("events")
    path.parent.mkdir()
    lines = [{"at": n + 1.0, "name": "events", "data": {"event": "e", "data": {"n": n}}} for n in range(4)]
    data = ("\n".join(map(json.dumps, lines)) + "\n").encode()
    watched, seen = progress.Watched(local), []
    for end in sorted({min(first, len(data)), min(first + second, len(data)), len(data)}):
        path.write_bytes(data[:end])
        seen += [event.data["n"] for event in watched.read()]
    assert seen == [0, 1, 2, 3]
    path.write_bytes(data.replace(b'"at": 1.0', b'"at": 9.0'))
    assert len(watched.read()) == 4, "another run began another file"


def test_without_a_screen_each_task_says_where_the_stream_is(capsys: pytest.CaptureFixture[str]) -> None:
    shown = progress.Progress("gated    ")
    shown.valve_event(events.TaskStarted(task_id="t", position=2, of=4))
    shown.valve_event(events.TaskFinished(task_id="t", title="f in x.py (01)", passed=1, attempts=3))
    first = capsys.readouterr().err
    said = r"gated    task      f in x\.py \(01\): 1 of 3 passed, mixed  \[2/4, time left not known yet\]\n"
    assert re.fullmatch(said, first)
