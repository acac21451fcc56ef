"""An apparent accept repeats on fresh rollouts: what the ledger then holds, and that nothing changes it."""

from __future__ import annotations

import msgspec
import pytest

from valve_plugin.bank.entries import Judged
from valve_plugin.bank.replay import Replay
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.errors import RecordError
from valve_plugin.theory.gate_rule import recompute

CONFIRM = ("-c", "confirm=true", "--limit", "8", "--seed", "7")


def verdicts(bank):
    return [entry.verdict for entry in BankStore.open(bank).entries() if isinstance(entry, Judged)]


@pytest.fixture(scope="module")
def confirmed(evolve, tmp_path_factory):
    bank = tmp_path_factory.mktemp("confirmed") / "bank"
    evolve(bank, *CONFIRM)
    return bank


def test_the_second_measurement_is_fresh_decides_and_is_carried(confirmed):
    assert verify(confirmed) == []
    judged = verdicts(confirmed)
    repeated = [v for v in judged if v.confirming]
    assert {v.decision for v in repeated} == {"accept", "reject"}, "the run shows both; choose another seed if not"
    for v in repeated:
        first = {(o.task_id, o.context_hash): o.ordinal for o in reversed(v.outcomes)}
        assert all(first[o.task_id, o.context_hash] + v.rollouts <= o.ordinal for o in v.confirming)
        assert sum(o.outcome == "resolved" for o in v.outcomes) >= v.current_passes + v.needed, "an apparent accept"
    accepts = [v for v in judged if v.decision == "accept"]
    assert accepts == [v for v in repeated if v.decision == "accept"], "none without"
    state = BankStore.open(confirmed)
    assert sorted(state.current_outcomes(), key=str) == sorted(accepts[-1].confirming, key=str)


@pytest.mark.heavy
def test_what_is_lost_in_it_counts_as_both_values_and_is_all_that_runs_again(evolve, confirmed, tmp_path):
    lost = next(v for v in verdicts(confirmed) if v.decision == "accept").confirming[3]
    down = tmp_path / "down"
    down.write_text(f"panel {lost.task_id[-2:]} {lost.ordinal} {lost.context_hash[:8]}\n")
    paused = evolve(tmp_path / "bank", *CONFIRM, "--workers", "3", check=False, TOY_DOWN=str(down))
    assert paused.returncode == 3
    assert "hangs on 1 errored rollout;" in paused.stderr
    opened = verdicts(tmp_path / "bank")[-1]
    assert (opened.decision, opened.unknown) == ("indecisive", 0)
    assert [o.outcome for o in opened.confirming].count("errored") == 1
    before = _rollouts(tmp_path / "bank")
    evolve(tmp_path / "bank", *CONFIRM, "--limit", "1")
    assert _rollouts(tmp_path / "bank") == before + 1
    evolve(tmp_path / "bank", *CONFIRM)
    assert [v for v in verdicts(tmp_path / "bank") if v.decision != "indecisive"] == verdicts(confirmed)


def test_an_accept_that_was_not_repeated_cannot_be_recorded(confirmed):
    entries = list(BankStore.open(confirmed).entries())
    at = next(i for i, e in enumerate(entries) if isinstance(e, Judged) and e.verdict.decision == "accept")
    verdict = entries[at].verdict
    state = Replay()
    for entry in entries[:at]:
        state.feed(entry)
    assert recompute(verdict, state.outcomes) == []
    short = msgspec.structs.replace(verdict, confirming=msgspec.UNSET)
    assert any("not repeated" in problem for problem in recompute(short, state.outcomes))
    free = msgspec.structs.replace(short, conditions=msgspec.UNSET)
    assert recompute(free, state.outcomes) == [], "on its own it would be fine"
    with pytest.raises(RecordError, match="but epoch 1 has"):
        state.feed(Judged(verdict=free, bank_after=entries[at].bank_after))


def test_a_guard_no_task_can_reach_is_refused(evolve, tmp_path):
    done = evolve(tmp_path / "bank", "-c", "guard=3", check=False)
    assert done.returncode == 2
    assert "guard is 3, expected at most the 2 rollouts" in done.stderr


def _rollouts(bank):
    return (BankStore.open(bank).local.dir / "telemetry" / "rollouts.jsonl").read_bytes().count(b'"source"')
