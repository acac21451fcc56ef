"""What gates ran of their panels, and what early stopping saved: rollouts by the ledger, money by telemetry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from valve_plugin.bank.entries import Entry, Judged
from valve_plugin.codec import convert
from valve_plugin.errors import RecordError
from valve_plugin.records import Count
from valve_plugin.words import plural


class Ran(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one gate ran on this machine, rollouts beyond its decisive prefix included. Telemetry: decides nothing."""

    proposal_id: str
    confirming: bool = False
    ran: Count
    cut: Count = 0
    """Begun and ended before they were done; not among `ran`."""
    cost_usd: float
    cut_usd: float = 0.0
    """What those that were cut had cost by then; older versions did not note it."""


class Saved(NamedTuple):
    """One gate, or several together."""

    ran: int
    """Rollouts."""
    of: int
    """Rollouts a full panel takes, without outcomes that were kept."""
    usd: float
    """What the rollouts not run would have cost, at the mean cost of those that were, less what those that were cut
    short had cost; 0 where no cost is known."""
    cut: int = 0
    """Of the rollouts not run, those that had begun and were cut short."""

    @property
    def rollouts(self) -> int:
        """Rollouts that were not run."""
        return self.of - self.ran

    def facts(self) -> dict[str, Any]:
        """Return the same as plain data."""
        return {"ran": self.ran, "saved": self.rollouts, "saved_usd": self.usd, "cut_short": self.cut}

    def __str__(self) -> str:
        money = f", about ${self.usd:.2f}" if self.usd >= 0.005 else ""
        cut = f", {self.cut} of them cut short" if self.cut else ""
        return f"{self.rollouts} of {plural(self.of, 'rollout')} saved{money}{cut}"


def saved(entries: Iterable[Entry], told: Iterable[Mapping[str, Any]]) -> dict[str, Saved]:
    """Return proposal id -> what its gate saved, for each decided one.

    Args:
        entries: the ledger's.
        told: telemetry under the name "gates"; without it, what the ledger holds is what ran.
    """
    known = {(stage.proposal_id, stage.confirming): stage for stage in map(_ran, told) if stage is not None}
    verdicts = [e.verdict for e in entries if isinstance(e, Judged) and e.verdict.decision != "indecisive"]
    found = {}
    for v in verdicts:
        stages = [known[v.proposal_id, c] for c in (False, True) if (v.proposal_id, c) in known]
        of = (v.n_tasks * v.rollouts - len(v.reused)) * (2 if v.confirming else 1)
        ran = min(of, max(v.ran, sum(stage.ran for stage in stages)))
        cost = sum(stage.cost_usd for stage in stages)
        cut = min(of - ran, sum(stage.cut for stage in stages))
        usd = cost / ran * (of - ran) - sum(stage.cut_usd for stage in stages) if ran else 0.0
        found[v.proposal_id] = Saved(ran, of, max(0.0, usd), cut)
    return found


def total(gates: Sequence[Saved]) -> Saved:
    """Return all gates together."""
    return Saved(
        sum(g.ran for g in gates), sum(g.of for g in gates), sum(g.usd for g in gates), sum(g.cut for g in gates)
    )


def _ran(told: Mapping[str, Any]) -> Ran | None:
    try:
        return convert(dict(told), Ran, where="telemetry")
    except RecordError:
        return None
