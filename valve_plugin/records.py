"""The records of the whole package: frozen, keyword-only, strict, and each field with its unit or range."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from valve_plugin.codec import digest, digest_bytes
from valve_plugin.words import hiding_places

SCHEMA_VERSION: Final = 1
LedgerVersion = Literal[1, 2]
"""Of a ledger and its `bank.json`; it says how a bank is hashed, see `bank_hash`."""
Kind = Literal["principle", "skill"]
KINDS: tuple[Kind, ...] = ("principle", "skill")
Outcome = Literal["resolved", "unresolved", "errored"]
AttemptOutcome = Literal["resolved", "unresolved", "errored", "ungraded"]
FaultKind = Literal[
    "", "key", "quota", "model", "price", "usage", "request", "rate", "server", "connection", "timeout"
]  # fmt: skip
Decision = Literal["accept", "reject", "indecisive"]
Pairing = Literal["paper", "deployed"]
TestRole = Literal["quoted", "other", "before"]
Source = Literal["evolve", "panel", "eval"]
"""What an unattended rollout is for: to learn from, to judge by, or to evaluate on the sealed holdout."""

# Limits of what a model may put into a bank; generous for real items, small enough for a prompt.
# The lookahead: in Python `$` also matches before a final newline, in JSON Schema's dialect it does not.
Name = Annotated[str, Meta(min_length=1, max_length=120, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$(?!\n)")]
Sentence = Annotated[str, Meta(min_length=1, max_length=600)]
Body = Annotated[str, Meta(min_length=1, max_length=12_000)]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$", min_length=64, max_length=64)]
Money = Annotated[float, Meta(ge=0)]

_LIVE = "live-"
_OWNER = "owner: "


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all records."""


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
    judged: Literal[False] | UnsetType = UNSET
    """false: the bank's owner put these words in, and no gate judged them; else absent."""

    @property
    def key(self) -> tuple[Kind, str]:
        """Kind and name: unique within a bank."""
        return (self.kind, self.name)

    @property
    def hidden(self) -> list[str]:
        """What hides the item's words, such as `U+202E` or `an HTML comment`; an item that has some is not injected."""
        texts = (self.name, self.text, self.scope_hint, self.markdown)
        return list(dict.fromkeys(place for text in texts for place in hiding_places(text)))


