"""Evaluations: what they say, in bounds where rollouts errored; and that the holdout stays sealed."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.cli.banks import TASKS, sample
from tests.strategies import outcomes as any_outcome
from valve_plugin.bank import moves
from valve_plugin.bank.entries import AttemptNote, Evaluated, Opened, PanelFixed, Proposed
from valve_plugin.bank.replay import Replay
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.codec import digest
from valve_plugin.errors import RecordError
from valve_plugin.evidence import evaluations
from valve_plugin.evidence.evaluations import (
    Checkpoint,
    Interval,
    checkpoints,
    differences,
    evaluated_checkpoints,
    mean_gain,
    solve_rate,
)
from valve_plugin.records import Bank, Outcome, Panel, PanelOutcome, PanelTask, Proposal

HOLDOUT = tuple(PanelTask(instance_id=name, content_hash=digest(name)) for name in ("held-1", "held-2", "held-3"))
SOLVER = digest("solver")


def reading(bank: Bank, results: list[Outcome], contexts: str = "aaa", version: int = 0) -> Evaluated:
    """Return an evaluation with two rollouts a task; `contexts` has a letter for each task's block."""
    cells = [(task.instance_id, n, contexts[i]) for i, task in enumerate(HOLDOUT) for n in range(2)]
    found = tuple(
        PanelOutcome(task_id=task, ordinal=n, outcome=result, context_hash=digest(block))
        for (task, n, block), result in zip(cells, results, strict=True)
    )
    return Evaluated(holdout=HOLDOUT, rollouts=2, version=version, bank_hash=bank.hash, solver=SOLVER, outcomes=found)


EMPTY = Bank(repo="owner/name")
six = st.lists(any_outcome, min_size=6, max_size=6)
blocks = st.text("ab", min_size=3, max_size=3)


