"""What a run took: every rollout in one phase of one role, and the clock without the time in which nothing ran."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.bank.build import opening, proposal
from tests.report.runs import Maker
from valve_plugin.bank.entries import AttemptNote, Proposed
from valve_plugin.codec import digest
from valve_plugin.evidence.cost import CUT_SHORT, clock_time, cost_by_role, hours_running
from valve_plugin.records import Attempt, Conditions, Proposal
from valve_plugin.report.build import build_run

spans = st.lists(st.tuples(st.integers(10_000, 100_000), st.integers(0, 5_000)), max_size=12)


@given(spans)
def test_the_clock_is_the_time_in_which_something_ran(ran: list[tuple[int, int]]) -> None:
    seconds = {second for end, took in ran for second in range(end - took, end)}
    assert hours_running(ran) == pytest.approx(len(seconds) / 3600, abs=1e-5)


@given(spans, st.integers(0, 1_000_000))
def test_a_pause_between_sessions_takes_no_time(ran: list[tuple[int, int]], pause: int) -> None:
    later = [(end + 200_000 + pause, took) for end, took in ran]
    assert hours_running(ran + later) == pytest.approx(2 * hours_running(ran), abs=1e-5)


def test_every_rollout_is_in_one_phase(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 4, panel_kept=True)
    maker.stream(10, 5)
    maker.measure()
    maker.evaluate(0, 2, 1)
    maker.fail("owner__library.0123abcd.stream_0", 2)
    entries = list(maker.store.entries())
    of = maker.store.at(0).hash
    held = [
        Attempt(id=str(n), task_id=o.task_id, ordinal=o.ordinal, source="eval", outcome=o.outcome, seconds=30.0,
                context_hash=o.context_hash)
        for n, o in enumerate(entries[-1].outcomes)
    ]  # fmt: skip
    beyond = Attempt(id="b", task_id="x", ordinal=0, source="panel", outcome="resolved", context_hash=of, seconds=30.0)
    live = Attempt(id="l", task_id="x", ordinal=0, source="live", outcome="resolved", context_hash=of, seconds=30.0)
    kept = [*maker.store.local.attempts(), *held, beyond, live]
    roles = cost_by_role(kept, [{"seconds": 2.0}], entries)
    found = {s.role: {p.name: p.rollouts for p in s.phases} for s in roles}
    assert found["solver"] == {
        "tasks learned from": 6,
        "tasks that all attempts solved, or none": 24,
        "errored, tried again": 2,
    }
    judged = found["gate"].pop("candidates")
    assert judged == sum(g.ran for g in build_run(maker.store).gates)
    assert found["gate"] == {"beyond what decided a verdict": 1}
    assert found["measurement"] == {"the bank once more (A/A)": 12}
    cut = [{"source": "panel", "cost_usd": 0.5, "steps": 2}, {"source": "panel"}]  # an older version noted no cost
    (gate,) = (s for s in cost_by_role(kept, [], entries, cut) if s.role == "gate")
    (before,) = (s for s in roles if s.role == "gate")
    assert (gate.phases[-1].name, gate.phases[-1].rollouts, gate.usd - before.usd) == (CUT_SHORT, 1, 0.5)
    assert found["evaluation"] == {"versions": 3}
    assert found["extractor"] == {"reflection": 1}
    assert sum(s.rollouts for s in roles) == len(kept) - 1 + 1, "a person's own run is no cost of it; a call is"
    for s in roles:
        assert s.hours == pytest.approx(sum(p.hours for p in s.phases))


def test_a_passed_screen_is_what_ran_after_the_proposal_with_another_context() -> None:
    note = AttemptNote(task_id="t", ordinal=0, outcome="resolved", context_hash=digest("old"), patch_hash=digest(""))
    move = replace(proposal(1), task_id="t")

    def phases(move: Proposal, fresh: int = 15) -> dict[str, int]:
        opened = replace(opening()[1], conditions=Conditions(fresh=fresh))
        ran = [("old", 0, 1.0), ("earlier", 0, 0.5), ("old", 1, 3.0), ("new", 0, 2.0), ("new", 1, 3.0)]
        attempts = [
            Attempt(id=f"{c}{n}", task_id="t", source="evolve", outcome="resolved", ordinal=n, context_hash=digest(c),
                    recorded_at=at)
            for c, n, at in ran
        ]  # fmt: skip
        (solver,) = cost_by_role(attempts, [], [opened, Proposed(proposal=move, attempts=(note,))])
        return {p.name: p.rollouts for p in solver.phases}

    other, learned = "tasks that all attempts solved, or none", "tasks learned from"
    assert phases(move) == {learned: 1, other: 2, "screens of proposals": 2}
    assert phases(move, fresh=0) == phases(Proposal(task_id="t", reason="nothing")) == {learned: 1, other: 4}


def test_the_clock_leaves_evaluation_out_and_knows_what_it_does_not_know(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 4)
    maker.stream(10, 5)
    entries, kept = list(maker.store.entries()), maker.store.local.attempts()
    alone = clock_time(kept, [], entries)
    assert alone is not None
    assert (alone.steps, alone.apart) == (2, 0.0)
    assert alone.hours == hours_running((a.recorded_at, a.seconds) for a in kept)
    call = (kept[-1].recorded_at + 3_600, {"seconds": 60.0})
    held = replace(kept[0], source="eval", recorded_at=kept[-1].recorded_at + 9_000, seconds=36.0)
    more = clock_time([*kept, held], [call], entries)
    assert more is not None
    assert (more.hours, more.apart) == (pytest.approx(alone.hours + 60 / 3600, abs=1e-5), 0.01)
    assert clock_time([*kept, replace(kept[0], recorded_at=0.0)], [], entries) is None, "when it ran is unknown"
    assert clock_time([], [], entries) is None
