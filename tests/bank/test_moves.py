"""What an accepted proposal does to a bank."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests import strategies
from valve_plugin.bank.moves import apply
from valve_plugin.errors import RecordError
from valve_plugin.records import Bank, Item, Merge, Proposal

ITEM = Item(kind="skill", name="dates", text="Compare in UTC", markdown="Convert first.", source_tasks=("a",), passes=2)


@given(strategies.banks, strategies.proposals)
def test_new_items_are_appended_and_nothing_else_changes(bank: Bank, proposal: Proposal) -> None:
    assume(not {i.key for i in bank.items} & {i.key for i in proposal.items})
    after = apply(bank, Proposal(task_id=proposal.task_id, items=proposal.items))
    assert after.version == bank.version + 1
    assert after.principles[: len(bank.principles)] == bank.principles
    assert after.skills[: len(bank.skills)] == bank.skills
    new = after.principles[len(bank.principles) :] + after.skills[len(bank.skills) :]
    assert {i.key for i in new} == {i.key for i in proposal.items}
    assert {i.created_step for i in new} <= {after.version}


@given(strategies.banks, st.data())
def test_merges_add_support_and_statistics_in_place(bank: Bank, data: st.DataObject) -> None:
    assume(bank.items)
    old = data.draw(st.sampled_from(bank.items))
    merge = Merge(kind=old.kind, name=old.name, source_task="new task", passes=1, attempts=3)
    after = apply(bank, Proposal(task_id="t", merges=(merge, merge)))
    assert [i.key for i in after.items] == [i.key for i in bank.items]
    new = next(i for i in after.items if i.key == old.key)
    assert (new.support, new.passes, new.attempts) == (old.support + 2, old.passes + 2, old.attempts + 6)
    assert new.source_tasks == (*old.source_tasks, "new task")
    assert (new.text, new.markdown, new.created_step) == (old.text, old.markdown, old.created_step)


def test_a_taken_name_is_refused() -> None:
    bank = apply(Bank(repo="r"), Proposal(task_id="t", items=(ITEM,)))
    with pytest.raises(RecordError, match="'dates' is to be added, a name already taken"):
        apply(bank, Proposal(task_id="u", items=(ITEM,)))


@given(strategies.banks, strategies.proposals, strategies.proposals)
def test_a_move_leaves_its_bank_as_it_was(bank: Bank, one: Proposal, other: Proposal) -> None:
    moves = [Proposal(task_id=p.task_id, items=p.items) for p in (one, other, one)]

    def outcome(before: Bank, move: Proposal) -> Bank | str:
        try:
            return apply(before, move)
        except RecordError as e:
            return str(e)

    alone = [outcome(replace(bank), move) for move in moves]
    assert [outcome(bank, move) for move in moves] == alone
    if isinstance(after := alone[0], Bank):  # the names that are taken go on to the next version
        assert outcome(after, moves[1]) == outcome(replace(after), moves[1])


def test_a_merge_into_nothing_is_refused() -> None:
    merge = Merge(kind="skill", name="dates", source_task="t")
    with pytest.raises(RecordError, match="merges into skill 'dates', which the bank lacks"):
        apply(Bank(repo="r"), Proposal(task_id="t", merges=(merge,)))


def test_a_principle_and_a_skill_may_share_a_name() -> None:
    other = Item(kind="principle", name="dates", text="t", markdown="m")
    bank = apply(Bank(repo="r"), Proposal(task_id="t", items=(ITEM, other)))
    assert (len(bank.principles), len(bank.skills)) == (1, 1)
