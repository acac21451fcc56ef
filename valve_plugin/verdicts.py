"""The records of the gate: the panel it measures on, what a measurement gave, and what it said about a proposal.

`valve_plugin.records` has them too, and everybody takes them from there.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from valve_plugin.codec import digest
from valve_plugin.fields import Count, Decision, Hash, Outcome, Pairing, Positive, Record


class PanelTask(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A panel member, pinned by id and content."""

    instance_id: str
    content_hash: Hash


class Panel(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
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

    @property
    def hash(self) -> str:
        """SHA-256 of the panel."""
        return digest(self)


class PanelOutcome(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One executable panel rollout, as the ledger keeps it."""

    task_id: str
    ordinal: Count
    outcome: Outcome
    context_hash: Hash


class Conditions(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an accept takes beyond the margin, declared with the epoch and the same for all its queries."""

    confirm: bool = False
    """An apparent accept has to repeat, margin and guard, on fresh rollouts."""
    guard: Count = 0
    """Reject where some panel task passes so many rollouts fewer than it did, or still fewer; 0: no such guard."""


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


class PanelResult(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A complete measurement of one bank on the panel: N * r outcomes."""

    bank_hash: Hash
    outcomes: tuple[PanelOutcome, ...]

    @property
    def passes(self) -> int:
        """Number of resolved rollouts."""
        return sum(o.outcome == "resolved" for o in self.outcomes)
