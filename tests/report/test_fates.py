"""What became of items and stream tasks, and of rollouts that no verdict names."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.report.runs import Maker
from valve_plugin.bank.entries import Judged
from valve_plugin.cli.history import words
from valve_plugin.records import Attempt
from valve_plugin.report.captions import deepest, peaks, rolling
from valve_plugin.report.facts import run_facts
from valve_plugin.report.fates import fates, steps
from valve_plugin.report.figures import standing
from valve_plugin.report.page import page
from valve_plugin.report.run import StreamPoint


def test_tries_of_one_text_are_told_as_one(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 20, seed=3)
    maker.stream(12, 2)
    run = run_facts(maker.store, words)
    judged = [p for p, item in enumerate(run.items) if not item.why]
    first, second = (next(p for p in judged if run.items[p].proposal_id == g.proposal_id) for g in run.gates[:2])
    items = list(run.items)
    items[second] = replace(items[second], **{k: getattr(items[first], k) for k in ("kind", "text", "markdown")})
    again = replace(run, items=tuple(items))
    found = fates(again)
    word = {"accept": "accepted", "reject": "rejected", "indecisive": "left open"}[run.gates[0].decision]
    assert (found[first].tries, found[first].others) == ("first try", [second])
    assert (found[second].tries, found[second].others) == (f"second try; {word} at gate 1", [first])
    assert [(j.gate, j.line) for j in found[second].gates] == [(2, run.gates[1].line)]
    html = page([again], {})
    assert f'href="#item-{first}"' in html
    assert f'<a href="#line-{run.gates[1].line}">gate 2: {run.gates[1].decision}</a>' in html


def test_every_stream_task_says_what_came_of_it(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 4)
    maker.stream(8, 4)
    run = run_facts(maker.store, words)
    found = steps(run)
    word = {"accept": "accepted", "reject": "rejected"}
    for place, gate in ((0, run.gates[0]), (4, run.gates[1])):
        assert found[place] == (f"{word[gate.decision]} at gate {gate.number}", gate.line)
    assert all(s.said.startswith("nothing to contrast") for n, s in enumerate(found) if n % 4)


def test_rollouts_beyond_a_verdict_are_those_that_cost(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 20, seed=3, panel_kept=True)
    maker.stream(12, 2)
    verdict = next(e.verdict for e in maker.store.entries() if isinstance(e, Judged) and e.verdict.decision == "reject")
    known = {(a.task_id, a.context_hash, a.ordinal): a for a in maker.store.local.attempts()}
    for o in verdict.outcomes:  # the clock that the maker leaves out
        a = known[o.task_id, o.context_hash, o.ordinal]
        maker._keep(replace(a, recorded_at=2e9))
    late = Attempt(id="late", task_id="x", ordinal=9, source="panel", outcome="resolved", recorded_at=2e9, seconds=1.0)
    maker._keep(late)
    run = run_facts(maker.store, words)
    (gate_cost,) = (s for s in run.spent if s.role == "gate")
    cost = {p.name: p.rollouts for p in gate_cost.phases}["beyond what decided a verdict"]
    assert cost == 1
    assert sum(g.beyond for g in run.gates) <= cost


@given(st.lists(st.integers(0, 3), max_size=40))
def test_no_peak_is_of_fewer_tasks_than_a_window(passed: list[int]) -> None:
    points = [
        StreamPoint(task_id=str(n), position=n + 1, passed=p, graded=3, version=0, rollouts=())
        for n, p in enumerate(passed)
    ]
    rates, tops = rolling(points), peaks(points)
    assert tops[:9] == rates[:9]
    assert all(top == max(rates[9 : n + 1]) for n, top in enumerate(tops) if n >= 9)
    depth, place = deepest(points)
    assert depth >= 0
    assert not depth or place >= 11


def test_figures_for_files_name_the_bank(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 4)
    maker.stream(8, 4)
    run = replace(run_facts(maker.store, words), repo="a/b</svg>\u202e$x$")
    assert {f.of for f in standing([run])} == {f"a/b?/svg???x?, version {run.version}"}
