"""The judge against a real panel run, and what becomes of its verdict when the world has moved on."""

from __future__ import annotations

import json

import msgspec
import pytest

from tests.evolve.library import valve
from tests.gate.test_panel import TOY, new_proposal
from valve_plugin import plugins as loading
from valve_plugin.bank import moves
from valve_plugin.bank.entries import EpochOpened, Judged, Proposed
from valve_plugin.bank.scripted_bank import is_scripted
from valve_plugin.bank.store import BankStore
from valve_plugin.config import SCRIPTED_MODEL
from valve_plugin.errors import BankError, HorizonError, TaskError
from valve_plugin.evolve.loop import settle
from valve_plugin.evolve.steps import Steps, waiting
from valve_plugin.gate.judge import judge
from valve_plugin.hookspecs import hookimpl
from valve_plugin.records import Attempt, PanelOutcome
from valve_plugin.theory import panel_order
from valve_plugin.theory.gate_rule import recompute

pytestmark = pytest.mark.usefixtures("installed")


def test_a_verdict_can_be_recomputed_and_changes_nothing_by_itself(bank, settings):
    store = BankStore.open(bank)
    proposal = new_proposal(bank)
    seen = []
    verdict = judge(settings(store, workers=3), bank, proposal, lambda event: seen.append(event.name))
    assert recompute(verdict, store.current_outcomes()) == []
    assert verdict.query == store.queries_used() + 1
    assert seen[0] == "gate_started"
    assert seen.count("rollout_finished") >= len(verdict.outcomes)
    assert BankStore.open(bank).head == store.head
    assert judge(settings(store), bank, proposal) == verdict, "any number of workers, and out of the journal"


def test_the_ledger_says_that_the_scripted_model_judged(bank, settings):
    for epoch, model in ((2, "toy"), (3, SCRIPTED_MODEL)):
        store = BankStore.open(bank)
        store.append(EpochOpened(epoch=epoch, horizon=1, delta="0.05", panel_hash=store.panel().hash, reason="test"))
        judge(settings(store, model=model), bank, new_proposal(bank))
        assert is_scripted(bank) == (model == SCRIPTED_MODEL)


def test_a_new_epoch_needs_a_fresh_baseline_with_new_draws(bank, settings):
    store = BankStore.open(bank)
    panel = store.panel()
    opened = EpochOpened(epoch=2, horizon=1, delta="0.05", panel_hash=panel.hash, reason="test")
    store.append(opened)
    verdict = judge(settings(store), bank, new_proposal(bank))
    store.refresh()
    baseline = store.current_outcomes()
    assert baseline is not None
    assert len(baseline) == len(panel.tasks) * panel.rollouts
    assert (verdict.epoch, verdict.query) == (2, 1)
    earlier = {
        (o.task_id, o.context_hash, o.ordinal)
        for e in store.entries()
        if isinstance(e, Judged)
        for o in e.verdict.outcomes
    }
    assert not earlier & {(o.task_id, o.context_hash, o.ordinal) for o in baseline}


def test_no_query_beyond_the_horizon(bank, settings):
    store = BankStore.open(bank)
    panel = store.panel()
    store.append(EpochOpened(epoch=2, horizon=1, delta="0.05", panel_hash=panel.hash, reason="test"))
    steps = Steps(loading.load(("valve", "toy")), store, settings(store))
    steps.record(new_proposal(bank))
    settle(steps)
    item = msgspec.structs.replace(new_proposal(bank).items[0], name="third", text="x y z", markdown="u v w")
    with pytest.raises(HorizonError, match="epoch 2 has used all 1 gate query of its horizon"):
        judge(settings(store), bank, msgspec.structs.replace(new_proposal(bank), items=(item,)))


def test_a_bank_without_panel_is_told_what_to_do(tmp_path, settings):
    store = BankStore.create(tmp_path / "bank", "acme/calc")
    with pytest.raises(BankError, match="valve evolve TASKS"):
        judge(settings(store), store.dir, None)


