"""The screen: before its gate, a proposal is tried again at the task that it was learned from."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.bank import build
from tests.evolve.test_ledger import ledger
from valve_plugin import plugins
from valve_plugin.bank import acts, moves
from valve_plugin.bank.entries import FAILED_AGAIN, Entry, EpochOpened, Judged, Proposed, sets_aside, undecided
from valve_plugin.bank.store import BankStore
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError, TaskError
from valve_plugin.evidence.cost import rollout_purposes
from valve_plugin.evidence.evaluations import step_tasks, version_path
from valve_plugin.evidence.receipts import examine
from valve_plugin.evidence.summary import advise, count_attempts, proposal_results, verdict_lines
from valve_plugin.evolve.budget import proposal_rollouts, require_first_verdict
from valve_plugin.evolve.steps import Steps, aside
from valve_plugin.gate.plan import screen_context
from valve_plugin.records import Context, Panel, PanelTask, Proposal, Task
from valve_plugin.retrieval.contexts import retrieve
from valve_plugin.tasks.task_set import load

FRESH = ("-c", "protocol=fresh", "-c", "screen=2", "--limit", "10", "--seed", "5")


@pytest.fixture(scope="module")
def screened(evolved) -> Path:
    """The bank of a run with one worker. Do not change it."""
    return evolved("screened", *FRESH)


def failed(bank: Path) -> list[Proposed]:
    return [e for e in BankStore.open(bank).entries() if sets_aside(e, FAILED_AGAIN)]


def test_what_fails_at_its_own_task_again_is_set_aside_beside_these_attempts(screened, calc):
    store = BankStore.open(screened)
    entries = list(store.entries())
    results = {row.proposal.id: row for row in proposal_results(entries)}
    aside = failed(screened)
    assert aside, "the run shows a failed screen; choose another seed if not"
    judged = {e.verdict.proposal_id for e in entries if isinstance(e, Judged)}
    assert judged, "and a passed one"
    assert store.queries_used() == len(judged), "a screen is no query"
    for entry in aside:
        id_ = sets_aside(entry, FAILED_AGAIN)
        assert results[id_].outcome == "not judged"
        assert id_ not in judged
        *passed, last = [note.outcome for note in entry.attempts]
        assert (set(passed) <= {"resolved"}, last) == (True, "unresolved")
        assert {note.task_id for note in entry.attempts} == {results[id_].task_id}
        (context,) = {note.context_hash for note in entry.attempts}
        assert context not in {
            n.context_hash for e in entries if isinstance(e, Proposed) and e != entry for n in e.attempts
        }
    assert f"- {FAILED_AGAIN}: skill " in verdict_lines(entries)
    named = rollout_purposes(entries)
    assert {named[n.task_id, n.context_hash, n.ordinal] for e in aside for n in e.attempts} == {
        ("solver", "screens of proposals")
    }
    assert examine(screened, str(calc)).findings == ()


def test_a_screen_that_did_not_fail_so_is_found(screened, calc, tmp_path):
    other = BankStore.create(tmp_path / "bank", "acme/core")
    wrong = failed(screened)[0]
    for entry in list(BankStore.open(screened).entries())[1:]:
        note = entry.attempts[-1] if entry == wrong else None
        other.append(replace(entry, attempts=(replace(note, outcome="resolved"),)) if note else entry)
    assert any(
        "do not end with their first failure" in f.message for f in examine(tmp_path / "bank", str(calc)).findings
    )


@pytest.mark.parametrize("share", ["0", "0.5"])
def test_the_ledger_is_the_same_for_any_number_of_workers(evolve, screened, tmp_path, share):
    evolve(tmp_path / "bank", *FRESH, "--workers", "4", "--speculate", share)
    assert ledger(tmp_path / "bank") == ledger(screened)


def test_an_errored_attempt_of_a_screen_pauses_the_run_and_is_tried_again(evolve, screened, tmp_path):
    note, down = failed(screened)[0].attempts[-1], tmp_path / "down"
    down.write_text(f"evolve {note.task_id[-2:]} {note.ordinal} {note.context_hash[:8]}\n")
    paused = evolve(tmp_path / "bank", *FRESH, check=False, TOY_DOWN=str(down))
    assert paused.returncode == 3
    assert "hit a failure of host or provider" in paused.stderr
    assert ledger(screened).startswith(ledger(tmp_path / "bank"))
    down.unlink()
    evolve(tmp_path / "bank", *FRESH)
    assert ledger(tmp_path / "bank") == ledger(screened)


def test_without_a_screen_all_are_judged(evolve, screened, tmp_path):
    evolve(tmp_path / "bank", *FRESH, "-c", "screen=0")
    assert not failed(tmp_path / "bank")


def test_a_budget_has_to_reach_over_the_screen(tmp_path):
    panel = Panel(tasks=(PanelTask(instance_id="t", content_hash="0" * 64),))
    tasks = [Task(instance_id="own", repo="acme/core", patch="p", fail_to_pass=("t",))]

    def require(least: int, store: BankStore | None = None, *, queued: bool = False, **more: Any) -> None:
        require_first_verdict(Settings(max_rollouts=least, **more), panel, store, tasks, queued=queued)
        with pytest.raises(ConfigError, match=f"--max-rollouts {least}"):
            require_first_verdict(Settings(max_rollouts=least - 1, **more), panel, store, tasks, queued=queued)

    require(3 + 5 + 2 * 3)
    require(9, protocol="paper")
    require_first_verdict(Settings(max_rollouts=3), None, None, tasks)
    store = BankStore.create(tmp_path / "bank", "acme/core")
    for task, least in (("own", 5 + 2 * 3), ("live-1", 2 * 3)):
        job = store.local.queue_push({"task_id": task})
        require(least, store, queued=True)
        require(14, store)
        store.local.queue_done(job)
    store.append(Proposed(proposal=Proposal(task_id="owner: AGENTS.md", items=(build.item(1),))))
    require(2 * 3, store)


@pytest.mark.parametrize(("task", "screen"), [("live-1", 0), ("", 2)])
def test_what_is_queued_has_a_screen_if_it_is_of_a_task_of_the_set(steps, screened, calc, task, screen):
    entries = list(BankStore.open(screened).entries())
    here = steps(entries[1 : 1 + next(n for n, e in enumerate(entries[1:]) if isinstance(e, Proposed))])
    tasks = load(calc).tasks
    here.store.local.queue_push({"task_id": task or tasks[0].instance_id})
    most = proposal_rollouts(here, tasks)
    assert proposal_rollouts(here, tasks, queued=True) == most - 2 + screen


def test_an_errored_attempt_after_the_first_failure_does_not_pause_the_run(evolve, screened, tmp_path):
    note = next(e.attempts[0] for e in failed(screened) if len(e.attempts) == 1)
    down = tmp_path / "down"
    down.write_text(f"evolve {note.task_id[-2:]} {note.ordinal + 1} {note.context_hash[:8]}\n")
    evolve(tmp_path / "bank", *FRESH, "--workers", "2", TOY_DOWN=str(down))
    assert ledger(tmp_path / "bank") == ledger(screened)


def test_a_proposal_that_waits_while_the_owner_adds_its_name_is_no_reason_to_stop(evolve, screened, tmp_path):
    note, down = failed(screened)[0].attempts[-1], tmp_path / "down"
    down.write_text(f"evolve {note.task_id[-2:]} {note.ordinal} {note.context_hash[:8]}\n")
    evolve(tmp_path / "bank", *FRESH, check=False, TOY_DOWN=str(down))
    store = BankStore.open(tmp_path / "bank")
    (waits,) = undecided(store.entries())
    own = replace(waits.items[0], text="other words", markdown="**Scope:** wholly other ones", source_tasks=())
    acts.act(store, "add", "mine", items=[replace(own, passes=0, attempts=0)])
    evolve(tmp_path / "bank", *FRESH, "--limit", "1")
    assert not undecided(BankStore.open(tmp_path / "bank").entries())


@pytest.fixture
def steps(screened, calc, installed, tmp_path):
    """The steps of a run on a bank with these entries of the ledger."""

    def at(entries: list[Entry]) -> Steps:
        store = BankStore.create(Path(tempfile.mkdtemp(dir=tmp_path)) / "bank", "acme/core")
        for entry in entries:
            store.append(entry)
        given = {"plugins": ["valve", "toy"], "model": "toy", "unsafe_local": True, "tasks": str(calc), "screen": 2}
        settings = store.settings(given)
        return Steps(plugins.load(settings.plugins), store, settings)

    return at


def test_no_screen_where_its_attempts_would_count_twice_or_no_query_is_left(steps, screened):
    entries = list(BankStore.open(screened).entries())[1:]
    last = next(n for n in reversed(range(len(entries))) if isinstance(entries[n], Judged))
    verdict = entries[last].verdict
    before, after = steps(entries[:last]), steps(entries[: last + 1])
    proposal = next(e.proposal for e in entries if isinstance(e, Proposed) and e.proposal.id == verdict.proposal_id)
    assert len(before.screening(proposal)) == 2
    assert not after.screening(proposal), "its query goes on, or its attempts would count again"
    opened = next(n for n, entry in enumerate(entries) if isinstance(entry, EpochOpened))
    entries[opened] = replace(entries[opened], horizon=verdict.query - 1)
    assert not steps(entries[:last]).screening(proposal)
    (made,) = [e for e in entries if isinstance(e, Proposed) and e.proposal.id == proposal.id]
    panel = before.panel_members()[0].instance_id
    moved = replace(
        made,
        proposal=replace(made.proposal, task_id=panel),
        attempts=tuple(replace(note, task_id=panel) for note in made.attempts),
    )
    on_panel = steps([moved if entry == made else entry for entry in entries[:last]])
    assert not on_panel.screening(moved.proposal)


def test_a_task_set_that_changes_while_its_run_goes_on_ends_it_with_what_to_do(steps, screened, monkeypatch):
    made = steps(list(BankStore.open(screened).entries())[1:])
    cell = (made.panel_members()[0], Context(text="never used"), 0)
    monkeypatch.setattr(made.ahead, "finished", lambda cells, known: iter(cells))  # made when the task was another one
    with pytest.raises(TaskError, match="the task changed while the run went on; put its task set back"):
        next(made.finished([cell]))


def test_nothing_is_learned_from_the_attempts_of_a_screen(screened):
    entries = list(BankStore.open(screened).entries())
    aside = failed(screened)[0]
    assert not step_tasks(aside)
    stream = count_attempts(BankStore.open(screened).local.attempts())["stream"]
    assert stream["mixed_groups"] == version_path(entries)[-1].step > 0
    assert version_path([e for e in entries if not sets_aside(e, FAILED_AGAIN)]) == version_path(entries)


@pytest.fixture
def elsewhere(steps, screened):
    """Steps, and a proposal that panel tasks retrieve, with one skill each, but its own task does not."""
    entries = list(BankStore.open(screened).entries())[1:]
    first = next(n for n, e in enumerate(entries) if isinstance(e, Judged) and e.verdict.decision == "accept")
    found = steps(entries[: first + 1])
    found.settings = replace(found.settings, top_skills=1, top_principles=0)
    made = next(e for e in reversed(entries[:first]) if isinstance(e, Proposed) and e.proposal.items)
    for task in found.tasks().values():
        notes = tuple(replace(note, task_id=task.instance_id) for note in made.attempts)
        for member in found.panel_members():
            word = member.problem_statement.split()[0]  # the function's name
            item = replace(made.proposal.items[0], name="other", text=word, scope_hint=word, markdown=word)
            entry = Proposed(proposal=Proposal(task_id=task.instance_id, items=(item,)), attempts=notes)
            after = moves.apply(found.store.bank, entry.proposal)
            then = retrieve(found.settings, after, task.instance_id, task.problem_statement)
            if task not in found.panel_members() and then.hash == found.retrieve(task).hash:
                found.store.append(entry)
                if found.screening(entry.proposal):
                    return found, task, entry.proposal
    raise AssertionError("no such task; choose another seed")


def test_what_its_own_task_would_not_get_is_tried_there_all_the_same(elsewhere, monkeypatch):
    steps, task, proposal = elsewhere
    bank, settings, now = steps.store.bank, steps.settings, steps.retrieve(task)
    cells = steps.screening(proposal)
    assert [c.task for c in cells] == [task] * 2
    assert {c.context for c in cells} == {screen_context(settings, bank, task, proposal, retrieve)}
    assert set(cells[0].context.items) == {*now.items, *(item.key for item in proposal.items)}
    other = replace(now, text="of another plugin's retrieval")
    assert screen_context(settings, bank, task, proposal, lambda **_: other) == other, "its contexts are not ours"
    monkeypatch.setattr(steps, "_retrieve", lambda **asked: other)
    assert not steps.screening(proposal)


@pytest.mark.parametrize("with_it", [True, False])
def test_its_context_is_recomputed(elsewhere, calc, with_it):
    steps, task, proposal = elsewhere
    given, now = steps.screening(proposal)[0].context.hash, steps.retrieve(task).hash
    made = next(e for e in steps.store.entries() if isinstance(e, Proposed) and e.proposal == proposal)
    note = replace(made.attempts[0], outcome="unresolved", ordinal=0, context_hash=given if with_it else now)
    steps.store.append(Proposed(proposal=aside(proposal, FAILED_AGAIN), attempts=(note,)))
    (steps.store.dir / "valve.toml").write_text("top_skills = 1\ntop_principles = 0\n")
    found = [f.message for f in examine(steps.store.dir, str(calc)).findings]
    assert any(f"recomputed: {given[:12]}" in message for message in found) is not with_it


def test_where_screens_end_all_proposals_fewer_attempts_are_named(screened):
    store = BankStore.open(screened)
    results = proposal_results(store.entries())
    failed = [row for row in results if row.aside and FAILED_AGAIN.endswith(row.aside)]
    assert "screen=N" in advise(store.panel(), failed * 3)
    assert not advise(store.panel(), failed[:1])
    accepted = next(row for row in results if row.outcome == "accept")
    assert not advise(store.panel(), [*failed * 3, accepted])
