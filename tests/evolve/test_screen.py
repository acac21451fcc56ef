"""The screen: before its gate, a proposal is tried again at the task that it was learned from."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.evolve.test_ledger import ledger
from valve_plugin.bank.entries import FAILED_AGAIN, Judged, Proposed, sets_aside
from valve_plugin.bank.store import BankStore
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError
from valve_plugin.evidence.cost import rollout_purposes
from valve_plugin.evidence.receipts import examine
from valve_plugin.evidence.summary import proposal_results, verdict_lines
from valve_plugin.evolve.budget import require_first_verdict
from valve_plugin.records import Panel, PanelTask

FRESH = ("-c", "protocol=fresh", "--limit", "10", "--seed", "5")


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
        assert results[id_].outcome == "replaced"
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


def test_a_budget_has_to_reach_over_the_screen():
    panel = Panel(tasks=(PanelTask(instance_id="t", content_hash="0" * 64),))
    require_first_verdict(Settings(max_rollouts=3 + 2 + 2 * 3), panel, None)
    with pytest.raises(ConfigError, match="--max-rollouts 11"):
        require_first_verdict(Settings(max_rollouts=10), panel, None)
    require_first_verdict(Settings(max_rollouts=9, protocol="paper"), panel, None)
    require_first_verdict(Settings(max_rollouts=6), panel, None, proposed=True)
