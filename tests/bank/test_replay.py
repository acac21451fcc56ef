"""The state a ledger leads to, and which entry may follow which."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests import strategies
from tests.strategies import Story
from valve_plugin.bank import ledger, moves
from valve_plugin.bank.entries import (
    Baseline,
    Entry,
    EpochOpened,
    Evaluated,
    Judged,
    Opened,
    OwnerAct,
    PanelFixed,
    Proposed,
    Taken,
    undecided,
)
from valve_plugin.bank.ledger import outline
from valve_plugin.bank.replay import Replay, version_hashes
from valve_plugin.codec import canonical, digest
from valve_plugin.errors import HorizonError, RecordError, StaleVerdictError, ValveError
from valve_plugin.records import Bank, Item, LedgerVersion, Panel, bank_hash


def replayed(entries: list[Entry]) -> Replay:
    state = Replay()
    for entry in entries:
        state.feed(entry)
    return state


def facts(state: Replay) -> dict[str, Any]:
    """Everything a Replay knows, to compare before and after."""
    return {name: repr(value) for name, value in vars(state).items()}


GROWTH = st.lists(st.sampled_from(["principle", "skill", "both", "neither", "undo", "drop", "other"]), max_size=12)


@given(GROWTH, st.sampled_from(get_args(LedgerVersion)))
def test_hashes_that_go_on_from_version_to_version_are_those_of_each_bank_alone(
    steps: list[str], written: LedgerVersion
) -> None:
    banks = [Bank(repo="a/b", schema_version=written)]
    for n, step in enumerate(steps, 1):
        bank = banks[n // 2] if step == "undo" else banks[-1]
        new = tuple(
            Item(kind=kind, name=f"{n}", text="é" * n, markdown=step)
            for kind in ("principle", "skill")
            if step in (kind, "both", "other")
        )
        old = {"drop": bank.items[1:], "other": ()}.get(step, bank.items)  # `other`: as many items, none of them kept
        items = (*old, *new)
        sorts = ([i for i in items if i.kind == kind] for kind in ("principle", "skill"))
        kinds = dict(zip(("principles", "skills"), map(tuple, sorts), strict=True))
        banks.append(replace(banks[0], version=n, **kinds))
    assert list(version_hashes(banks)) == list(map(bank_hash, banks))


def test_the_hash_of_a_bank_by_hand() -> None:
    items = tuple(Item(kind="skill", name=name, text=name, markdown=name) for name in "ab")
    bank = Bank(repo="a/b", version=3, skills=items)

    def sha(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    kinds = sha(b""), sha("".join(sha(canonical(item)) for item in items).encode())
    assert bank.hash == sha(canonical(["a/b", 3, *kinds]))
    old = {"principles": [], "repo": "a/b", "skills": list(items), "version": 3}
    assert replace(bank, schema_version=1).hash == sha(canonical(old))


@strategies.few
@given(strategies.stories())
def test_replay_is_the_fold_of_the_accepted_moves_and_counts_every_rollout(story: Story) -> None:
    state = replayed(story.entries)
    assert state.banks == story.banks
    assert [bank.hash for bank in state.banks] == [bank_hash(bank) for bank in state.banks]
    assert [bank.hash for bank in state.banks] == list(version_hashes(state.banks))
    assert [bank.version for bank in state.banks] == list(range(len(state.banks)))
    assert (state.panel, state.epoch, state.queries, state.outcomes) == (
        story.panel,
        story.epoch,
        story.queries,
        story.outcomes,
    )
    used: dict[tuple[str, str], int] = {}
    for entry in story.entries:
        rollouts: tuple[Any, ...] = ()
        if isinstance(entry, Baseline):
            rollouts = entry.result.outcomes
        elif isinstance(entry, Proposed):
            rollouts = entry.attempts
        elif isinstance(entry, Judged) and entry.verdict.decision != "indecisive":  # its query goes on, with the same
            rollouts = (*entry.verdict.outcomes, *(entry.verdict.confirming or ()))
        elif isinstance(entry, Evaluated):
            rollouts = entry.outcomes
        for r in rollouts:
            used[r.task_id, r.context_hash] = max(used.get((r.task_id, r.context_hash), -1), r.ordinal)
    assert state.ordinals == {key: top + 1 for key, top in used.items()}


@strategies.few
@given(strategies.stories())
def test_an_outline_says_what_a_replay_says(story: Story) -> None:
    state = replayed(story.entries)
    lines, prev = list[bytes](), ledger.GENESIS
    for entry in story.entries:
        lines.append(ledger.encode(len(lines), prev, ledger.GENESIS, entry))
        prev = ledger.line_hash(lines[-1])
    data = b"".join(line + b"\n" for line in lines)
    found = outline(data + b"torn")
    verdicts = [entry.verdict for entry in story.entries if isinstance(entry, Judged)]
    assert (found.epoch, found.queries, ledger.last_panel(data)) == (state.epoch, state.queries, state.panel)
    assert found.waiting == tuple(proposal.id for proposal in undecided(story.entries))
    assert found.verdict == (verdicts[-1] if verdicts else None)
    assert found.types == {entry.__struct_config__.tag for entry in story.entries}
    notes = (note for entry in story.entries if isinstance(entry, Proposed) for note in entry.attempts)
    assert found.source_tasks == {note.task_id for note in notes}
    with pytest.raises(RecordError):
        outline(b"\n".join([*lines[:-1], lines[-1].replace(b'"prev":"', b'"prev":"0'), b""]))


@strategies.few
@given(strategies.stories(), strategies.entries)
def test_a_refused_entry_changes_nothing(story: Story, entry: Entry) -> None:
    state = replayed(story.entries)
    before = facts(state)
    try:
        state.feed(entry)
    except ValveError:
        assert facts(state) == before


@strategies.few
@given(strategies.stories())
def test_a_verdict_fits_in_one_place_only(story: Story) -> None:
    """Doing a step twice is refused, unless it was indecisive."""
    state = Replay()
    for entry in story.entries:
        state.feed(entry)
        if isinstance(entry, Judged) and entry.verdict.decision != "indecisive":
            with pytest.raises(ValveError):
                state.feed(entry)


@pytest.mark.parametrize(
    ("field", "change", "error"),
    [
        ("bank_hash", lambda v: digest("another bank"), StaleVerdictError),
        ("epoch", lambda v: v + 1, RecordError),
        ("query", lambda v: v + 1, RecordError),
        ("panel_hash", lambda v: digest("another panel"), RecordError),
        ("proposal_id", lambda v: "unheard of", RecordError),
        ("rho", lambda v: "0", RecordError),
        ("n_tasks", lambda v: v + 1, RecordError),
        ("rollouts", lambda v: v + 1, RecordError),
        ("pairing", lambda v: "deployed", RecordError),
        ("outcomes", lambda v: v[:-1], RecordError),
        ("outcomes", lambda v: (*v[:-1], replace(v[-1], outcome="errored")), RecordError),
    ],
)
def test_an_accept_must_be_about_what_is_current(
    accept: list[Entry], field: str, change: Callable[[Any], Any], error: type[ValveError]
) -> None:
    entry = accept[-1]
    assert isinstance(entry, Judged)
    replayed(accept)  # sound as it is
    verdict = replace(entry.verdict, **{field: change(getattr(entry.verdict, field))})
    with pytest.raises(error):
        replayed([*accept[:-1], replace(entry, verdict=verdict)])


def test_the_query_after_the_horizon_is_refused(accept: list[Entry]) -> None:
    last = accept[-1]
    assert isinstance(last, Judged)
    epoch = next(e for e in accept if isinstance(e, EpochOpened))
    entries = [replace(epoch, horizon=1) if e is epoch else e for e in accept]
    state = replayed(entries)
    again = replace(last.verdict, query=2, bank_hash=state.bank.hash)
    with pytest.raises(HorizonError, match="query 2 of the 1 declared for epoch 1; open a new epoch"):
        state.feed(replace(last, verdict=again))


def test_a_new_panel_needs_a_new_epoch(accept: list[Entry]) -> None:
    state = replayed(accept)
    panel = next(e for e in accept if isinstance(e, PanelFixed))
    state.feed(panel)
    assert (state.epoch, state.outcomes) == (None, None)
    baseline = next(e for e in accept if isinstance(e, Baseline))
    with pytest.raises(RecordError, match="open an epoch first"):
        state.feed(baseline)
    state.feed(EpochOpened(epoch=2, horizon=9, delta="0.05", panel_hash=panel.panel.hash, reason="new panel"))
    assert state.queries == 0


@pytest.mark.parametrize("entry", [PanelFixed(panel=Panel(tasks=())), Opened(repo="again")])
def test_what_may_never_come(accept: list[Entry], entry: Entry) -> None:
    with pytest.raises(RecordError):
        replayed([*accept, entry])


@pytest.mark.parametrize("spoil", ["missing", "errored", "foreign", "twice"])
def test_a_baseline_is_complete(accept: list[Entry], spoil: str) -> None:
    at = next(i for i, e in enumerate(accept) if isinstance(e, Baseline))
    baseline = accept[at]
    assert isinstance(baseline, Baseline)
    found = baseline.result.outcomes
    spoilt = {
        "missing": found[:-1],
        "errored": (*found[:-1], replace(found[-1], outcome="errored")),
        "foreign": (*found[:-1], replace(found[-1], task_id="not in the panel")),
        "twice": (*found, found[-1]),
    }[spoil]
    with pytest.raises(RecordError):
        replayed([*accept[:at], replace(baseline, result=replace(baseline.result, outcomes=spoilt))])


def test_an_epoch_has_one_baseline(accept: list[Entry]) -> None:
    at = next(i for i, e in enumerate(accept) if isinstance(e, Baseline))
    with pytest.raises(RecordError, match="a baseline that still holds"):
        replayed([*accept[: at + 1], accept[at]])


def test_a_move_without_a_gate_comes_before_any_epoch_and_on_the_bank_it_names(accept: list[Entry]) -> None:
    opened, proposed = accept[0], next(e for e in accept if isinstance(e, Proposed))
    before = Bank(repo=opened.repo) if isinstance(opened, Opened) else Bank(repo="")
    after = moves.apply(before, proposed.proposal)
    taken = Taken(proposal_id=proposed.proposal.id, bank_hash=before.hash, bank_after=after.hash)
    assert replayed([opened, proposed, taken]).banks == [before, after]
    for spoilt, error in (
        (replace(taken, bank_hash=after.hash), StaleVerdictError),
        (replace(taken, bank_after=before.hash), RecordError),
        (replace(taken, proposal_id="unheard of"), RecordError),
    ):
        with pytest.raises(error):
            replayed([opened, proposed, spoilt])
    with pytest.raises(StaleVerdictError):
        replayed([opened, proposed, taken, taken])
    with pytest.raises(RecordError, match="takes nothing unjudged"):
        replayed([*accept[:-1], taken])


def test_an_owners_act_ends_the_epoch_and_is_marked(accept: list[Entry]) -> None:
    state = replayed(accept)
    now = state.bank
    (old,) = now.items
    new = replace(old, text="In the owner's words")
    after = moves.change(now, (old.key,), (new,))
    act = OwnerAct(
        act="edit", reason="clearer", removes=(old.key,), items=(new,), bank_hash=now.hash, bank_after=after.hash
    )
    ledger = [*accept, act]
    state = replayed(ledger)
    assert [(i.text, i.judged, i.created_step) for i in state.bank.items] == [(new.text, False, now.version + 1)]
    assert (state.epoch, state.outcomes, state.queries) == (None, None, 0)
    assert state.panel is not None
    back = moves.restore(after, now)
    undo = OwnerAct(act="undo", reason="no", undo_to=now.version, bank_hash=after.hash, bank_after=back.hash)
    state = replayed([*ledger, undo])
    assert state.bank.items == now.items  # judged, as it was
    assert state.bank.version == now.version + 2
    for spoilt, error in (
        (replace(undo, bank_hash=now.hash), StaleVerdictError),
        (replace(undo, bank_after=now.hash), RecordError),
        (replace(undo, undo_to=after.version), RecordError),
        (replace(undo, act="remove"), RecordError),
        (replace(act, act="undo", bank_hash=after.hash), RecordError),
        (OwnerAct(act="remove", reason="nothing", bank_hash=after.hash, bank_after=after.hash), RecordError),
    ):
        with pytest.raises(error):
            replayed([*ledger, spoilt])
