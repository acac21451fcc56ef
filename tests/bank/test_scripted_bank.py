"""What the scripted model taught is known by the ledger alone, and given to no run of another model."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests import strategies
from tests.bank import build
from valve_plugin.bank import ledger, moves
from valve_plugin.bank.entries import Proposed, Taken
from valve_plugin.bank.scripted_bank import names_scripted_model, refusal
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import digest
from valve_plugin.config import SCRIPTED_MODEL
from valve_plugin.live.context import EMPTY, compose
from valve_plugin.records import Bank, Context, Panel, Proposal

MARK = f'"model":"{SCRIPTED_MODEL}"'
models = st.sampled_from(["", "openai/real", f"{SCRIPTED_MODEL}2", MARK, SCRIPTED_MODEL]) | strategies.texts()


@strategies.few
@given(strategies.proposals, models, strategies.texts() | st.just(MARK))
@example(Proposal(task_id="t"), "openai/real", MARK)
def test_a_ledger_knows_its_scripted_lines_whatever_texts_say(proposal: Proposal, model: str, text: str) -> None:
    said = replace(proposal, model=model, reason=text, issue_summary=text)
    line = ledger.encode(0, ledger.GENESIS, digest("bank"), Proposed(proposal=said))
    assert names_scripted_model(line) == (model == SCRIPTED_MODEL)


def taking(root: Path, taught: list[str]) -> BankStore:
    """A bank that took one item from each of these models, in order."""
    store = BankStore.create(root / "bank", build.REPO)
    for number, model in enumerate(taught):
        move = replace(build.proposal(number), model=model)
        store.append(Proposed(proposal=move))
        after = moves.apply(store.bank, move).hash
        store.append(Taken(proposal_id=move.id, bank_hash=store.bank.hash, bank_after=after))
    return store


def whole(bank: Bank, panel: Panel | None) -> Context:
    return Context(text="everything", items=tuple(item.key for item in bank.items))


@settings(max_examples=15)
@given(st.lists(models, min_size=1, max_size=4), models)
@example(["openai/real", SCRIPTED_MODEL, "openai/real"], "openai/real")
@example([SCRIPTED_MODEL], SCRIPTED_MODEL)
def test_no_run_is_given_a_bank_with_a_scripted_line(taught: list[str], model: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store, said = taking(Path(folder), taught), list[str]()
        context = compose(store.dir, store.local, whole, said.append, model)
        held_back = SCRIPTED_MODEL in taught and model != SCRIPTED_MODEL
        assert (context == EMPTY) == held_back
        assert said == ([refusal(store.dir, model)] if held_back else [])
        assert all(line.startswith("SIMULATION") for line in said)
