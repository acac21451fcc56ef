"""What became of items and stream tasks, and of rollouts that no verdict names."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.report.runs import Maker
from valve_plugin.bank.entries import Judged, Proposed
from valve_plugin.cli.history import words
from valve_plugin.extract.reflect import NOTHING
from valve_plugin.records import Attempt
from valve_plugin.report.captions import deepest, peaks, rolling
from valve_plugin.report.facts import run_facts
from valve_plugin.report.fates import _empty, fates, steps
from valve_plugin.report.figures import standing
from valve_plugin.report.heat import heat
from valve_plugin.report.measured_tasks import tables
from valve_plugin.report.page import page, unseen
from valve_plugin.report.run import StreamPoint
from valve_plugin.report.run_items import merged
from valve_plugin.report.said import alone, said
from valve_plugin.report.shelves import newest, shelves


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


def test_a_text_that_was_rejected_twice_is_one_item(tmp_path: Path, data_dir: Path) -> None:
    """On the page and in its JSON, and both say how often."""
    maker = Maker(tmp_path / "bank", 20, seed=3)
    maker.stream(12, 2)
    run = run_facts(maker.store, words)
    rejects = [g for g in run.gates if g.decision == "reject"][:2]
    first, second = (next(p for p, i in enumerate(run.items) if i.proposal_id == g.proposal_id) for g in rejects)
    same = {name: getattr(run.items[first], name) for name in ("kind", "name", "text", "markdown")}
    tries = tuple(replace(i, **same) if p == second else i for p, i in enumerate(run.items))
    items = merged(tries)
    assert len(items) == len(tries) - 1
    again = replace(run, items=tuple(items))
    place = second - 1
    fate, (mine, rest) = fates(again)[place], shelves(items)
    numbers = [g.number for g in rejects]
    assert fate.times == f"rejected twice: gates {' and '.join(map(str, numbers))}"
    assert ([j.gate for j in fate.gates], fate.tries, fate.others) == (numbers, "", [])
    assert (items[place].tries, items[place].earlier) == (2, (rejects[0].proposal_id,))
    assert items[place].sources == (*tries[second].sources, *tries[first].sources)
    assert {items[p].version is None for p in mine.places} == {False}
    assert set(rest.places) == {p for p, i in enumerate(items) if i.version is None}
    assert rest.told.startswith("Not in the bank: ")
    html = page([again], {})
    assert f">{fate.times}</span>" in html
    assert set(re.findall(r'href="#([^"]+)"', html)) <= set(re.findall(r' id="([^"]+)"', html)), "no link leads nowhere"
    assert f"then {len(items) - len(mine.places)} that did not come in" in html
    other = replace(items[place], name="other", state="accepted", tries=1, earlier=())
    third = fates(replace(again, items=(*items, other)))[-1]
    assert third.tries == f"third try; rejected at gates {' and '.join(map(str, numbers))}"


def test_every_stream_task_says_what_came_of_it(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 4)
    maker.stream(8, 4)
    run = run_facts(maker.store, words)
    found = steps(run)
    word = {"accept": "accepted", "reject": "rejected"}
    for place, gate in ((0, run.gates[0]), (4, run.gates[1])):
        assert found[place] == (f"{word[gate.decision]} at gate {gate.number}", gate.line)
    assert all(s.said.startswith("nothing to contrast") for n, s in enumerate(found) if n % 4)


def test_an_unusable_answer_is_told_from_an_empty_one() -> None:
    told = "no proposal: the extractor's answer was unusable"
    assert _empty({"reason": "the answer is not JSON: {"}) == told
    assert _empty({"reason": NOTHING}) == f"nothing to judge: {NOTHING}"
    assert _empty({"reason": "every item was a duplicate", "merges": [{}]}).startswith("nothing to judge: every item")
    assert [_empty({part: [{}]}) for part in ("withheld", "merges")] == ["everything withheld", "only duplicates"]


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


def test_what_ran_on_is_in_the_panel_and_opens(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 20, seed=3, panel_kept=True)
    maker.stream(12, 2)
    verdict = next(e.verdict for e in maker.store.entries() if isinstance(e, Judged) and e.verdict.decision == "reject")
    ran = {o.task_id for o in verdict.outcomes}
    task = next(t.instance_id for t in maker.panel.tasks if t.instance_id not in ran)
    proposed = {e.proposal.id: e.proposal.task_id for e in maker.store.entries() if isinstance(e, Proposed)}
    learned = proposed[verdict.proposal_id]
    known = maker.store.local.attempts()
    ended = max(a.recorded_at for a in known if a.task_id == learned) + 1
    o = verdict.outcomes[0]
    first = next(a for a in known if (a.task_id, a.context_hash, a.ordinal) == (o.task_id, o.context_hash, o.ordinal))
    late = Attempt(id="late", task_id=task, ordinal=9, source="panel", outcome="resolved", recorded_at=ended)
    maker._keep(replace(first, recorded_at=ended))  # the clock that the maker leaves out
    maker._keep(late)
    run = run_facts(maker.store, words)
    column = next(c for c in run.columns if any(cell.late for cell in c.cells))
    gate = next(g for g in run.gates if g.line == column.line)
    row = next(r for r in heat(run).rows if r.task == task)
    cell = row.cells[run.columns.index(column)]
    assert (cell.text.split()[-1], cell.attempts.split()[-1], "late" in cell.style) == ("(1/1)", "late", True)
    html = page([run], {})
    told = {r.task: r.passes[-1] for r in tables(run)[column.line].rows}
    assert told[task] == "1 of 1 after the verdict, not counted"
    assert "ran on when the verdict was certain: not needed" in html
    assert (gate.proposal_id, gate.beyond, unseen(run)[gate.line]) == (verdict.proposal_id, 1, 0)
    assert "so the panel does not show" not in html


def test_verdicts_say_both_gains_and_how_many_items_they_are_of(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 20, seed=3)
    maker.stream(12, 2)
    run = run_facts(maker.store, words)
    accept = next(g for g in run.gates if g.decision == "accept")
    twice = replace(accept, first=0.1, low=0.05, high=0.05, again=60, total=120)
    told = replace(run, gates=tuple(twice if g is accept else g for g in run.gates))
    place = next(p for p, i in enumerate(run.items) if i.proposal_id == accept.proposal_id and not i.why)
    (why,) = (j.why for j in fates(told)[place].gates)
    assert why.startswith("+10.0 at first, +5.0 points when repeated, margin ")
    assert why.endswith("; one verdict for 5 items together")
    alone_ = replace(told, gates=tuple(replace(g, items=g.items[:1]) for g in told.gates))
    assert "together" not in fates(alone_)[place].gates[0].why


def test_what_is_in_the_bank_comes_first(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 20, seed=3)
    maker.stream(12, 2)
    run = run_facts(maker.store, words)
    found = newest(run.items)
    assert sorted(found) == list(range(len(run.items)))
    order = [(run.items[n].version is None, -run.items[n].line) for n in found]
    assert order == sorted(order)
    mine = len(maker.store.bank.items)
    assert said(run)["items"][0].startswith(f"In the bank: {mine} items, shown first")
    assert "valve panel items" in said(run)["items"][1]
    measured = replace(run, ledger=(*run.ledger, replace(run.ledger[-1], type="left_out")))
    assert alone(measured) == ""
    latest = max(i.version for i in run.items if i.version is not None)
    assert page([run], {}).count('class="badge">newest<') == sum(i.version == latest for i in run.items)


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
