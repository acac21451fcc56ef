"""What a gate took on this machine: the rollouts its verdict rests on, and those that were under way beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from valve_plugin.bank.local import LocalStore
from valve_plugin.config import Settings
from valve_plugin.gate.plan import Plan
from valve_plugin.gate.rollout import CUT
from valve_plugin.records import Attempt, PanelOutcome
from valve_plugin.rollouts.attempt import rollout_key


def took(
    local: LocalStore, settings: Settings, plan: Plan, found: Mapping[tuple[str, int], PanelOutcome], usd: float
) -> dict[str, Any]:
    """Return what one stage of a gate ran, once its panel run has ended: what it began last may end after the verdict.

    Args:
        local: its journal has every rollout that ran to its end, and its telemetry those that did not.
        settings: of the panel run.
        plan: of the stage.
        found: task and ordinal -> outcome, as far as the gate listened.
        usd: USD of those.

    Returns:
        `ran` and `cut`, in rollouts, `cost_usd` of those that ran, and `cut_usd`, what the others had cost by then.
        Telemetry: decides nothing.
    """
    unheard: list[Attempt] = []
    begun: dict[tuple[Any, ...], float] = defaultdict(float)
    for c in local.told(CUT):
        if "ordinal" in c:
            begun[c["task_id"], c["context_hash"], c["ordinal"]] += c.get("cost_usd", 0.0)
    cut: list[float] = []
    for cell in plan.cells:
        if (cell.task.instance_id, cell.ordinal) in found:
            continue
        done = local.journal_get(rollout_key(settings, cell.task, cell.context, cell.ordinal))
        if done:
            unheard.append(done)
        elif (key := (cell.task.instance_id, cell.context.hash, cell.ordinal)) in begun:
            cut.append(begun[key])
    return {
        "ran": len(found) + len(unheard), "cut": len(cut), "cut_usd": sum(cut),
        "cost_usd": usd + sum(a.cost_usd for a in unheard),
    }  # fmt: skip
