"""A small bank with a history, for the tests of the commands that read one."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from tests.bank.build import decided
from valve_plugin.bank.entries import AttemptNote, Baseline, EpochOpened, PanelFixed, Proposed
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import digest
from valve_plugin.records import Attempt, Item, Outcome, Panel, PanelOutcome, PanelResult, PanelTask, Proposal, Withheld

TASKS = ("bug-a", "bug-b")
BEFORE, AFTER = digest("block before"), digest("block after")
BODY = "# Look first\n\nRead every caller with `grep -rn` before you change a signature.\n\n`<!-- seen? -->`\n"

PRINCIPLE = Item(
    kind="principle",
    name="look-first",
    text="Read the callers before changing a signature",
    markdown=BODY,
    source_tasks=("bug-x",),
    passes=2,
    attempts=3,
)
SKILL = Item(
    kind="skill",
    name="dates",
    text="Compare [bold]dates[/bold] in UTC",
    markdown="Convert both sides first.",
    scope_hint="datetime code",
    source_tasks=("bug-x",),
    passes=2,
    attempts=3,
)
GOOD = Proposal(task_id="bug-x", items=(PRINCIPLE, SKILL), model="scripted")
NOISE = Item(kind="skill", name="noise", text="Do nothing at all", markdown="Nothing.", passes=1, attempts=3)
BAD = Proposal(task_id="bug-y", items=(NOISE,))
HARMFUL = Withheld(kind="skill", name="skip-tests", why="turns the agent against its tests")
EMPTY = Proposal(task_id="bug-z", reason="nothing usable is left", withheld=(HARMFUL,))


def outcomes(context: str, passed: int, total: int, first: int = 0) -> tuple[PanelOutcome, ...]:
    """Return `total` outcomes over TASKS in order, three a task, of which the first `passed` are resolved."""
    cells = [(task, first + j) for task in TASKS for j in range(3)][:total]
    result: list[Outcome] = ["resolved"] * passed + ["unresolved"] * (total - passed)
    return tuple(
        PanelOutcome(task_id=task, ordinal=ordinal, outcome=outcome, context_hash=context)
        for (task, ordinal), outcome in zip(cells, result, strict=True)
    )


def sample(path: Path, repo: str = "owner/name") -> BankStore:
    """Make a bank in which GOOD was accepted, EMPTY had nothing to judge, and BAD was rejected early."""
    store = BankStore.create(path, repo, {"repo": repo, "test_command": "python -m pytest"})
    open_epoch(store, outcomes(BEFORE, 3, 6))
    note = AttemptNote(task_id="bug-x", ordinal=0, outcome="resolved", context_hash=BEFORE, patch_hash=digest("patch"))
    store.append(Proposed(proposal=GOOD, attempts=(note,)))
    judge(store, GOOD, 1, outcomes(AFTER, 5, 6), current_passes=3)
    store.append(Proposed(proposal=EMPTY))
    store.append(Proposed(proposal=BAD))
    judge(store, BAD, 2, outcomes(digest("bad block"), 0, 1), current_passes=5)
    return store


def worsened(path: Path, repo: str = "owner/name") -> BankStore:
    """Make a bank whose only accept gains a pass in all, and takes two of three from bug-b."""
    store = BankStore.create(path, repo, {"repo": repo})
    before, after = outcomes(BEFORE, 6, 6), outcomes(AFTER, 4, 6)
    open_epoch(store, tuple(replace(o, outcome="unresolved") if o.task_id == TASKS[0] else o for o in before))
    store.append(Proposed(proposal=GOOD))
    judge(store, GOOD, 1, after, current_passes=3)
    return store


def open_epoch(store: BankStore, measured: tuple[PanelOutcome, ...]) -> None:
    """Fix the panel and open the first epoch with this baseline."""
    panel = Panel(tasks=tuple(PanelTask(instance_id=task, content_hash=digest(task)) for task in TASKS))
    store.append(PanelFixed(panel=panel))
    store.append(EpochOpened(epoch=1, horizon=5, delta="0.05", panel_hash=panel.hash, reason="first"))
    store.append(Baseline(epoch=1, result=PanelResult(bank_hash=store.bank.hash, outcomes=measured)))


def judge(store: BankStore, proposal: Proposal, query: int, judged: tuple[PanelOutcome, ...], **more: int) -> None:
    """Append the verdict that follows from `judged`: an accept when complete, else a rejection."""
    panel = store.panel()
    assert panel is not None
    complete = len(judged) == len(TASKS) * panel.rollouts
    store.append(decided(panel, store.bank, proposal, judged, accept=complete, query=query, **more))


def attempt(number: int, outcome: str, task: str = "fix it") -> Attempt:
    """Return a live attempt."""
    return Attempt(
        id=f"attempt-{task.replace(' ', '-')}-{number}",
        task_id="live",
        ordinal=number,
        source="live",
        outcome=outcome,  # type: ignore[arg-type]
        task_text=task,
        base_tree="0" * 40,
    )
