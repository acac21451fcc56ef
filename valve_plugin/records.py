"""The frozen records every layer speaks in. Each field says its unit or range; equal records encode equally.

Decode with `valve_plugin.codec.decode`: unknown keys, wrong types and values out of range are refused.
Times, durations and costs are telemetry: they never enter the ledger or anything that is hashed for it.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType, field

from valve_plugin.codec import digest, digest_bytes
from valve_plugin.fields import (
    KINDS,
    AttemptOutcome,
    Body,
    Count,
    Decision,
    FaultKind,
    Hash,
    Kind,
    Money,
    Name,
    Outcome,
    Pairing,
    Positive,
    Record,
    Sentence,
    Source,
)
from valve_plugin.verdicts import Conditions, Panel, PanelOutcome, PanelResult, PanelTask, Verdict

__all__ = [
    "KINDS",
    "SCHEMA_VERSION",
    "Attempt",
    "AttemptOutcome",
    "Bank",
    "Body",
    "Conditions",
    "Context",
    "Count",
    "Decision",
    "FaultKind",
    "Hash",
    "Item",
    "Kind",
    "Merge",
    "Money",
    "Name",
    "Outcome",
    "Pairing",
    "Panel",
    "PanelOutcome",
    "PanelResult",
    "PanelTask",
    "Positive",
    "Proposal",
    "Record",
    "Sentence",
    "Source",
    "Suppressed",
    "Task",
    "Verdict",
    "Withheld",
    "is_live",
    "live_task",
]

SCHEMA_VERSION: Final = 1


class Task(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One SWE-smith row: `patch` *introduces* the bug, its reverse is the gold patch."""

    instance_id: Annotated[str, Meta(min_length=1, max_length=300)]
    repo: Annotated[str, Meta(min_length=1, max_length=300)]
    patch: Annotated[str, Meta(min_length=1)]
    fail_to_pass: Annotated[tuple[str, ...], Meta(min_length=1)] = field(name="FAIL_TO_PASS")
    pass_to_pass: tuple[str, ...] = field(name="PASS_TO_PASS", default=())
    problem_statement: str = ""
    image_name: str = ""
    base_commit: str = ""
    created_at: str = ""

    @property
    def content_hash(self) -> str:
        """What makes two rows the same bug, whatever their ids."""
        return digest([self.repo, self.patch, sorted(self.fail_to_pass)])