@given(six, six, blocks, blocks, st.data())
def test_what_errored_ends_within_the_bounds(
    first: list[Outcome], second: list[Outcome], one: str, other: str, data: st.DataObject
) -> None:
    """Whatever the unknown rollouts turn out to be, rate, gain and every difference lie in their intervals."""
    for i in range(6):
        if one[i // 2] == other[i // 2]:
            second[i] = first[i]  # the same rollout
    before, after = reading(EMPTY, first, one), reading(EMPTY, second, other)

    def known(results: list[Outcome], like: list[Outcome] | None = None, shared: str = "") -> list[Outcome]:
        return [
            like[i] if like and shared[i // 2] == one[i // 2]
            else data.draw(st.sampled_from(["resolved", "unresolved"])) if r == "errored" else r
            for i, r in enumerate(results)
        ]  # fmt: skip

    start = known(first)
    end = known(second, start, other)
    then, now = reading(EMPTY, start, one), reading(EMPTY, end, other)
    assert then.complete
    for interval, exact in ((solve_rate(before), solve_rate(then)), (mean_gain(before, after), mean_gain(then, now))):
        assert exact.final
        assert interval.low <= exact.low <= interval.high
    for task, exact in differences(then, now).items():
        assert differences(before, after)[task].low <= exact.low <= differences(before, after)[task].high
    assert mean_gain(then, now).low == solve_rate(now).low - solve_rate(then).low


@given(six, blocks)
def test_equal_blocks_are_the_same_rollouts(results: list[Outcome], contexts: str) -> None:
    found = reading(EMPTY, results, contexts)
    assert mean_gain(found, found) == Interval(Fraction(0), Fraction(0))


def test_a_rollout_lost_from_the_journal_and_answered_anew_counts_as_measured() -> None:
    before = reading(EMPTY, ["resolved"] * 6)
    after = reading(EMPTY, ["unresolved"] * 2 + ["resolved"] * 4)
    assert mean_gain(before, after).low == Fraction(-1, 3)


def test_other_tasks_or_another_solver_are_not_compared() -> None:
    one = reading(EMPTY, ["resolved"] * 6)
    with pytest.raises(ValueError, match="on other tasks or with another solver"):
        differences(one, replace(one, solver=digest("other")))


def noted(task: str, *results: str) -> Proposed:
    notes = [
        AttemptNote(task_id=task, ordinal=n, outcome=r, context_hash=digest("c"), patch_hash=digest("p"))  # type: ignore[arg-type]
        for n, r in enumerate(results)
    ]
    return Proposed(proposal=Proposal(task_id=task, reason="nothing"), attempts=tuple(notes))


@given(st.integers(0, 25), st.integers(1, 12))
def test_checkpoints_are_step_0_every_n_and_the_last(steps: int, every: int) -> None:
    entries = [noted(f"t{i}", "resolved", "unresolved") for i in range(steps)]
    found = [c.step for c in checkpoints(entries, every)]
    assert found == sorted({0, *range(0, steps + 1, every), steps})


def test_a_batch_counts_its_mixed_tasks_and_a_task_that_was_not_mixed_counts_once() -> None:
    batch = noted("a", "resolved", "unresolved")
    more = noted("b", "resolved", "unresolved").attempts + noted("c", "resolved", "resolved").attempts
    entries = [
        replace(batch, attempts=batch.attempts + more),
        noted("d", "unresolved", "unresolved"),
        noted("d", "resolved"),
    ]
    assert [c.step for c in checkpoints(entries, 1)] == [0, 2, 3], "and no task counts twice"


def test_the_version_of_a_checkpoint_is_the_one_after_its_verdict(tmp_path, data_dir) -> None:
    store = sample(tmp_path / "bank")
    assert checkpoints(store.entries(), 1) == [Checkpoint(0, 0), Checkpoint(1, 1)]
    store.append(reading(store.at(1), ["resolved"] * 6, version=1))
    store.append(reading(store.at(0), ["unresolved"] * 6, version=0))
    found = evaluated_checkpoints(list(store.entries()))
    assert [(p.step, p.entry.version, p.line) for p in found] == [(0, 0, 11), (1, 1, 10)]
    assert evaluations.peak_checkpoint(found).step == 1
    assert verify(store.dir) == []
    assert BankStore.open(store.dir).bank == store.bank, "reading the holdout changes no bank"


def test_an_evaluation_names_the_bank_it_measured(tmp_path, data_dir) -> None:
    store = sample(tmp_path / "bank")
    fine = reading(store.bank, ["resolved"] * 6, version=1)
    alone = moves.single_item_bank(store.bank, ("skill", "dates"))
    store.append(replace(fine, only=("skill", "dates"), bank_hash=alone.hash))
    assert evaluated_checkpoints(list(store.entries())) == [], "one item alone is no checkpoint"
    for wrong in (
        replace(fine, version=0),
        replace(fine, version=2),
        replace(fine, only=("skill", "dates")),
        replace(fine, only=("skill", "unknown")),
        replace(fine, outcomes=fine.outcomes[1:]),
        replace(fine, holdout=(HOLDOUT[0], HOLDOUT[0], HOLDOUT[2])),
    ):
        with pytest.raises(RecordError):
            store.append(wrong)


def test_the_holdout_is_sealed_against_panel_and_stream_in_both_directions(tmp_path, data_dir) -> None:
    store = sample(tmp_path / "bank")
    fine = reading(store.bank, ["resolved"] * 6, version=1)
    for taken in ("bug-x", TASKS[0]):  # learned from; judges
        pinned = (replace(HOLDOUT[0], instance_id=taken), *HOLDOUT[1:])
        moved = tuple(replace(o, task_id=taken) if o.task_id == "held-1" else o for o in fine.outcomes)
        with pytest.raises(RecordError, match="not sealed"):
            store.append(replace(fine, holdout=pinned, outcomes=moved))
    with pytest.raises(RecordError, match="not sealed"):  # the same bug as a panel task, under another id
        store.append(replace(fine, holdout=(replace(HOLDOUT[0], content_hash=digest(TASKS[0])), *HOLDOUT[1:])))
    store.append(fine)
    with pytest.raises(RecordError, match="held-1 is a holdout task"):
        store.append(noted("held-1", "resolved", "unresolved"))
    for task in (HOLDOUT[0], replace(HOLDOUT[0], instance_id="renamed")):
        with pytest.raises(RecordError, match="is a holdout task"):
            store.append(PanelFixed(panel=Panel(tasks=(task,))))


def test_an_evaluation_claims_its_ordinals() -> None:
    state = Replay()
    state.feed(Opened(repo="owner/name"))
    state.feed(reading(state.bank, ["resolved"] * 6))
    assert state.ordinals["held-1", digest("a")] == 2
