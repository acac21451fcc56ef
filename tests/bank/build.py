"""A small bank with one accept, entry by entry."""

from __future__ import annotations

from typing import Any

from valve_plugin.bank import moves
from valve_plugin.bank.entries import Baseline, Entry, EpochOpened, Judged, Opened, OwnerAct, PanelFixed, Proposed
from valve_plugin.codec import digest
from valve_plugin.records import Bank, Item, Outcome, Panel, PanelOutcome, PanelResult, PanelTask, Proposal, Verdict
from valve_plugin.theory.gate_rule import needed_passes

REPO = "owner/name"
TASKS = ("bug-a", "bug-b")
PANEL = Panel(tasks=tuple(PanelTask(instance_id=task, content_hash=digest(task)) for task in TASKS), rollouts=2)


def item(number: int) -> Item:
    """The skill called skill-NUMBER."""
    return Item(
        kind="skill",
        name=f"skill-{number}",
        text=f"When dates differ, look at case {number}",
        markdown=f"**Scope** dates\n\n1. Convert both sides, case {number}.\n",
        scope_hint="datetime",
        source_tasks=(f"bug-{number}",),
        passes=2,
        attempts=3,
    )


def proposal(number: int, size: int = 1) -> Proposal:
    """A move with `size` skills of its own."""
    return Proposal(task_id=f"mixed-{number}", items=tuple(item(number * 1000 + i) for i in range(size)))


def rollouts(block: str, outcome: Outcome, first: int = 0) -> tuple[PanelOutcome, ...]:
    """A complete panel with one outcome throughout."""
    return tuple(
        PanelOutcome(task_id=task, ordinal=first + j, outcome=outcome, context_hash=digest(block))
        for task in TASKS
        for j in range(PANEL.rollouts)
    )


def opening(horizon: int = 100) -> list[Entry]:
    """Panel, epoch, and a baseline in which nothing is resolved."""
    baseline = PanelResult(bank_hash=Bank(repo=REPO).hash, outcomes=rollouts("none", "unresolved"))
    return [
        PanelFixed(panel=PANEL),
        EpochOpened(epoch=1, horizon=horizon, delta="0.05", panel_hash=PANEL.hash, reason="first"),
        Baseline(epoch=1, result=baseline),
    ]


def decided(
    panel: Panel, bank: Bank, move: Proposal, found: tuple[PanelOutcome, ...], *, accept: bool, **more: Any
) -> Judged:
    """The verdict on these outcomes; `more`: other fields, `query` and `current_passes` among them."""
    verdict = Verdict(
        proposal_id=move.id,
        decision="accept" if accept else "reject",
        panel_hash=panel.hash,
        bank_hash=bank.hash,
        pairing=panel.pairing,
        rho=panel.rho,
        n_tasks=len(panel.tasks),
        rollouts=panel.rollouts,
        needed=needed_passes(panel.rho, len(panel.tasks), panel.rollouts),
        candidate_passes=sum(o.outcome == "resolved" for o in found),
        order=tuple(task.instance_id for task in panel.tasks),
        outcomes=found,
        **{"epoch": 1, **more},
    )
    return Judged(verdict=verdict, bank_after=moves.apply(bank, move).hash if accept else bank.hash)


def judged(bank: Bank, move: Proposal, query: int, current: int, found: tuple[PanelOutcome, ...]) -> Judged:
    """The verdict that follows from `found`, given how many of the current outcomes are resolved."""
    gained = sum(o.outcome == "resolved" for o in found) - current
    accept = gained >= needed_passes(PANEL.rho, len(TASKS), PANEL.rollouts)
    return decided(PANEL, bank, move, found, accept=accept, current_passes=current, query=query)


def accepting(bank: Bank, move: Proposal, query: int = 1) -> list[Entry]:
    """The proposal, and its accept over a baseline in which nothing is resolved (so: once a bank)."""
    return [Proposed(proposal=move), judged(bank, move, query, 0, rollouts(move.id, "resolved"))]


def accepted() -> list[Entry]:
    """A whole ledger that ends in its only accept."""
    return [Opened(repo=REPO), *opening(), *accepting(Bank(repo=REPO), proposal(1))]


def removal() -> OwnerAct:
    """The owner's removal of the only item of `accepted`."""
    before = moves.apply(Bank(repo=REPO), proposal(1))
    keys = tuple(i.key for i in before.items)
    after = moves.change(before, keys, ())
    return OwnerAct(act="remove", reason="outdated", removes=keys, bank_hash=before.hash, bank_after=after.hash)