class Item(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One principle (how to reason) or skill (a narrow procedure) of a bank."""

    kind: Kind
    name: Name
    text: Sentence
    """The search sentence that retrieval matches; C in eq:impl-retrieval."""
    markdown: Body
    """The rich body, injected verbatim."""
    scope_hint: Annotated[str, Meta(max_length=600)] = ""
    """Where a skill applies; always empty for a principle; M in eq:impl-retrieval."""
    source_tasks: tuple[str, ...] = ()
    """Ids of the mixed tasks it was learned from, in order."""
    support: Positive = 1
    """How many proposals carried it (1 plus merged exact duplicates)."""
    created_step: Count = 0
    """The accept (1-based) that brought it in; 0 while it is only proposed."""
    passes: Count = 0
    """Resolved source attempts."""
    attempts: Count = 0
    """All graded source attempts; passes/attempts is the importance prior."""

    @property
    def key(self) -> tuple[Kind, str]:
        """Kind and name: unique within a bank."""
        return (self.kind, self.name)


class Bank(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An accepted bank: two append-only lists in creation order."""

    repo: str
    version: Count = 0
    """Number of accepted moves that led here."""
    principles: tuple[Item, ...] = ()
    skills: tuple[Item, ...] = ()

    @property
    def items(self) -> tuple[Item, ...]:
        """Principles, then skills, each in creation order."""
        return self.principles + self.skills

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical bank; what verdicts are judged against and commits compare."""
        return digest(self)


class Merge(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An exact duplicate of a bank item: adds support and sources if its proposal is accepted."""

    kind: Kind
    name: Name
    source_task: str
    passes: Count = 0
    attempts: Count = 0
    item: Item | UnsetType = UNSET
    """The item as it was proposed, so that anybody can decide again; absent in older ledgers."""


class Suppressed(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A near-duplicate that was dropped, and the item it repeats."""

    kind: Kind
    name: str
    duplicate_of: str
    similarity: Annotated[float, Meta(ge=0, le=1)]
    item: Item | UnsetType = UNSET
    """The item as it was proposed, so that anybody can decide again; absent in older ledgers."""


class Withheld(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An item that was not let through: it held a secret, or was set aside for a person to look at."""

    kind: Kind
    name: str
    why: str
    """Which rules it breaks, or what is wrong with it."""
    content_hash: str = ""
    """Digest of the item that was set aside; empty when it is kept nowhere."""
    item: Item | None = None
    """The item itself, on its way to `local/`; the ledger never holds it."""


class Proposal(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A joint move m_t: everything one mixed task proposed, judged as a whole (app:impl-extract)."""

    task_id: str
    items: tuple[Item, ...] = ()
    merges: tuple[Merge, ...] = ()
    removes: Annotated[tuple[tuple[Kind, Name], ...], Meta(min_length=1)] | UnsetType = UNSET
    """Items the bank loses: retired ones, sections that are deleted or replaced. Absent where there are none."""
    suppressed: tuple[Suppressed, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    issue_summary: str = ""
    reason: str = ""
    """Why there is nothing to judge, when there is nothing to judge."""
    prompt_hash: str = ""
    model: str = ""

    @property
    def empty(self) -> bool:
        """True when no item is added or removed: nothing changes any context, so no gate is asked."""
        return not self.items and not self.removed

    @property
    def removed(self) -> tuple[tuple[Kind, Name], ...]:
        """What is removed, if anything is."""
        return () if isinstance(self.removes, UnsetType) else self.removes

    @property
    def id(self) -> str:
        """First 16 hex digits of its content hash."""
        return digest(self)[:16]


class Context(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What Retrieve composed for one task: the block that ends the system message."""

    text: str
    items: tuple[tuple[Kind, str], ...] = ()
    """(kind, name) in the order injected."""
    bank_hash: str = ""
    embedding: str = "hashing"
    """Which vectors ranked it; a bank judged with one warns under another."""

    @property
    def hash(self) -> str:
        """SHA-256 of the block's bytes; equal blocks are the same condition."""
        return digest_bytes(self.text.encode("utf-8", "surrogatepass"))


_LIVE = "live-"


def live_task(text_hash: str) -> str:
    """Return the id of a person's own task, named after its text."""
    return f"{_LIVE}{text_hash[:16]}"


def is_live(task_id: str) -> bool:
    """Tell whether a task is a person's own rather than one of a task set."""
    return re.fullmatch(f"{_LIVE}[0-9a-f]{{16}}", task_id) is not None


class Attempt(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run of the agent on one task, graded or not."""

    id: str
    task_id: str
    ordinal: Count
    """This rollout's ordinal for (task, block); never reused."""
    source: Literal["live", "evolve", "panel", "eval"]
    outcome: AttemptOutcome
    reason: str = ""
    """Why it was unresolved, errored or ungraded, in one line."""
    fault: FaultKind = ""
    """What failed at the model's provider, where an errored attempt is its doing."""
    patch: str = ""
    dropped_paths: tuple[str, ...] = ()
    """Test files and test configuration whose edits were dropped before grading."""
    exit_status: str = ""
    steps: Count = 0
    """Model calls."""
    cost_usd: Money = 0.0
    seconds: Annotated[float, Meta(ge=0)] = 0.0
    recorded_at: float = 0.0
    """Seconds since the epoch; 0 when unknown."""
    model: str = ""
    task_text: str = ""
    base_tree: str = ""
    """Git tree id the run started from, untracked files included (live attempts)."""
    context_hash: str = ""
    context_items: tuple[tuple[Kind, str], ...] = ()
    check: str = ""
    """The command that graded a live attempt."""
    check_output: str = ""
    """The last lines that the check printed in the run that decided (live attempts)."""
    trajectory: str = ""
    """File name of the redacted, compressed trajectory under `local/`."""