def test_tasks_that_changed_since_the_panel_was_fixed_are_refused(bank, settings, calc, tmp_path):
    changed = tmp_path / "tasks"
    changed.mkdir()
    (changed / "repository.toml").write_text((calc / "repository.toml").read_text())
    store = BankStore.open(bank)
    pinned = store.panel().tasks[0].instance_id
    rows = [json.loads(line) for line in (calc / "tasks.jsonl").read_text().splitlines()]
    for row in rows:
        if row["instance_id"] == pinned:
            row["patch"] = row["patch"].replace("@@ ", "@@  ", 1)
    (changed / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(TaskError, match="has changed since the panel was fixed"):
        judge(settings(store, tasks=str(changed)), bank, new_proposal(bank))
    kept = [json.dumps(row) + "\n" for row in rows if row["instance_id"] != pinned]
    (changed / "tasks.jsonl").write_text("".join(kept))
    with pytest.raises(TaskError, match="is not in the task set"):
        judge(settings(store, tasks=str(changed)), bank, new_proposal(bank))


def accepted(store, verdict, proposal):
    """An accept of another proposal at the same query: every rollout resolved under a context of its own."""
    cells = panel_order.canonical_cells(verdict.order, verdict.rollouts, dict.fromkeys(verdict.order, 0))
    outcomes = tuple(
        PanelOutcome(task_id=task, ordinal=number, outcome="resolved", context_hash="f" * 64) for task, number in cells
    )
    accept = msgspec.structs.replace(
        verdict, proposal_id=proposal.id, decision="accept", outcomes=outcomes, candidate_passes=len(cells), unknown=0
    )
    return Judged(verdict=accept, bank_after=moves.apply(store.bank, proposal).hash)


class AcceptsMeanwhile:
    """A validate step during which somebody else's proposal is accepted, once."""

    def __init__(self, other):
        self.other = other

    @hookimpl
    def valve_validate(self, settings, bank_dir, proposal):
        verdict = judge(settings, bank_dir, proposal)
        if self.other is not None:
            store = BankStore.open(bank_dir)
            store.append(Proposed(proposal=self.other))
            store.append(accepted(store, verdict, self.other))
            self.other = None
        return verdict


def test_a_stale_verdict_is_dropped_and_its_proposal_judged_anew(bank, settings):
    store = BankStore.open(bank)
    version = store.bank.version
    first = new_proposal(bank)
    item = msgspec.structs.replace(first.items[0], name="somebody_elses", text="p q r", markdown="i j k l m n")
    other = msgspec.structs.replace(first, task_id="other", items=(item,))
    manager = loading.load(("valve", "toy"))
    manager.register(AcceptsMeanwhile(other))
    steps = Steps(manager, store, settings(store))
    steps.record(first)
    settle(steps)
    store.refresh()
    judged = [e.verdict for e in store.entries() if isinstance(e, Judged)]
    assert judged[-2].proposal_id == other.id
    assert judged[-1].proposal_id == first.id, "the stale one is nowhere; this one is about the new bank"
    assert judged[-1].bank_hash == store.at(version + 1).hash
    assert waiting(store) is None


def test_what_mini_queued_is_judged_first_in_first_out(bank, calc):
    store = BankStore.open(bank)
    for number in (1, 2):
        attempts = [
            Attempt(id=f"live{number}{n}", task_id=f"live-{number}", ordinal=n, source="live", outcome=outcome)
            for n, outcome in enumerate(("resolved", "unresolved", "unresolved"))
        ]
        for attempt in attempts:
            store.local.add_attempt(msgspec.structs.replace(attempt, context_hash="0" * 64))
        store.local.queue_push(
            {
                "kind": "extract",
                "task_id": f"live-{number}",
                "issue": f"fix {number}",
                "attempts": [a.id for a in attempts],
            }
        )
    small = valve("gate", "--bank", bank, "--tasks", calc, "--max-rollouts", "1", *TOY, check=False)
    whole = len(store.panel().tasks) * store.panel().rollouts
    assert f"this would do: --max-rollouts {whole}\n" in small.stderr, "its attempts were made before"
    done = valve("gate", "--bank", bank, "--tasks", calc, "--json", *TOY)
    store.refresh()
    proposed = [e.proposal.task_id for e in store.entries() if isinstance(e, Proposed)]
    assert proposed[-2:] == ["live-1", "live-2"]
    assert store.local.queue() == []
    assert json.loads(done.stdout)["judged"] is True
    head = store.head
    assert "nothing waits" in valve("gate", "--bank", bank).stdout
    store.refresh()
    assert store.head == head
    again = json.loads(valve("extract", "live10", "live11", "live12", "--bank", bank, "--json").stdout)
    assert again == {"queued": ["live10", "live11", "live12"], "task_id": "live-1"}
    assert "of which some passed" in valve("extract", "live10", "live20", "--bank", bank, check=False).stderr
    valve("gate", "--bank", bank, "--tasks", calc, *TOY)
    store.refresh()
    assert [e.proposal.task_id for e in store.entries() if isinstance(e, Proposed)][-1] == "live-1"
    assert store.local.queue() == []
