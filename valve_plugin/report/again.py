"""What measuring the current bank again shows: how often the gate accepts nothing, and how much its score flatters."""

from __future__ import annotations

import math
from collections.abc import Sequence

from valve_plugin.bank.measured import Epoch
from valve_plugin.records import Conditions, PanelOutcome, Record
from valve_plugin.theory import gate
from valve_plugin.theory.intervals import clopper_pearson


class Share(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Accepts among A/A gates, with an exact 95 % interval for their chance."""

    gates: int
    accepted: int
    low: float
    high: float


class Again(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The current bank against itself. Diagnostics: nothing here feeds the gate."""

    version: int
    panels: int
    """Complete measurements on fresh rollouts, each of them a do-nothing candidate."""
    carried: Share
    """Each against the outcomes that are carried now: what a proposal that changes nothing meets next."""
    fresh: Share
    """Disjoint sets of them against each other: what such a proposal meets after a fresh baseline."""
    recorded: float
    """Score that is carried, a share of panel rollouts."""
    measured: float
    """Mean score of the fresh measurements."""
    error: float
    """Standard error of `measured`, over the panel's rollouts as they fell; 0 for a single one."""


def again(epoch: Epoch, carried: Sequence[PanelOutcome], version: int) -> Again | None:
    """Return what an epoch's A/A measurements of its current bank show; None where there are none.

    With `confirm`, one gate takes two measurements as the candidate's.

    Args:
        carried: the current bank's outcomes.
    """
    panels = [c.outcomes for c in epoch.complete if c.again and c.version == version]
    if not panels:
        return None
    asked = epoch.opened.conditions or Conditions()
    needed = gate.needed_passes(epoch.panel.rho, len(epoch.panel.tasks), epoch.panel.rollouts)
    each = 1 + asked.confirm

    def accepts(current: Sequence[PanelOutcome], candidates: Sequence[Sequence[PanelOutcome]]) -> bool:
        return all(gate.stage(current, c, needed, asked.guard)[0] == "accept" for c in candidates)

    now = [accepts(carried, panels[i : i + each]) for i in range(0, len(panels) - each + 1, each)]
    then = [accepts(panels[i], panels[i + 1 : i + 1 + each]) for i in range(0, len(panels) - each, each + 1)]
    scores = [_score(p) for p in panels]
    mean = sum(scores) / len(scores)
    spread = math.sqrt(sum((s - mean) ** 2 for s in scores) / max(1, len(scores) - 1) / len(scores))
    return Again(
        version=version,
        panels=len(panels),
        carried=_share(now),
        fresh=_share(then),
        recorded=_score(carried),
        measured=mean,
        error=spread,
    )


def _share(accepted: Sequence[bool]) -> Share:
    low, high = clopper_pearson(sum(accepted), len(accepted))
    return Share(gates=len(accepted), accepted=sum(accepted), low=low, high=high)


def _score(outcomes: Sequence[PanelOutcome]) -> float:
    return sum(o.outcome == "resolved" for o in outcomes) / len(outcomes)
