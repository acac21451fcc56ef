"""No ranking: every stored item is injected, newest first.

The candidate of a gate is then the enlarged bank in full; "deployed" asks this hook for it, where the paper's pairing
would rank.

Source: tab:impl-ablations ("in reverse creation order").
"""

from __future__ import annotations

from valve_plugin.bank import block
from valve_plugin.config import Settings
from valve_plugin.experiment.conditions import Condition
from valve_plugin.hookspecs import hookimpl
from valve_plugin.records import Bank, Context, Item


class Hooks:
    """Retrieval that selects nothing."""

    @hookimpl
    def valve_retrieve(self, settings: Settings, bank: Bank, task_id: str, issue: str) -> Context:
        """Compose all items; principles, then skills, each in reverse creation order."""
        return whole([*reversed(bank.principles), *reversed(bank.skills)], bank)


def whole(items: list[Item], bank: Bank) -> Context:
    """Return the context that holds these items, in this order."""
    return Context(text=block.render(items), items=tuple(item.key for item in items), bank_hash=bank.hash)


CONDITION = Condition(
    "inject all: every item, in reverse creation order",
    hooks=f"{__name__}:Hooks",
    settings={"pairing": "deployed"},
    ranked=False,
)