class Bank(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """An accepted bank: two append-only lists in creation order."""

    repo: str
    version: Count = 0
    """Number of accepted moves and owner's acts that led here."""
    principles: tuple[Item, ...] = ()
    skills: tuple[Item, ...] = ()
    schema_version: LedgerVersion = 2
    """Of its ledger."""

    @property
    def items(self) -> tuple[Item, ...]:
        """Principles, then skills, each in creation order."""
        return self.principles + self.skills

    @cached_property
    def hash(self) -> str:
        """What verdicts are judged against and commits compare, see `bank_hash`."""
        return bank_hash(self)


def bank_hash(bank: Bank) -> str:
    """Return the SHA-256 of what a bank holds, as its ledger's version takes it.

    1: of the canonical bank. 2: of repo, version and the hashes of principles and skills, each the SHA-256 of its
    items' own hashes in order. Versions that add items then go on with two hashes, see `replay.version_hashes`.
    """
    if bank.schema_version == 1:
        return digest(
            {"repo": bank.repo, "version": bank.version, "principles": bank.principles, "skills": bank.skills}
        )
    kinds = (digest_bytes("".join(map(digest, items)).encode()) for items in (bank.principles, bank.skills))
    return digest([bank.repo, bank.version, *kinds])


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
    reason: str | UnsetType = UNSET
    """What the reviewing model says about it, in one sentence; like the item, only in `local/`."""


class Proposal(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
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

    @cached_property
    def id(self) -> str:
        """First 16 hex digits of its content hash."""
        return digest(self)[:16]


class Context(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """What Retrieve composed for one task: the block that ends the system message."""

    text: str
    items: tuple[tuple[Kind, str], ...] = ()
    """(kind, name) in the order injected."""
    left_out: tuple[tuple[Kind, str], ...] = ()
    """(kind, name) of the items that were chosen and did not fit."""
    bank_hash: str = ""
    embedding: str = "hashing"
    """Which vectors ranked it; a bank judged with one warns under another."""

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the block's bytes; equal blocks are the same condition."""
        return digest_bytes(self.text.encode("utf-8", "surrogatepass"))


class PanelTask(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A panel member, pinned by id and content."""

    instance_id: str
    content_hash: Hash


class Panel(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """The fixed panel V and the settings its outcomes depend on (eq:gate)."""

    schema_version: Literal[1] = 1
    tasks: tuple[PanelTask, ...]
    rollouts: Positive = 3
    """r, rollouts per task and condition."""
    rho: str = "0.02"
    """Margin as decimal text; parsed exactly, never through a float."""
    pairing: Pairing = "paper"
    embedding: str = "hashing"
    """Which vectors rank the contexts its rollouts are judged under; see `bank.embedding`."""
    seed: int = 123

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the panel."""
        return digest(self)


class PanelOutcome(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One executable panel rollout, as the ledger keeps it."""

    task_id: str
    ordinal: Count
    outcome: Outcome
    context_hash: Hash


class PanelResult(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A complete measurement of one bank on the panel: N * r outcomes."""

    bank_hash: Hash
    outcomes: tuple[PanelOutcome, ...]

    @property
    def passes(self) -> int:
        """Number of resolved rollouts."""
        return sum(o.outcome == "resolved" for o in self.outcomes)


class Conditions(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an accept takes beyond the margin, declared with the epoch and the same for all its queries."""

    confirm: bool = False
    """An apparent accept has to repeat, margin and guard, on fresh rollouts."""
    guard: Count = 0
    """Reject where some panel task passes so many rollouts fewer than it did, or still fewer; 0: no such guard."""
    fresh: Count = 0
    """Gate queries in which a panel task's outcomes serve before it is measured anew; the tasks that an accept ran are
    measured anew, too. 0: an accept carries its outcomes forward, and they stay until the next one."""
    bet: Count = 0
    """What the bet that an accepted proposal helps has to multiply its stake by; see `acceptance.bet_needed`. 0: no
    such bet."""


class Verdict(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the gate said about one proposal, with all that is needed to recompute it."""

    proposal_id: str
    decision: Decision
    epoch: Positive
    query: Positive
    """1-based number of this gate query within its epoch; at most the horizon."""
    panel_hash: Hash
    bank_hash: Hash
    """The bank it was judged against."""
    pairing: Pairing
    rho: str
    n_tasks: Positive
    rollouts: Positive
    needed: int
    """ceil(rho * N * r): net additional passes an accept takes."""
    current_passes: Count
    candidate_passes: Count
    """Resolved among `outcomes`."""
    unknown: Count = 0
    """Errored among `outcomes`."""
    order: tuple[str, ...]
    """Panel task ids in the order fixed when the gate started."""
    outcomes: tuple[PanelOutcome, ...]
    """The decisive prefix (complete for an accept), in canonical order."""
    reused: tuple[PanelOutcome, ...] = ()
    """Current outcomes kept because the context did not change (pairing "deployed")."""
    deployed: Count = 0
    """Accepts only: panel tasks whose context under the enlarged bank is the judged one; certificates need all."""
    conditions: Conditions | UnsetType = UNSET
    """The epoch's; absent where it asks for nothing beyond the margin."""
    confirming: tuple[PanelOutcome, ...] | UnsetType = UNSET
    """The fresh rollouts an apparent accept had to repeat on, up to their decisive prefix (complete for an accept), in
    canonical order; absent where `outcomes` were no apparent accept or nothing asks for a repetition."""

    @property
    def measured(self) -> tuple[PanelOutcome, ...]:
        """The candidate's last measurement: of an accept the one that is carried forward (see `bank.replay`)."""
        return self.reused + (self.confirming or self.outcomes)

    @property
    def net(self) -> tuple[int, int]:
        """Least and greatest net additional passes of `measured`, what was lost or not run counting as both values."""
        values = [o.outcome for o in self.measured]
        low = values.count("resolved") - self.current_passes
        return low, low + values.count("errored") + self.n_tasks * self.rollouts - len(values)

    @property
    def first_net(self) -> int:
        """Net additional passes of the first measurement; of one that had to be repeated, all of it ran."""
        return sum(o.outcome == "resolved" for o in self.reused + self.outcomes) - self.current_passes

    @property
    def ran(self) -> int:
        """Rollouts that count, confirming ones included."""
        return len(self.outcomes) + len(self.confirming or ())


class FailedTest(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A required test that did not pass."""

    test: Annotated[str, Meta(max_length=500)]
    role: TestRole
    """quoted: the issue names it. other: it failed before, too. before: it passed before."""
    reason: Annotated[str, Meta(max_length=500)] = ""
    """Exception, message and place in the code, in one line; expected values are masked."""


SUSPICIOUS = "suspicious patch:"
"""How the reason of an attempt begins whose patch was written, or behaves, as if to forge its result."""
LOOK_AT = "resolved, but look at"
"""How that of a resolved one begins whose patch has answers written down for certain arguments."""


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
    failed_tests: tuple[FailedTest, ...] = ()
    """Up to ten required tests that did not pass, of all roles."""
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

    @property
    def suspicious(self) -> bool:
        """Whether its patch looks like a forged result; such a one is unresolved, or resolved and to be looked at."""
        return self.reason.startswith((SUSPICIOUS, LOOK_AT))


def live_task(text_hash: str) -> str:
    """Return the id of a person's own task, named after its text."""
    return f"{_LIVE}{text_hash[:16]}"


EVERY_TASK = "every task"
"""Scope of what a person wrote without saying when it applies: it is always injected."""


def is_for_every_task(item: Item) -> bool:
    """Tell whether an item is injected whatever the task: no attempts taught it, and its scope says so."""
    return item.scope_hint == EVERY_TASK and not item.source_tasks


def owner_task(what: str) -> str:
    """Return the task id of a proposal that the bank's owner makes, like `owner: AGENTS.md`."""
    return f"{_OWNER}{what}"


def is_owners(task_id: str) -> bool:
    """Tell whether a proposal of that task id comes from the bank's owner rather than from attempts."""
    return task_id.startswith(_OWNER)


def short_task_id(task_id: str) -> str:
    """Return a task id without its prefix of repository and commit, which SWE-smith's ids have."""
    return task_id if is_owners(task_id) else task_id.rpartition(".")[2] or task_id


def is_live(task_id: str) -> bool:
    """Tell whether a task is a person's own rather than one of a task set."""
    return re.fullmatch(f"{_LIVE}[0-9a-f]{{16}}", task_id) is not None
