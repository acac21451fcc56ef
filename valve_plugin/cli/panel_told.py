"""What a run says of its panel's size, and of tasks it has no use for, before its first rollout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from valve_plugin.cli import output
from valve_plugin.errors import ConfigError

if TYPE_CHECKING:
    from valve_plugin.bank.store import BankStore
    from valve_plugin.records import Panel
    from valve_plugin.tasks.load import TaskSet


def require_size(panel: Panel, given: Mapping[str, Any], found: BankStore | None) -> None:
    """Refuse (ConfigError) another size for a panel that is fixed.

    Args:
        given: what was typed.
        found: None where there is no bank yet.
    """
    size = len(panel.tasks)
    if given.get("panel_size", size) != size:
        raise ConfigError(
            f"the panel of {found.dir if found else 'split.json'} has {output.plural(size, 'task')} and keeps them, "
            f"--panel-size asks for {given['panel_size']}; leave the option out, or name another bank with --bank DIR"
        )


def note_sizes(store: BankStore, taskset: TaskSet) -> None:
    """Say what a small panel is worth before its first gate, and which tasks are never learned from."""
    from valve_plugin.tasks import sizes
    from valve_plugin.tasks import split as splits

    panel = store.panel()
    if panel and store.epoch() and not store.queries_used() and len(panel.tasks) < sizes.REFERENCE:
        output.note(sizes.worth(len(panel.tasks), panel.rollouts, panel.rho))
    if unused := splits.unused(taskset.split, len(taskset.tasks)):
        output.note(f"valve: {unused}", style="yellow")
