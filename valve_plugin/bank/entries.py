"""What a ledger line can say. Nothing here holds a time, a cost or a machine's name: equal runs give equal bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from valve_plugin.records import (
    AttemptOutcome,
    Conditions,
    Count,
    Hash,
    Item,
    Kind,
    LedgerVersion,
    Name,
    Panel,
    PanelOutcome,
    PanelResult,
    PanelTask,
    Positive,
    Proposal,
    Record,
    Verdict,
)


class Opened(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="opened"):
    """First line of every ledger."""

    repo: Annotated[str, Meta(min_length=1, max_length=300)]
    schema_version: LedgerVersion = 2


class PanelFixed(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="panel_fixed"):
    """The panel all later gates use; it ends the open epoch."""

    panel: Panel


class EpochOpened(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="epoch_opened"):
    """A fresh count of gate queries; its first gate needs a fresh baseline."""

    epoch: Positive
    """e, one more than the last."""
    horizon: Positive
    """T, gate queries declared before the first of them."""
    delta: str
    """δ as decimal text; this epoch spends δ/(e(e+1))."""
    panel_hash: Hash
    reason: str
    conditions: Conditions | UnsetType = UNSET
    """What an accept takes beyond the margin; absent: nothing."""


class Baseline(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="baseline"):
    """A complete, never truncated measurement of the current bank."""

    epoch: Positive
    result: PanelResult
    solver: Hash | UnsetType = UNSET
    """Digest of what of the settings changes how the agent solves; absent: from before it was recorded."""
    agent: str | UnsetType = UNSET
    """The agent that solved, where it was not mini: a name or a command, and its version."""
    model: str | UnsetType = UNSET
    """The scripted model, where it was that: its figures, and the verdicts on them, are a simulation's."""


class Remeasured(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="remeasured"):
    """The current bank measured completely once more, on fresh rollouts: a candidate that changes nothing (A/A).

    No query of the horizon: the union bound of thm:reuse-main is over the moves that could be accepted, and this is
    none. Whatever it shows, no bank changes and no proposer reads it. What is carried forward stays, or
    chance would decide which of two measurements of one bank the next proposal has to beat.
    """

    epoch: Positive
    result: PanelResult


class AttemptNote(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rollout a proposal was learned from."""

    task_id: str
    ordinal: Count
    outcome: AttemptOutcome
    context_hash: Hash
    patch_hash: Hash


class Proposed(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="proposed"):
    """A joint move, also when it is empty, and the attempts behind it."""

    proposal: Proposal
    attempts: tuple[AttemptNote, ...] = ()


class Judged(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="judged"):
    """A gate's verdict. An accept *is* this one line: the move is made when the line is on disk."""

    verdict: Verdict
    bank_after: Hash
    """Hash of the bank from here on: of the enlarged bank for an accept, else the same as `verdict.bank_hash`."""


class Taken(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="taken"):
    """A move made without a gate. Only a bank that never opened an epoch takes any."""

    proposal_id: str
    bank_hash: Hash
    """The bank it was made on."""
    bank_after: Hash


class OwnerAct(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="owner_act"):
    """A change that the bank's owner made. Nothing judged it, so it ends the open epoch."""

    act: Literal["add", "remove", "edit", "rename", "merge", "undo"]
    reason: Annotated[str, Meta(min_length=1, max_length=600)]
    """Why, in the owner's words or in ours."""
    removes: tuple[tuple[Kind, Name], ...] = ()
    """Items that the bank loses: removed ones, and the earlier versions of `items`."""
    items: tuple[Item, ...] = ()
    """Items that it gains; there they are marked `judged: false`."""
    undo_to: Count | UnsetType = UNSET
    """Of an undo, the version whose items are the bank's again, as they were; else absent."""
    bank_hash: Hash
    """The bank it was made on."""
    bank_after: Hash


class Evaluated(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="evaluated"):
    """One reading of the sealed holdout: every rollout of one frozen bank. It changes nothing about the bank."""

    holdout: Annotated[tuple[PanelTask, ...], Meta(min_length=1)]
    rollouts: Positive
    """r, rollouts per task; avg@r is their mean."""
    version: Count
    """The accepted bank that was frozen."""
    only: tuple[Kind, Name] | None = None
    """That bank reduced to one item, to see what the item does alone; null: the whole bank."""
    bank_hash: Hash
    """Of what was frozen."""
    solver: Hash
    """Digest of what of the settings changes how the agent solves: only equal ones may be compared."""
    outcomes: tuple[PanelOutcome, ...]
    """r a task, in holdout order, ordinals from 0; errored: unknown, and counted as both values."""

    @property
    def complete(self) -> bool:
        """Whether nothing is unknown, so that the number is final."""
        return all(o.outcome != "errored" for o in self.outcomes)


class LeftOut(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="left_out"):
    """The current bank on the panel without one of its items: a report. No query, and nothing goes by it.

    Recorded so that its rollouts are never used again: a gate about retiring the item runs fresh ones. Whoever reads
    it knows more about the panel than verdicts tell, so thm:reuse-main does not cover what is chosen by it.
    """

    epoch: Positive
    without: tuple[Kind, Name]
    bank_hash: Hash
    """Of the current bank, the item included."""
    outcomes: tuple[PanelOutcome, ...] = ()
    """r of each panel task whose context is another without the item, in panel order; for others nothing changes."""
    solver: Hash | UnsetType = UNSET
    """As a baseline's: only equal ones may be compared."""


DecisionEntry: TypeAlias = Judged | Taken
Measurement: TypeAlias = Baseline | Remeasured | LeftOut | Evaluated
Entry: TypeAlias = Opened | PanelFixed | EpochOpened | Measurement | Proposed | DecisionEntry | OwnerAct


UNREACHED = "not judged: no panel task retrieves it"
FAILED_AGAIN = "not judged: with it, its own task failed again"
"""How the reason ends of what sets a proposal aside; before it is the id of that proposal."""


def sets_aside(entry: Entry, reason: str) -> str:
    """Return the id of the proposal that this entry sets aside for that reason; empty: it does not."""
    found = entry.proposal if isinstance(entry, Proposed) and entry.proposal.empty else None
    return found.reason.removesuffix(reason).strip() if found and found.reason.endswith(reason) else ""


def why_aside(entry: Entry) -> str:
    """Return why this entry sets a proposal aside, in a few words; empty: it does not."""
    found = next((reason for reason in (UNREACHED, FAILED_AGAIN) if sets_aside(entry, reason)), "")
    return found.removeprefix("not judged: ")


def makes_version(entry: Entry) -> bool:
    """Tell whether the bank has one version more after this entry."""
    return isinstance(entry, Taken | OwnerAct) or (isinstance(entry, Judged) and entry.verdict.decision == "accept")


def undecided(entries: Iterable[Entry]) -> list[Proposal]:
    """Return the proposals that wait, oldest first. A later proposal of a task replaces its earlier one."""
    latest: dict[str, Proposal] = {}
    for entry in entries:
        done = entry.proposal_id if isinstance(entry, Taken) else ""
        if isinstance(entry, Proposed):
            latest[entry.proposal.task_id] = entry.proposal
        elif isinstance(entry, Judged) and entry.verdict.decision != "indecisive":
            done = entry.verdict.proposal_id
        if done:
            latest = {task: proposal for task, proposal in latest.items() if proposal.id != done}
    return [proposal for proposal in latest.values() if not proposal.empty]
