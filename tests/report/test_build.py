"""From a ledger and the rollouts kept here to the numbers of a report."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace

from tests.cli.banks import sample
from tests.report.runs import Maker
from tests.strategies import Story, few, stories
from valve_plugin.bank.entries import AttemptNote, Baseline, Judged, Proposed, Remeasured
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import canonical, digest, plain
from valve_plugin.errors import ValveError
from valve_plugin.evidence.summary import Savings
from valve_plugin.records import Proposal, live_task
from valve_plugin.report.build import KeptAttempts, build_run, columns, gates
from valve_plugin.report.findings import answers, findings, heatmap
from valve_plugin.report.run import RunReport
from valve_plugin.report.templates import text


def test_gates_show_what_was_measured_and_what_may_have_been(small: RunReport) -> None:
    accepted, rejected = small.gates
    assert (accepted.decision, accepted.low, accepted.high, accepted.margin) == ("accept", 2 / 6, 2 / 6, 1 / 6)
    assert (accepted.version, accepted.ran, accepted.total) == (1, 6, 6)
    assert accepted.floor is None, "an assumption of its certificate is unmet"
    # One rollout of six ran and failed; the current bank has five passes.
    assert (rejected.decision, rejected.low, rejected.high) == ("reject", -5 / 6, 0.0)
    assert (rejected.floor, rejected.ran, rejected.version) == (None, 1, 1)


def test_what_was_not_evaluated_is_no_failure(small: RunReport) -> None:
    assert [c.label for c in small.columns] == ["Start", "Gate 1", "Gate 2"]
    rows = {task: [(cell.ran.text, cell.style) for cell in row] for task, row in heatmap(small.columns).items()}
    assert rows == {
        "bug-a": [("3/3", "full"), ("3/3", "full"), ("0/1", "zero")],
        "bug-b": [("0/3", "zero"), ("2/3", "part"), ("·", "none")],
    }


def test_with_them_the_whole_stream_is(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 4)
    maker.stream(20, 5)
    run = build_run(maker.store)
    assert run.stream_whole
    assert [p.position for p in run.stream] == list(range(1, 21))
    assert [p.task_id.rpartition("_")[2] for p in run.stream] == [str(n) for n in range(20)]
    assert [(s.role, s.rollouts, s.hours) for s in run.spent] == [("solver", 60, 0.5)]
    assert len(run.gates) == 4
    assert all(r.attempt for item in run.items for r in item.sources)


def test_readings_of_the_holdout(grown: Maker) -> None:
    version = grown.store.bank.version
    grown.evaluate(version, 18)
    run = build_run(grown.store)
    assert {c.gain for c in run.checkpoints} == {None}, "version 0 was not evaluated"
    grown.evaluate(0, 12)
    run = build_run(grown.store)
    assert {(c.version, c.low, c.high) for c in run.checkpoints} == {(0, 0.4, 0.4), (version, 0.6, 0.6)}
    assert run.certificate.gain is not None


def test_a_repeated_gate_has_both_gains(tmp_path: Path, data_dir: Path) -> None:
    store = sample(tmp_path / "bank")
    entries = list(store.entries())
    line, judged = next((n, e) for n, e in enumerate(entries) if isinstance(e, Judged))
    fresh = [replace(o, ordinal=o.ordinal + 3) for o in judged.verdict.outcomes]
    passed = next(n for n, o in enumerate(fresh) if o.outcome == "resolved")
    fresh[passed] = replace(fresh[passed], outcome="unresolved")
    entries[line] = replace(judged, verdict=replace(judged.verdict, confirming=tuple(fresh)))
    known = {e.verdict.proposal_id: Savings(1, 6, 2.5) for e in entries if isinstance(e, Judged)}
    assert [(g.saved, g.saved_usd) for g in gates(entries, (), known)] == [(5, 2.5)] * 2
    first, other = gates(entries, (), {})
    assert (first.first, first.low, first.ran, first.again, first.total) == (2 / 6, 1 / 6, 12, 6, 12)
    assert (other.first, other.again) == (None, 0)
    assert [(c.label, c.against) for c in columns(entries, KeptAttempts([]))] == [
        ("Start", ""),
        ("Gate 1", "Start"),
        ("Gate 1 repeat", "Start"),
        ("Gate 2", "Gate 1 repeat"),
    ], "an accept carries its repeat's outcomes on"


def test_a_live_task_that_taught_stands_in_the_stream_and_hides_no_other(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 3)
    maker.stream(6, 3)
    before = build_run(maker.store)
    task = live_task(digest("task"))
    note = AttemptNote(task_id=task, ordinal=0, outcome="unresolved", context_hash=digest("b"), patch_hash=digest("p"))
    maker.store.append(Proposed(proposal=Proposal(task_id=task, reason="nothing usable"), attempts=(note,)))
    run = build_run(maker.store)
    assert run.stream_whole
    mixed = [p.position for p in before.stream if 0 < p.passed < p.graded][-1]
    ids = [p.task_id for p in before.stream]
    assert [p.task_id for p in run.stream] == [*ids[:mixed], task, *ids[mixed:]]


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
    run = build_run(store)
    repeated = sum(isinstance(e, Judged) and bool(e.verdict.confirming) for e in entries)
    assert len(run.columns) == sum(isinstance(e, Baseline | Remeasured | Judged) for e in entries) + repeated
    assert len(run.ledger) == len(entries)
    assert all(g.low <= g.high for g in run.gates)
    assert sum(i.version is not None for i in run.items) == len(store.bank.items)
    assert canonical(plain(run))
    assert all(len(row) == len(run.columns) for row in heatmap(run.columns).values())
    said = [
        *(part for a in answers(run) for part in (a.headline, a.reason)),
        *(s for f in findings(run).values() for s in f),
    ]
    assert all(map(text, said)), "every state has its words"
