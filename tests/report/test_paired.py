"""Two runs against each other, one bank against itself, and every measurement task by task."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.cli.banks import sample
from tests.report.runs import Maker
from valve_plugin.cli.history import words
from valve_plugin.report.bounds import doubt, of_gain, sizes
from valve_plugin.report.captions import of_stream
from valve_plugin.report.elsewhere import elsewhere
from valve_plugin.report.facts import run_facts
from valve_plugin.report.measured_tasks import again, moved, tables
from valve_plugin.report.overview import overview
from valve_plugin.report.page import page
from valve_plugin.report.paired import (
    by_version,
    conclusion,
    furthest,
    order,
    panel_tasks,
    seed,
)
from valve_plugin.report.run import Run, StreamPoint
from valve_plugin.report.versus import took, versus_card
from valve_plugin.theory import certificates


def _run(path: Path, seed: int = 0, *, held: int | None = None) -> Run:
    maker = Maker(path, 4, seed=seed)
    maker.stream(16, 4)
    if held is not None:
        maker.evaluate(0, 0)
        if maker.store.bank.version:
            maker.evaluate(maker.store.bank.version, held)
    return run_facts(maker.store, words)


def test_two_runs_end_in_one_sentence(tmp_path: Path, data_dir: Path) -> None:
    a = _run(tmp_path / "a")
    b = replace(a, stream=tuple(replace(p, passed=p.graded if p.position == 1 else p.passed) for p in a.stream))
    rates = [sum(p.passed for p in run.stream) / sum(p.graded for p in run.stream) for run in (a, b)]
    apart = f"{100 * (rates[0] - rates[1]):+.0f}"
    assert conclusion(a, b) == (
        f"Same 16 tasks in the same order, {apart} points: A higher on 0, lower on 1, equal on 15 (sign test p = 1, no "
        "certificate). That compares the streams, learning included, not the two final banks. No untouched tasks were "
        "measured: no holdout was read."
    )
    assert f"final banks; B's final version, {b.version + 1}, ran on no stream task." in conclusion(
        a, replace(b, version=b.version + 1)
    )
    backward = replace(b, stream=tuple(reversed(b.stream)))
    assert conclusion(backward, a).startswith(
        "Same 16 tasks in another order, so with other banks behind them, "
        f"{100 * (rates[1] - rates[0]):+.0f} points: A higher on 1"
    )
    assert "(15 tasks in both, 1 only in A, 0 only in B)" in conclusion(a, replace(b, stream=b.stream[1:]))
    assert "not known whole" in conclusion(a, replace(b, stream_whole=False))
    wider = replace(b, ledger=_run(tmp_path / "wide").ledger, panel=replace(b.panel, rollouts=5) if b.panel else None)
    assert "Their panels differ" in conclusion(a, wider)
    assert (order(b, a), order(backward, a), panel_tasks(b, a), seed(a)) == (
        "the same order",
        "the same tasks, another order",
        "the same tasks",
        "123",
    )
    assert conclusion(a, b) in page([a, b], {})
    card = versus_card(a, b)
    shares = f"{rates[1]:.0%} against {rates[0]:.0%}"
    assert card.answer == f"B resolved more ({shares}), but one run each proves nothing"
    assert card.why == f"{conclusion(a, b)} {took(a, b)}"
    assert versus_card(a, a).answer == f"Both resolved the same share ({rates[0]:.0%}), and one run each proves nothing"
    assert versus_card(a, replace(b, stream=b.stream[1:])).answer == "Nothing is to be concluded", "other tasks"
    html = page([a, b], {})
    assert html.index("Is A better than B?") < html.index("under B&#39;s version") < html.index("than its own start?")
    assert "Is this bank better?" not in html
    assert "--ungated" not in html
    unmeasured = replace(b, scores=())
    assert panel_tasks(unmeasured, a) == "the same tasks, on which nothing was measured"
    assert "Nothing was measured on B's panel." in versus_card(a, unmeasured).why


@pytest.mark.parametrize(("held", "says"), [(15, "cannot exclude chance"), (30, "A's bank is better by at least")])
def test_a_holdout_decides_only_beyond_chance(held: int, says: str, tmp_path: Path, data_dir: Path) -> None:
    one, other = Maker(tmp_path / "a", 4), Maker(tmp_path / "b", 4)
    one.evaluate(0, 3 * held, 100)
    other.evaluate(0, 30, 100)
    runs = [run_facts(m.store, words) for m in (one, other)]
    assert says in conclusion(*runs)
    assert versus_card(*runs).answer == (
        "A is better on the holdout"
        if held > 20
        else "A resolved more on the holdout (15% against 10%), but one run each proves nothing"
    )
    assert f"On the same 100 holdout tasks: A higher on {held - 10}, lower on 0" in conclusion(*runs)
    doubted = "The plain sign test, which is no certificate: two-sided p = 0.062." in conclusion(*runs)
    assert doubted is (held == 15)
    assert ("two-sided p = 0.062" in conclusion(*reversed(runs))) is doubted, "whichever is A"
    assert conclusion(runs[1], runs[1]).endswith(
        "equal on 100; A minus B +0.0 points. The certificate cannot exclude chance, so nothing is to be concluded."
    )
    assert "Only A's holdout was read." in conclusion(runs[0], replace(runs[1], checkpoints=()))


def test_each_gate_is_told_task_by_task(tmp_path: Path, data_dir: Path) -> None:
    run = run_facts(sample(tmp_path / "bank"), words)
    accepted, rejected = (tables(run)[g.line] for g in run.gates)
    assert accepted.heads == ("Reference, Start", "Candidate", "Change")
    assert [tuple(r) for r in accepted.rows] == [
        ("bug-b", ("0 of 3", "2 of 3"), ("+2",)),
        ("bug-a", ("3 of 3", "3 of 3"), ("0",)),
    ]
    assert [tuple(r) for r in rejected.rows] == [
        ("bug-a", ("3 of 3", "0 of 1"), ("-3 to -1",)),
        ("bug-b", ("2 of 3", "not run"), ("unknown",)),
    ]
    base = next(c for c in run.columns if c.label == "Start")
    for cells in (base.cells, base.cells[::-1]):
        start = replace(base, cells=cells)
        part = replace(start, label="Gate 1", line=base.line + 1, against="Start", cells=base.cells[:1])
        rows = tables(replace(run, columns=(start, part)))[part.line].rows
        assert [row.differences for row in rows] == [("0",), ("unknown",)], "what is unknown comes last"
    html = page([run], {})
    assert html.count('aria-label="Tasks of line') == 3
    assert html.count("<summary>Raw line</summary>") == 3


def test_a_repeated_gate_gives_both_differences(tmp_path: Path, data_dir: Path) -> None:
    run = run_facts(sample(tmp_path / "bank"), words)
    first = next(c for c in run.columns if c.label == "Gate 1")
    flat = tuple(replace(c, rollouts=()) for c in first.cells)
    again = replace(first, label="Gate 1 repeat", cells=flat)
    place = run.columns.index(first) + 1
    table = tables(replace(run, columns=(*run.columns[:place], again, *run.columns[place:])))[first.line]
    assert table.heads == (
        "Reference, Start",
        "First run",
        "Repeat",
        "Change, first run",
        "Change, repeat",
    )
    assert {row.differences for row in table.rows} == {("+2", "unknown"), ("0", "unknown")}


def test_same_tasks_are_summed_by_the_version_of_b(tmp_path: Path, data_dir: Path) -> None:
    run = run_facts(sample(tmp_path / "bank"), words)

    def under(second: int) -> Run:
        """Twelve tasks that pass 3 of 3 under version 0, then eight under version 2."""
        stream = [
            StreamPoint(
                task_id=str(n),
                position=n + 1,
                passed=3 if n < 12 else second,
                graded=3,
                version=0 if n < 12 else 2,
                rollouts=(),
            )
            for n in range(20)
        ]
        return replace(run, stream=tuple(stream), stream_whole=True)

    a, b = under(3), under(1)
    assert by_version(a, b) == [
        "on tasks 1-12, under B's version 0, B passed 36 of 36 and A 36 of 36 attempts",
        "on tasks 13-20, under B's version 2, B passed 8 of 24 and A 24 of 24 attempts",
    ]
    last = replace(b, version=3, stream=(*b.stream[:-1], replace(b.stream[-1], accepted=True)))
    assert by_version(a, last)[2:] == ["B's version 3 came in after the last task, so none ran under it"]
    assert furthest(a, b) == by_version(a, b)[1]
    assert furthest(b, a) == "", "B is ahead"
    assert by_version(a, replace(b, stream=b.stream[1:])) == [], "other tasks"
    assert "On tasks 13-20, under B's version 2, B passed 8 of 24 and A 24" in of_stream([a, b])
    html = page([replace(a, label="A, one"), replace(b, label="B, two")], {})
    assert "B passed 8 of 24 and A 24 of 24 attempts</li>" in html
    assert '<select name="run"><option value="">both</option><option>A, one</option><option>B, two</option>' in html
    assert 'data-run="B, two"' in html
    assert 'name="run"' not in page([a], {})


def test_the_holdout_is_told_task_by_task(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 20, seed=3)
    maker.stream(12, 2)
    maker.evaluate(0, 12)
    maker.evaluate(maker.store.bank.version, 15)
    run = run_facts(maker.store, words)
    table = tables(run)[run.checkpoints[-1].line]
    assert table.heads == ("Version 0", f"Version {run.version}", "Change")
    assert table.rows[0].differences == ("+3",)
    assert moved(run) == "Better on 1 task, worse on 0 tasks, equal on 9 tasks."
    assert "Better on 1 task" in page([run], {})
    gain = run.certificate.gain
    assert gain is not None
    told = overview(run)[0].why
    assert told.startswith(f"Version {run.version} against version 0 on 10 tasks that decided nothing. {moved(run)} ")
    assert f"The certificate cannot exclude chance: {doubt(gain, 1, 0)} Without the gate: not measured here" in told
    assert "conservative on few (10), and this gain would need about " in told


def test_the_spread_of_one_bank_stands_beside_the_margin(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 4)
    for _ in range(3):
        maker.measure()
    run = run_facts(maker.store, words)
    passes = [sum(r.outcome == "resolved" for c in col.cells for r in c.rollouts) for col in run.columns[1:]]
    (said,) = again(run)
    assert said.startswith(
        f"Rechecks 1 to 3 measured one unchanged bank, version 0: {', '.join(map(str, passes))} of 12 passes."
    )
    assert f"spread over {100 * (max(passes) - min(passes)) / 12:.1f} points" in said
    assert "Rechecks 1 to 3 measured" in page([run], {})


def test_an_item_leads_to_what_became_of_it_in_the_other_run(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "a", 20, seed=3)
    maker.stream(12, 2)
    a = run_facts(maker.store, words)
    rejected = tuple(replace(i, state="rejected", version=None, uses=0) for i in a.items)
    b = replace(a, items=tuple(replace(i, uses=13) for i in a.items))
    a = replace(a, items=rejected)
    place, twin = next((p, t[0]) for p, t in elsewhere(a.items, b.items).items() if "13" in t[0].said)
    assert b.items[twin.place].text == a.items[place].text
    assert twin.said == "accepted, in the prompt of 13 stream tasks and live runs"
    assert {t.said for twins in elsewhere(b.items, a.items).values() for t in twins} == {"rejected"}
    html = page([a, replace(b, live=replace(b.live, attempts=1))], {})
    assert f'in the other run</dt><dd><a href="#run2-item-{twin.place}">{twin.said}</a>' in html
    assert "in the other run" not in page([a], {})


@given(
    measured=st.floats(0.01, 1),
    variance=st.floats(0.001, 1),
    tasks=st.integers(1, 3),
)
def test_the_size_that_is_named_would_do(measured: float, variance: float, tasks: int) -> None:
    said = sizes(of_gain(measured, tasks, 0.05, variance))
    speaks, no_loss = (int(word.replace(",", "")) for word in said.split() if word.replace(",", "").isdigit())
    assert certificates.gain(measured, no_loss, 0.05, variance).value >= 0
    assert not certificates.gain(measured, speaks, 0.05, variance).vacuous
    assert f"would need about {no_loss:,} holdout tasks." in doubt(of_gain(measured, tasks, 0.05, variance), 1, 0)
    assert no_loss == 1 or certificates.gain(measured, no_loss - 1, 0.05, variance).value < 0
