"""The numbers behind `valve report`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from typer.testing import CliRunner

from tests.cli.banks import sample
from tests.report.runs import Maker
from tests.strategies import Story, few, stories
from valve_plugin.bank.entries import Baseline, Judged, Remeasured
from valve_plugin.bank.store import BankStore
from valve_plugin.cli import app
from valve_plugin.cli.history import words
from valve_plugin.codec import canonical, plain
from valve_plugin.errors import ValveError
from valve_plugin.evolve.savings import Saved
from valve_plugin.records import Attempt
from valve_plugin.report.captions import rolling
from valve_plugin.report.compare import compared, equal
from valve_plugin.report.elsewhere import prompts
from valve_plugin.report.facts import run_facts
from valve_plugin.report.figures import figures
from valve_plugin.report.heat import heat
from valve_plugin.report.overview import overview, own_start, scope, simulation
from valve_plugin.report.page import originals, page
from valve_plugin.report.run import Run, Source, StreamPoint
from valve_plugin.report.run_cost import spent
from valve_plugin.report.run_panel import Kept, columns, gates
from valve_plugin.report.run_spent import Spent, total
from valve_plugin.report.style import inline, svg


@pytest.fixture
def run(tmp_path: Path, data_dir: Path) -> Run:
    return run_facts(sample(tmp_path / "bank"), words)


def test_gates_show_what_was_measured_and_what_may_have_been(run: Run) -> None:
    accepted, rejected = run.gates
    assert (accepted.decision, accepted.low, accepted.high, accepted.margin) == ("accept", 2 / 6, 2 / 6, 1 / 6)
    assert (accepted.version, accepted.ran, accepted.total) == (1, 6, 6)
    assert accepted.floor is not None
    # One rollout of six ran and failed; the current bank has five passes.
    assert (rejected.decision, rejected.low, rejected.high) == ("reject", -5 / 6, 0.0)
    assert (rejected.floor, rejected.ran, rejected.version) == (None, 1, 1)


def test_what_was_not_evaluated_is_no_failure(run: Run) -> None:
    assert [c.label for c in run.columns] == ["Start", "Gate 1", "Gate 2"]
    rows = {row.task: [(cell.text, cell.style) for cell in row.cells] for row in heat(run).rows}
    assert rows == {
        "bug-a": [("3/3", "full"), ("3/3", "full"), ("0/1", "zero")],
        "bug-b": [("0/3", "zero"), ("2/3", "part"), ("·", "none")],
    }


def test_every_item_says_what_became_of_it(run: Run) -> None:
    assert [(i.name, i.state, i.version) for i in run.items] == [
        ("look-first", "accepted", 1),
        ("dates", "accepted", 1),
        ("skip-tests", "withheld", None),
        ("noise", "rejected", None),
    ]
    assert run.items[0].sources == (Source(task_id="bug-x", ordinal=0, outcome="resolved"),), "no step is made up"


def test_without_local_rollouts_only_mixed_tasks_are_known(run: Run) -> None:
    assert not run.stream_whole
    assert [(p.task_id, p.passed, p.graded, p.version, p.accepted) for p in run.stream] == [("bug-x", 1, 1, 0, True)]
    assert [(s.position, s.principles, s.skills) for s in run.sizes] == [(0, 0, 0), (1, 1, 1)]
    assert run.spent == ()


def test_with_them_the_whole_stream_is(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 4)
    maker.stream(20, 5)
    run = run_facts(maker.store, words)
    assert run.stream_whole
    assert [p.position for p in run.stream] == list(range(1, 21))
    assert [p.task_id.rpartition("_")[2] for p in run.stream] == [str(n) for n in range(20)]
    assert [(s.role, s.rollouts, s.hours) for s in run.spent] == [("solver", 60, 0.5)]
    assert len(run.gates) == 4
    assert all(r.attempt for item in run.items for r in item.sources)


def test_the_holdout_answers_first(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 20, seed=3)
    maker.stream(60, 2)
    version = maker.store.bank.version
    assert version
    maker.evaluate(0, 12)
    maker.evaluate(version, 18)
    run = run_facts(maker.store, words)
    assert {(c.version, c.low, c.high) for c in run.checkpoints} == {(0, 0.4, 0.4), (version, 0.6, 0.6)}
    assert overview(run)[1].answer == "+20.0 points"
    assert "holdout" in [f.name for f in figures([run])]
    assert run.certificate.gain is not None


def _grown(path: Path) -> tuple[Maker, int]:
    maker = Maker(path, 20, seed=3)
    maker.stream(12, 2)
    assert maker.store.bank.version
    return maker, maker.store.bank.version


@pytest.mark.parametrize(
    ("before", "after", "tasks", "better", "sure"),
    [
        (4, 2, 2, "No, lower on the holdout", "Not at all: too few tasks"),
        (12, 15, 10, "Higher on the holdout, not certain", "A loss cannot be excluded"),
        (12, 12, 10, "The same on the holdout", "A loss cannot be excluded"),
        (24, 9, 10, "No, lower on the holdout", "Not at all: too few tasks"),
        (225, 75, 100, "No, lower on the holdout", "A loss cannot be excluded"),
        (75, 225, 100, "Yes, on the holdout", "At least +"),
    ],
)
def test_the_holdout_decides_whether_a_bank_is_better(
    tmp_path: Path, data_dir: Path, before: int, after: int, tasks: int, better: str, sure: str
) -> None:
    maker, version = _grown(tmp_path / "bank")
    maker.evaluate(0, before, tasks)
    maker.evaluate(version, after, tasks)
    answers = overview(run_facts(maker.store, words))
    assert answers[0].answer == better
    assert answers[0].tone == {"Yes": "yes", "No,": "no"}.get(better[:3], "open")
    assert answers[2].answer.startswith(sure)
    assert "cannot speak for other tasks" in answers[2].why or "with probability 0.95" in answers[2].why


def test_a_gain_over_a_version_that_was_not_evaluated_is_unknown(tmp_path: Path, data_dir: Path) -> None:
    maker, version = _grown(tmp_path / "bank")
    maker.evaluate(version, 9)
    run = run_facts(maker.store, words)
    assert {c.gain for c in run.checkpoints} == {None}
    better, much, sure, _ = overview(run)
    assert (better.answer, much.answer, sure.answer) == ("Unknown", "Unknown", "Unknown")
    assert "Version 0 was not evaluated: valve eval." in better.why
    assert much.why.startswith("Version 0 was not evaluated: valve eval.")
    shown = CliRunner().invoke(app, ["eval", "--show", "--bank", str(maker.store.dir)])
    assert shown.exit_code == 0
    assert "gain unknown: version 0 was not evaluated" in shown.stdout
    assert "+0.0" not in shown.stdout
    plain_ = json.loads(CliRunner().invoke(app, ["eval", "--show", "--json", "--bank", str(maker.store.dir)]).stdout)
    assert {(c["gain"], c["per_task"]) for c in plain_["checkpoints"]} == {(None, None)}


def test_a_reading_of_version_0_alone_says_nothing_of_the_bank(tmp_path: Path, data_dir: Path) -> None:
    maker, version = _grown(tmp_path / "bank")
    maker.evaluate(0, 9)
    better, much, *_ = overview(run_facts(maker.store, words))
    assert (better.answer, much.answer) == ("Unknown", "Unknown")
    assert f"Version {version} was not evaluated" in much.why
    shown = CliRunner().invoke(app, ["eval", "--show", "--bank", str(maker.store.dir)]).stdout
    assert "drawdown  none: a single version was evaluated" in shown
    assert "peak" not in shown


def test_what_looks_at_a_run_is_no_part_of_its_cost(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 4, panel_kept=True)
    maker.stream(10, 5)
    before = run_facts(maker.store, words)
    maker.measure()
    attempts = [
        *maker.store.local.attempts(),
        Attempt(id="e", task_id="held", ordinal=0, source="eval", outcome="resolved", seconds=30.0),
    ]
    calls = [{"source": "extract", "seconds": 2.0}] * 3
    run = msgspec.structs.replace(
        run_facts(maker.store, words), spent=spent(attempts, calls, list(maker.store.entries())), clock=None
    )
    roles = {s.role: s.rollouts for s in run.spent}
    assert roles == {s.role: s.rollouts for s in before.spent} | {"extractor": 3, "measurement": 12, "evaluation": 1}
    own = roles["solver"] + roles["gate"]
    cost = overview(run)[3]
    hours = {s.role: s.hours for s in run.spent}
    worked = hours["solver"] + hours["gate"]
    time = f" and {hours['gate'] / worked:.0%} of the time they took" if worked else ""
    share = f"{13 / (own + 13):.0%}"
    assert cost.answer == f"{own + 13} rollouts: {own} for the run, 13 only to measure it ({share}: 12 A/A + 1 holdout)"
    assert f"{roles['gate'] / own:.0%} of the run's rollouts{time} are the gate's; 3 extractor calls" in cost.why
    assert f"Evaluation alone: 1 rollout ({1 / (own + 13):.0%} of all, " in cost.why
    assert overview(before)[3].answer.startswith(f"{own} rollouts, ")
    assert overview(before)[3].why.endswith("Evaluation: none.")
    assert overview(before)[0].why.endswith("Without the gate: not measured here; see Gates for how.")
    assert "Without the gate: not measured" not in own_start(overview(before)[0]).why
    html = page([run], {})
    assert f'run total (without evaluation and measurement)</th><td class="number">{own} and 3 calls</td>' in html
    assert f'everything</th><td class="number">{own + 13} and 3 calls</td><td class="number">100&nbsp;%</td>' in html
    assert "everything</th>" not in page([before], {})


def test_a_repeated_gate_shows_both_gains(tmp_path: Path, data_dir: Path) -> None:
    store = sample(tmp_path / "bank")
    entries = list(store.entries())
    line, judged = next((n, e) for n, e in enumerate(entries) if isinstance(e, Judged))
    fresh = [msgspec.structs.replace(o, ordinal=o.ordinal + 3) for o in judged.verdict.outcomes]
    passed = next(n for n, o in enumerate(fresh) if o.outcome == "resolved")
    fresh[passed] = msgspec.structs.replace(fresh[passed], outcome="unresolved")
    verdict = msgspec.structs.replace(judged.verdict, confirming=tuple(fresh))
    entries[line] = msgspec.structs.replace(judged, verdict=verdict)
    known = {e.verdict.proposal_id: Saved(1, 6, 2.5) for e in entries if isinstance(e, Judged)}
    assert [(g.saved, g.saved_usd) for g in gates(entries, (), known, {})] == [(0, 0.0), (5, 2.5)], (
        "a whole panel, and one rollout of six"
    )
    first, other = gates(entries, (), {}, {})
    assert (first.first, first.low, first.ran, first.again, first.total) == (2 / 6, 1 / 6, 12, 6, 12)
    assert (other.first, other.again) == (None, 0)
    run = run_facts(store, words)
    assert "when repeated" not in page([run], {})
    again = columns(entries, Kept([]))
    assert [(c.label, c.against) for c in again] == [
        ("Start", ""),
        ("Gate 1", "Start"),
        ("Gate 1 repeat", "Start"),
        ("Gate 2", "Gate 1 repeat"),
    ], "an accept carries its repeat's outcomes on"
    run = msgspec.structs.replace(run, gates=(first, other), columns=again)
    html = page([run], {})
    assert 'aria-label="reference of Gate 2"' in html
    assert [c.reference for c in heat(run).columns] == ["Gate 1", "", "Gate 2", ""]
    assert "+33.3 at first, +16.7 when repeated" in html
    assert "6 + 6 of twice 6" in html
    assert "Accepts had to repeat on fresh rollouts" in html
    assert "its repeat the same on fresh rollouts" in html
    assert "a hollow circle is the first gain" in next(f.caption for f in figures([run]) if f.name == "gates")
    assert "+2 at first, +1 when repeated" in words(entries[line]), "as the log says it"


def test_rollouts_that_were_under_way_are_not_called_saved(tmp_path: Path, data_dir: Path) -> None:
    """Several workers run beyond the decisive prefix; `valve bank log` counts them, and so does the page."""
    store = sample(tmp_path / "bank")
    verdict = next(e.verdict for e in store.entries() if isinstance(e, Judged) and e.verdict.decision == "reject")
    ran = {"proposal_id": verdict.proposal_id, "confirming": False, "ran": verdict.ran + 2, "cost_usd": 0.0}
    store.local.telemetry("gates", ran)
    run = run_facts(store, words)
    assert [g.beyond for g in run.gates if g.decision == "reject"][:1] == [2]
    html = page([run], {})
    assert f"{verdict.ran} of 6</td>" in html
    assert ". 2 more ran on when the verdict was certain" in html
    assert "(not kept on this machine, so the panel does not show them)" in html
    assert f"{6 - verdict.ran - 2} (" in html
    assert "2 more ran on when the verdict was certain" in html


def test_the_page_says_what_use_and_support_count(run: Run) -> None:
    used = msgspec.structs.replace(run.items[0], uses=7)
    none = msgspec.structs.replace(run.live, attempts=0)
    html = page([msgspec.structs.replace(run, items=(used, *run.items[1:]), live=none, stream_whole=True)], {})
    assert "in the prompt of</dt><dd>7 stream tasks on this machine" in html, "no live run is on record"
    assert prompts(7, live=True) == "7 stream tasks and live runs"
    assert "Support: how many proposals taught an item" in html


def test_a_fault_is_shown_at_its_line(tmp_path: Path, data_dir: Path) -> None:
    store = sample(tmp_path / "bank")
    (tmp_path / "bank/bank.json").write_text("{}")
    run = run_facts(store, words)
    assert any(problem.startswith("bank.json") for problem in run.problems)
    html = page([run], {})
    assert html.index("Verification found") < html.index('class="cards"'), "before all that it puts in doubt"
    told = page(
        [msgspec.structs.replace(run, label="A, x"), msgspec.structs.replace(run, label="B, y", problems=())], {}
    )
    assert told.index("A, x: verification found") < told.index('class="cards versus"')
    assert "B, y: verification found" not in told


def test_an_empty_bank_has_a_page(tmp_path: Path, data_dir: Path) -> None:
    run = run_facts(BankStore.create(tmp_path / "bank", "owner/name"), words)
    assert [a.answer for a in overview(run)] == [
        "It is empty",
        "Nothing measured",
        "Nothing to certify",
        "Nothing yet",
    ]
    assert figures([run]) == []
    assert "nothing to draw" in page([run], {})


def test_answers_claim_what_was_measured(run: Run) -> None:
    better, much, sure, cost = overview(run)
    assert better.answer == "Higher on its own panel, not tested elsewhere"
    assert (much.answer, cost.answer) == ("+33.3 points", "Unknown here")
    assert "In-sample" in much.why
    assert "cannot speak for other tasks" in sure.why or "certified" in sure.why


@pytest.mark.usefixtures("drawn")
def test_equal_runs_give_equal_pages_and_figures(run: Run) -> None:
    assert page([run], {}) == page([run], {})
    for figure in figures([run]):
        assert svg(figure) == svg(figure)
        kept = ("p", "m", "h", f"figure-{figure.name}-")  # what something refers to
        assert all(id_.startswith(kept) for id_ in re.findall(' id="([^"]*)"', inline(figure)))


def test_two_runs_are_compared_on_one_page(tmp_path: Path, data_dir: Path) -> None:
    runs = []
    for name in ("a", "b"):
        maker = Maker(tmp_path / name, 3, seed=ord(name))
        maker.stream(12, 4)
        runs.append(run_facts(maker.store, words, name))
    table = dict(compared(runs))
    assert all(len(values) == 2 for values in table.values())
    own = total(runs[0].spent)
    gate = next((s.rollouts for s in runs[0].spent if s.role == "gate"), 0)
    assert table["rollouts"][0] == (f"{own.rollouts}, {gate} of them the gate's" if gate else str(own.rollouts))
    assert [equal(table[row]) for row in ("repository", "stream order", "US dollars", "panel seed")] == [
        True,
        True,
        False,
        table["panel seed"][0] == table["panel seed"][1] != "-",
    ]
    assert not equal(["8 tasks", "the same tasks, on which nothing was measured"])
    dimmed = re.findall(
        '<tr class="equal"><th scope="row">([^<]+) <span role="img" aria-label="equal">=', page(runs, {})
    )
    assert dimmed == [name for name, values in compared(runs) if equal(values)] != []
    html = page(runs, {})
    assert 'id="run1-line-1"' in html
    assert 'id="run2-line-1"' in html


def test_one_of_two_runs_is_simulated_and_the_page_says_which(run: Run) -> None:
    real = msgspec.structs.replace(run, label="A, real", simulated=False)
    scripted = msgspec.structs.replace(run, label="B, scripted", simulated=True, models=("script", "other"))
    html = page([real, scripted], {})
    assert "SIMULATION: a scripted model took part in B, scripted, and not in the other run." in html
    captions = {f.name: f.caption for f in figures([real, scripted])}
    assert captions["stream"].startswith("SIMULATION in B, scripted: ")
    assert captions["gates-2"].startswith("SIMULATION: ")
    alone = re.sub("<style>.*?</style>", "", page([real], {}), flags=re.DOTALL)
    assert "SIMULATION" not in captions["gates-1"] + alone
    assert ('class="simulated ' in html, 'class="simulated ' in alone) == (True, False), "what print marks"


def test_a_simulation_says_what_was_scripted_and_what_was_real(run: Run) -> None:
    ran = (Spent(role="solver", rollouts=3, usd=0.0, hours=0.1),)
    run = msgspec.structs.replace(run, spent=ran)
    real = msgspec.structs.replace(run, label="A, real", simulated=False)
    whole = msgspec.structs.replace(run, label="B, scripted", simulated=True, models=("script",))
    sentence = "model was a script, and so was what lessons do to it; commands, edits, tests and grading were real."
    for runs, where in (
        ([whole], "this run"),
        ([whole, whole], "both runs"),
        ([real, whole], "B, scripted, and not in the other run"),
    ):
        assert simulation(runs).startswith(f"SIMULATION in {where}: the {sentence}")
    html = page([whole], {})
    assert html.count(sentence) == 1, "in the banner"
    mixed = msgspec.structs.replace(whole, models=("script", "other"))
    assert [scope(whole), scope(mixed), scope(real)] == [f"The {sentence}", "", ""], "another model took part"
    assert scope(msgspec.structs.replace(whole, spent=())) == "", "whose model is not known here"
    assert simulation([mixed, whole]).startswith("SIMULATION: a scripted model took part in both runs.")


def test_what_an_older_ledger_does_not_hold_is_not_told_by_another(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 4, seed=3)
    maker.older = True
    maker.stream(12, 3)
    run = run_facts(maker.store, words)
    found = run.items
    near = [i for i in found if i.state == "near-duplicate"]
    assert near
    assert {(i.text, i.markdown, i.kept) for i in near} == {("", "", False)}
    html = page([run], {})
    assert "written by an older valve, which noted only what a duplicate repeats" in html
    assert "Difference to" not in html
    maker = Maker(tmp_path / "now", 4, seed=3)
    maker.stream(12, 3)
    assert "older valve" not in page([run_facts(maker.store, words)], {})


def test_a_duplicate_is_compared_with_what_it_repeats_and_no_namesake(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 4, seed=3)
    maker.stream(12, 3)
    found = run_facts(maker.store, words).items
    twins = originals(found)
    assert {p for p, i in enumerate(found) if i.twin} == set(twins)
    rejected = [msgspec.structs.replace(i, state="rejected", proposal_id=str(n)) for n, i in enumerate(found)]
    assert originals(rejected) == {}


@pytest.mark.usefixtures("drawn")
def test_a_legend_names_what_is_drawn(tmp_path: Path, data_dir: Path, run: Run) -> None:
    drawn = {f.name: svg(f) for f in figures([run])}
    assert "reject: best it could still reach" in drawn["gates"]
    for absent in ("reject: measured", "indecisive: between", "its certified floor", "first gain"):
        assert absent not in drawn["gates"], absent
    assert "below its peak" not in drawn["stream"]
    assert 'class="lost"' not in page([run], {})
    maker = Maker(tmp_path / "b", 4, panel_kept=True)
    maker.stream(10, 5)
    other = run_facts(maker.store, words)
    assert {s.role for s in other.spent} == {"solver", "gate"}
    cost = next(
        svg(f) for f in figures([msgspec.structs.replace(other, spent=other.spent[:1]), other]) if f.name == "cost"
    )
    assert ("solver" in cost, "gate" in cost) == (True, True), "a role that only the second run has is named too"


def test_what_looks_at_a_run_has_a_bar_of_its_own(run: Run) -> None:
    spent_ = tuple(Spent(role=role, rollouts=1, usd=0, hours=1.0) for role in ("solver", "evaluation"))
    (figure,) = [f for f in figures([msgspec.structs.replace(run, spent=spent_)]) if f.name == "cost"]
    bars = figure.draw().axes[0].patches
    assert [(b.get_x(), b.get_width()) for b in bars] == [(0, 1), (0, 1)], "no gap that the axis would count"
    assert len({b.get_y() for b in bars}) == 2
    assert "a bar of their own" in figure.caption


def test_captions_name_each_holdout(tmp_path: Path, data_dir: Path) -> None:
    runs = []
    for name, tasks in (("a", 10), ("b", 1)):
        maker, version = _grown(tmp_path / name)
        maker.evaluate(0, 1, tasks)
        maker.evaluate(version, 2, tasks)
        runs.append(run_facts(maker.store, words, name))
    caption = next(f.caption for f in figures(runs) if f.name == "holdout")
    assert "(A: avg@3 on 10 tasks; B: avg@3 on 1 task)" in caption
    assert "not the same tasks" in caption
    alone = next(f.caption for f in figures(runs[:1]) if f.name == "holdout")
    assert "(avg@3 on 10 tasks)" in alone


_NOUNS = (
    "tasks|rollouts|accepts|versions|proposals|calls|items|skills|principles|gates|queries|faults|lines|attempts|runs"
)


def test_one_of_anything_is_said_as_one(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 1, seed=3, panel_kept=True)
    maker.stream(1, 1)
    maker.evaluate(0, 1, 1)
    maker.evaluate(maker.store.bank.version, 2, 1)
    maker.measure()
    run = run_facts(maker.store, words)
    run = msgspec.structs.replace(run, spent=tuple(msgspec.structs.replace(s, rollouts=1) for s in run.spent))
    text = re.sub(r"<style>.*?</style>|<script.*?</script>|<pre>.*?</pre>|<[^>]*>", " ", page([run], {}), flags=re.S)
    assert "Epoch 1: 1 accept so far, of at most" in text
    assert re.findall(rf"\b1 (?:\w+ )?(?:{_NOUNS})\b[^.]{{0,30}}", text) == []


@given(story=stories())
@settings(few, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_history_can_be_reported(story: Story, tmp_path: Path, data_dir: Path) -> None:
    store = BankStore.create(tmp_path / uuid4().hex, story.banks[0].repo)
    for entry in story.entries[1:]:
        try:
            store.append(entry)
        except ValveError:  # a story may judge what no store would have recorded; what came before is a history too
            break
    entries = list(store.entries())
    run = run_facts(store, words)
    repeated = sum(isinstance(e, Judged) and bool(e.verdict.confirming) for e in entries)
    assert len(run.columns) == sum(isinstance(e, Baseline | Remeasured | Judged) for e in entries) + repeated
    assert len(run.ledger) == len(entries)
    assert all(g.low <= g.high for g in run.gates)
    assert sum(i.version is not None for i in run.items) == len(store.bank.items)
    assert run.sizes[-1].principles <= len(store.bank.principles)
    assert canonical(plain(run))
    assert len(overview(run)) == 4
    assert all(len(row.cells) == len(run.columns) for row in heat(run).rows)


def test_the_rate_is_taken_over_the_last_tasks() -> None:
    points = [
        StreamPoint(task_id=str(n), position=n + 1, passed=3 * (n >= 10), graded=3, version=0, rollouts=())
        for n in range(20)
    ]
    rates = rolling(points)
    assert rates[9] == 0
    assert rates[14] == 0.5
    assert rates[19] == 1
