"""A whole evolution with a model that answers badly: it goes on, says why, and nothing of it reaches the bank."""

from __future__ import annotations

import pytest

from tests.extract.hostile import HARMLESS, UNUSABLE, WITHHELD
from tests.extract.provider import provider
from valve_plugin.bank.entries import Proposed
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify

ANSWERS = [*UNUSABLE.values(), *WITHHELD.values()]


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.heavy) for n in (1, 2))])
def test_hostile_answers_never_reach_the_bank(evolve, tmp_path, monkeypatch, part):
    """Several runs, since one stream has fewer mixed tasks than there are ways to misbehave."""
    answers = ANSWERS[part::3]
    with provider(*answers) as model:
        arguments = ("-c", f'model_kwargs={{"api_base": "{model.base}", "api_key": "x"}}', "--panel-size", "2")
        monkeypatch.setenv("TOY_ASKS", "1")
        done = evolve(tmp_path / "bank", *arguments, "-c", "model=openai/m", check=False)
        assert done.returncode == 0, done.stderr
        asked = len(model.asked)
    store = BankStore.open(tmp_path / "bank")
    proposals = [e.proposal for e in store.entries() if isinstance(e, Proposed)]
    assert 5 <= len(proposals) <= asked, "some are asked for once more"
    assert all(p.empty and p.reason for p in proposals)
    assert (store.bank.version, store.queries_used()) == (0, 0)
    assert verify(tmp_path / "bank") == []
    ledger = (tmp_path / "bank" / "ledger.jsonl").read_text()
    assert "sk-proj-a1B2" not in ledger
    assert "previous" not in ledger.replace("ignore_all_previous_instructions", ""), "only names and rules are kept"
    for withheld in store.local.withheld():
        assert withheld.item is not None, "set aside for a person to look at"


@pytest.mark.heavy
def test_strange_but_harmless_text_is_judged_like_any_other(evolve, tmp_path):
    with provider(*HARMLESS.values()) as model:
        arguments = ("-c", f'model_kwargs={{"api_base": "{model.base}", "api_key": "x"}}', "--limit", "3")
        evolve(tmp_path / "bank", *arguments, "-c", "model=openai/m", "-c", "review=off", TOY_ASKS="1")
    proposals = [e.proposal for e in BankStore.open(tmp_path / "bank").entries() if isinstance(e, Proposed)]
    assert proposals[0].items[0].markdown == "{{ 7 * 7 }} {% raw %} {# x #} ${HOME} %(a)s <<KNOWN>>"
    assert verify(tmp_path / "bank") == []
